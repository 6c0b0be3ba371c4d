"""`python -m benchmarks.pipelines`: one scenario of your choice, or two variants of Overlane against each other."""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from benchmarks.pipelines.run import BALANCED, COMPUTE_BOUND, LINK_BOUND, UNLIMITED, run_plans
from benchmarks.pipelines.scenario import QUIET, STANDARD, Contestant, Plan, Scenario, Workload
from benchmarks.testbed import TestbedUnavailable
from benchmarks.testbed.__main__ import UNAVAILABLE

LOADS = {"balanced": BALANCED, "link-bound": LINK_BOUND, "compute-bound": COMPUTE_BOUND, "unlimited": UNLIMITED}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 if exact pipelines trained different bits, 0 otherwise, 125 without a testbed, 2 for bad usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        plan = _plan(options)
        _ = plan.scenario.layout
    except (ValidationError, ValueError) as error:
        parser.error(str(error))
    command = shlex.join(["python", "-m", "benchmarks.pipelines", *(sys.argv[1:] if arguments is None else arguments)])
    # Ended from outside, it must still remove the testbed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        made = run_plans(options.name, [plan], command)
    except TestbedUnavailable as error:
        sys.stderr.write(f"no testbed: {error}\n")
        return UNAVAILABLE
    lines = [*(f"  {ratio}" for ratio in made.ratios), f"written to {made.write()} and {made.page}"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if made.reached is False else 0


def _plan(options: argparse.Namespace) -> Plan:
    scenario = Scenario(
        workload=options.workload,
        rate=options.rate or LOADS[options.load],
        nodes=options.nodes,
        id_overlap=options.id_overlap,
        zipf=options.zipf,
        batch_size=options.batch_size,
        hidden=options.hidden,
        sparse_optimizer=options.sparse_optimizer,
        dedup=options.dedup,
    )
    return Plan(
        scenario=scenario,
        contestants=_contestants(options.only, options.variant),
        turns=options.turns,
        block=options.block,
        settle=options.settle,
        quiet=options.quiet,
    )


def _contestants(only: Sequence[str], variants: Sequence[Contestant]) -> tuple[Contestant, ...]:
    """Standard contestants by name, and variants. With neither, all standard ones."""
    known = {each.name: each for each in STANDARD}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ValueError(f"no contestant {unknown[0]!r}; known: {', '.join(known)}")
    chosen = (*(known[name] for name in only), *variants) or STANDARD
    if len({each.name for each in chosen}) < len(chosen):
        raise ValueError("two contestants have the same name")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipelines",
        description="Let pipelines take turns on the same model and link, and compare their steps. Needs root.",
    )
    parser.add_argument("--workload", type=Workload, choices=list(Workload), default=Workload.TOWER)
    parser.add_argument("--load", choices=list(LOADS), default="balanced", help=f"the link's rate by name: {LOADS}")
    parser.add_argument("--rate", help="what each node may send, for example 800mbit, or unlimited; goes before --load")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--id-overlap", type=_share, default=0.12, help="share of ids that repeat (0.12), or 'chance'")
    parser.add_argument("--zipf", type=float, default=1.05, help="exponent of the ids' popularity (1.05; 0: uniform)")
    parser.add_argument("--batch-size", type=int, default=1024, help="samples of a rank")
    parser.add_argument("--hidden", type=int, default=320, help="width of the tower: more of it is more compute")
    parser.add_argument("--sparse-optimizer", choices=["sgd", "rowwise_adagrad"], default="rowwise_adagrad")
    parser.add_argument("--dedup", action="store_true", help="all of Overlane sends each distinct id once")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--block", type=int, default=12, help="counted steps of a contestant in a turn")
    parser.add_argument("--quiet", type=float, default=QUIET, help=f"measure a block again above it ({QUIET})")
    parser.add_argument("--settle", type=int, default=3, help="steps before them that are not counted")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a standard contestant; repeatable")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        type=_variant,
        metavar="NAME=SCHEDULE[,SETTING=VALUE]",
        help="a variant of Overlane, for example gloo=prioritized,transport=gloo; repeatable; compared with the first; "
        "settings: transport=gloo|one-group, precision=fp16|bf16, sharder.OPTION=true, pipeline.OPTION=true",
    )
    parser.add_argument("--name", default="pipelines-chosen", help="of the result files (pipelines-chosen)")
    return parser


def _variant(text: str) -> Contestant:
    try:
        return Contestant.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _share(text: str) -> float | None:
    return None if text == "chance" else float(text)


if __name__ == "__main__":
    sys.exit(main())
