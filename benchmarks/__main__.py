"""`python -m benchmarks [NAME ...]`: run benchmarks and write `benchmarks/results/NAME.json`."""

import argparse
import sys
from collections.abc import Callable

from benchmarks import checkpoint, dedup, pooled, telemetry
from benchmarks.events import run as events
from benchmarks.faults import restart
from benchmarks.faults import run as faults
from benchmarks.first_step import run as first_step
from benchmarks.load import run as load
from benchmarks.pipelines import run as pipelines
from benchmarks.results import Result
from benchmarks.testbed import TestbedUnavailable

BENCHMARKS: dict[str, Callable[[], Result]] = {
    "checkpoint": checkpoint.run,
    "dedup": dedup.run,
    "events": events.run,
    "faults": faults.run,
    "first-step": first_step.run,
    "load": load.run,
    "pipelines": pipelines.run,
    "pooled": pooled.run,
    "restart": restart.run,
    "telemetry": telemetry.run,
}


def main() -> int:
    """Exit status 0 if every target was reached, 1 if one was missed or a benchmark cannot run here."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure; interleaved ratios with spread."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(BENCHMARKS)} (all)")
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}")
    missed = False
    for name in names:
        try:
            result = BENCHMARKS[name]()
        except TestbedUnavailable as error:
            sys.stderr.write(f"{name}: not run: {error}\n")
            missed = True
            continue
        path = result.write()
        verdict = {True: "reached", False: "MISSED", None: "an answer, no target"}[result.reached]
        lines = [f"{result.name}: {result.what}", *(f"  {line}" for line in [*result.ratios, *result.figures])]
        sys.stdout.write("\n".join([*lines, f"  target {result.target}: {verdict}; written to {path}\n"]))
        missed = missed or result.reached is False
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
