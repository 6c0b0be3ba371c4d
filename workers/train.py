"""Train a job on Ray: `python -m workers.train --job FILE`, by hand, under `ray job submit`, or from the control plane.

With `--plan` nothing is trained: it checks that data, model and tables are as they must be, and prints what it finds.

Exit status: 0 when the job succeeded, 1 when it failed, 2 when the job file is not valid, 130 when it was stopped.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from workers.job import InvalidJob, JobSpec
from workers.plans import Finding
from workers.run import ExitStatus, read_run, read_spec


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    # A stop comes as SIGINT. Whatever a script starts in the background inherits that it is ignored, down to here, and
    # what Ray starts inherits that it is blocked.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        given = _parser().parse_args(arguments)
        if given.plan:
            return _plan(read_spec(given.job, dict(os.environ)))
        run = read_run(given.job, dict(os.environ))
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
    parser.add_argument("--plan", action="store_true", help="only check the job, and print what is found")
    return parser


def _plan(job: JobSpec) -> ExitStatus:
    from workers.dry_run import DryRun, cluster_nodes, limited

    def tell(finding: Finding) -> None:
        sys.stdout.write(finding.line())
        sys.stdout.flush()

    with limited():
        return ExitStatus.SUCCEEDED if DryRun(job, cluster_nodes(), tell).run() else ExitStatus.FAILED


if __name__ == "__main__":
    sys.exit(main())
