"""Train a job on Ray: `python -m workers.train --job FILE`, by hand, under `ray job submit`, or from the control plane.

Exit status: 0 when the job succeeded, 1 when it failed, 2 when the job file is not valid, 130 when it was stopped.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from workers.job import InvalidJob
from workers.run import ExitStatus, read_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    # A stop comes as SIGINT. Whatever a script starts in the background inherits that it is ignored, down to here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = read_run(_parser().parse_args(arguments).job, dict(os.environ))
    except InvalidJob as error:
        for problem in error.problems:
            sys.stderr.write(f"{problem}\n")
        return ExitStatus.INVALID_JOB
    # Ray and torch take seconds to import; a job file that is not valid is refused at once.
    from workers.driver import drive

    return drive(run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.train", description=__doc__)
    parser.add_argument(
        "--job", required=True, metavar="FILE|env:NAME", help="the job file, or the environment variable that holds it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
