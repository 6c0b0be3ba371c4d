"""What a run shows in the terminal, in words and tables; `workers.following` says when."""

from rich.console import Console
from rich.table import Table

from pipeline.report import CollectiveName
from workers.reports import JobFailure, JobPlan, JobResult, JobStop
from workers.telemetry.status import Settled
from workers.telemetry.tally import Progress, Summary


def console() -> Console:
    """The console of the run: long lines stay whole, so that a path can be copied."""
    return Console(highlight=False, soft_wrap=True)


def show_plan(out: Console, plan: JobPlan) -> None:
    """Say what will run, which modules are not prioritized, and where the tables lie."""
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    out.print(f"{plan.steps if plan.steps is not None else 'unknown number of'} steps on {ranks}")
    for module, fact in plan.prioritized.items():
        out.print(f"  prioritized: {module or 'the model'}: {fact}", markup=False)
    for module, reason in plan.not_prioritized.items():
        out.print(f"  not prioritized: {module or 'the model'}: {reason}", markup=False)
    if plan.sharding:
        out.print(_sharding_table(plan))


def _sharding_table(plan: JobPlan) -> Table:
    table = Table(title="sharding plan", title_justify="left")
    for heading in ("table", "module", "sharding", "ranks", "rows", "dim", "MiB"):
        table.add_column(heading, justify="right" if heading in ("rows", "dim", "MiB") else "left")
    for each in plan.sharding:
        sizes = (f"{each.rows:,}", f"{each.dim}", f"{each.bytes / 2**20:.1f}")
        table.add_row(each.name, each.module, each.sharding, _ranks(each.ranks), *sizes)
    return table


def _ranks(ranks: tuple[int, ...]) -> str:
    """`0-7` for ranks that follow each other, `0, 2` for others."""
    first, last = min(ranks, default=0), max(ranks, default=0)
    if len(ranks) > 1 and sorted(ranks) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ", ".join(map(str, ranks))


def progress_figures(progress: Progress, left_s: float | None, dropped: int) -> str:
    """The newest complete step in figures. `left_s` is how many seconds the rest takes, None if nobody knows."""
    parts = [
        f"loss {_number(progress.loss, 4)}",
        f"{progress.step_ms:.0f} ms/step",
        f"{progress.samples_per_s:,.0f} samples/s",
        f"comm overlap {_percent(progress.comm_overlap)}",
    ]
    if left_s:
        parts.append(f"{_duration(left_s)} left")
    if dropped:
        parts.append(f"{dropped} samples dropped")
    return "  ".join(parts)


def progress_line(progress: Progress, total: int | None, figures: str) -> str:
    """How far the run is in one line, where nothing can be drawn."""
    done = f"step {progress.step}" + (f"/{total} ({100 * progress.step // total} %)" if total else "")
    return f"{done}  {figures}"


def show_result(out: Console, job_id: str, result: JobResult, summary: Summary | None) -> None:
    """The result, and above it the table of what was measured; no table if nobody kept the totals."""
    if summary is not None:
        _show_table(out, job_id, summary)
    first_loss = summary.first_loss if summary else None
    out.print(f"{result.steps} steps, {result.samples:,} samples in {result.seconds:.1f} s", end="")
    out.print(f"; loss {_number(first_loss, 4)} at first, {_number(result.loss, 4)} at last")
    for name, value in result.metrics.items():
        out.print(f"held-out {name}: {_number(value, 4)}")
    if result.bad_rows:
        out.print(f"bad rows left out: {result.bad_rows:,}; the log names the first ones")
    out.print(f"checkpoint: {result.checkpoint}", markup=False)


def _show_table(out: Console, job_id: str, summary: Summary) -> None:
    totals, steps = summary.totals, max(1, summary.totals.rank_steps)
    out.print(f"{job_id}: mean per step of one rank, measured in {totals.rank_steps:,} of them", markup=False)
    table = Table()
    for heading in ("", "ms", "exposed ms", "comm overlap", "KiB sent"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    table.add_row("step", f"{totals.step_ms / steps:.2f}", "", "", "")
    table.add_row("compute", f"{totals.compute_ms / steps:.2f}", "", "", "")
    rows = {"all communication": totals.comm}
    in_order = sorted(totals.collectives, key=lambda key: (list(CollectiveName).index(key[0]), key[1] or ""))
    for collective, partition in in_order:
        part = f" {partition.upper()}" if partition else ""
        rows[f"  {collective}{part}"] = totals.collectives[collective, partition]
    for label, times in rows.items():
        ms, exposed_ms, sent = (value / steps for value in (times.ms, times.exposed_ms, times.bytes_sent))
        overlap = _percent(times.comm_overlap)
        table.add_row(label, f"{ms:.2f}", f"{exposed_ms:.2f}", overlap, f"{sent / 1024:.1f}")
    out.print(table)
    if summary.warmup_steps:
        out.print(f"The first {summary.warmup_steps} steps are left out of the table as warm-up.")
    if totals.overlapped_ids is not None and totals.ids:
        out.print(f"id overlap: {_percent(totals.overlapped_ids / totals.ids)}")


def show_reports(out: Console, where: str, settled: Settled | None) -> None:
    """Where the reports of the run are, when no control plane keeps them, and what is not among them."""
    dropped = "" if settled is None or not settled.dropped else f" ({settled.dropped} samples dropped)"
    out.print(f"reports: {where}{dropped}", markup=False)


def show_stop(out: Console, stop: JobStop) -> None:
    """What a run that was told to stop leaves."""
    out.print("; ".join(filter(None, ["stopped", stop.in_words()])))


def show_failure(out: Console, failure: JobFailure) -> None:
    """The remote traceback once, and below it, where the eye rests, the message."""
    if failure.traceback:
        out.print(failure.traceback.rstrip(), markup=False)
    out.print("failed:", failure.message, markup=False)


def _duration(seconds: float) -> str:
    """`95 s`, `12 min`, `3 h 05 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
