"""From measured scenarios to a result: ratios, figures, a table for the terminal."""

from collections.abc import Iterator, Sequence

from benchmarks.pipelines.records import Outcome, PipelinesResult, ScenarioRecord
from benchmarks.pipelines.scenario import QUIET, Family
from benchmarks.results import Figure, Ratio

FASTEST_EXACT = "TorchRec SparseDist"
# The owners find the rows in common; the trainers part their ids by what they are told.
DETECTION = ("overlap", "partition")


def result(name: str, scenarios: Sequence[ScenarioRecord], command: str | None) -> PipelinesResult:
    """`reached` is whether the exact contestants trained the same bits; None if no two were to be compared."""
    compared = [names for scenario in scenarios for names in scenario.unequal.values()]
    made = PipelinesResult.now(
        name,
        "median step of each pipeline, in ms on the slowest rank; contestants take turns on the same model and link",
        "weights and optimizer state of all exact pipelines equal bit for bit",
        reached=not any(compared) if compared else None,
        ratios=[ratio for scenario in scenarios for ratio in _ratios(scenario)],
        figures=[figure for scenario in scenarios for figure in _figures(scenario)],
        command=command,
    )
    return made.model_copy(update={"scenarios": tuple(scenarios)})


def _ratios(record: ScenarioRecord) -> Iterator[Ratio]:
    """Everybody against TorchRec's fastest exact pipeline, or against the first contestant where it did not run."""
    names = [each.contestant.name for each in record.outcomes]
    other = FASTEST_EXACT if FASTEST_EXACT in names else names[0]
    pairs = [(name, other) for name in names if name != other]
    pairs += [("prioritized", name) for name in ("sync", "sparse_dist", "TorchRec PEC") if name in names]
    pairs += [("prioritized", "TorchRec SparseDist dedup")]
    pairs += [(f"prioritized {lever}", f"sync {lever}") for lever in ("dedup", "fp16", "bf16")]
    for one, against in pairs:
        ratio = record.ratio(one, against)
        if ratio is not None:
            yield ratio.model_copy(update={"one": f"{record.scenario.name}: {one}"})


def _figures(record: ScenarioRecord) -> Iterator[Figure]:
    name = record.scenario.name
    if record.communication_ms is not None:
        yield Figure(name=f"{name}: communication only, ms", value=record.communication_ms)
    for outcome in record.outcomes:
        yield Figure(name=f"{name}: {outcome.contestant.name}, ms", value=outcome.median_ms)
        if outcome.contestant.family is Family.OVERLANE:
            yield Figure(name=f"{name}: {outcome.contestant.name}, exposed ms", value=outcome.exposed_ms)
    yield from _of_prioritized(record)


def _of_prioritized(record: ScenarioRecord) -> Iterator[Figure]:
    """What the schedule is judged by, beside its step time: nearness to the limits, and what it leaves exposed."""
    mine, sync = record.outcome("prioritized"), record.outcome("sync")
    if mine is None:
        return
    name = f"{record.scenario.name}: prioritized"
    compute, unawaited = record.outcome("compute only"), record.outcome("no waiting (prioritized)")
    if compute is not None:
        limit_ms = max(compute.median_ms, record.communication_ms or 0.0)
        yield Figure(name=f"{name} / larger of compute only and communication only", value=mine.median_ms / limit_ms)
    if unawaited is not None:
        yield Figure(name=f"{name} / no waiting", value=mine.median_ms / unawaited.median_ms)
    if sync is not None and sync.exposed_embedding_ms > 0:
        left = mine.exposed_embedding_ms / sync.exposed_embedding_ms
        yield Figure(name=f"{name}, exposed embedding communication less than sync's by", value=1 - left)
        yield Figure(
            name=f"{name}, exposed communication less than sync's by", value=1 - mine.exposed_ms / sync.exposed_ms
        )
    detection_ms = record.stage_ms("prioritized", DETECTION)
    if detection_ms > 0:
        yield Figure(name=f"{name}, overlap detection, share of the step", value=detection_ms / mine.median_ms)


def table(record: ScenarioRecord) -> str:
    """A scenario for the terminal."""
    lines = [record.scenario.title]
    lines += [f"  {_line(outcome)}" for outcome in record.outcomes]
    if record.communication_ms is not None:
        lines.append(f"  {'communication only':28} {record.communication_ms:7.1f} ms")
    lines += [f"  {name:28} does not run: {reason}" for name, reason in record.unable.items()]
    lines += [f"  {name:28} {_equality(names)}" for name, names in record.unequal.items()]
    return "\n".join(lines)


def _line(outcome: Outcome) -> str:
    spread = f"({outcome.lower_quartile_ms:.1f} to {outcome.upper_quartile_ms:.1f})"
    exposed = [
        f"{each.partition + ' ' if each.partition else ''}{each.name} {each.exposed_ms:.1f}"
        for each in outcome.collectives
        if each.exposed_ms >= 0.05
    ]
    shown = f"  exposed: {', '.join(exposed)}" if exposed else ""
    if outcome.foreign_share > QUIET:
        shown += f"  (others took {outcome.foreign_share:.0%} of the cores)"
    return f"{outcome.contestant.name:28} {outcome.median_ms:7.1f} ms {spread:18}{shown}"


def _equality(names: tuple[str, ...]) -> str:
    return "same bits as the first of its kind" if not names else f"DIFFERS in {', '.join(names)}"
