"""`python -m benchmarks.testbed --nodes 2 --rate 500mbit -- COMMAND ...`: run COMMAND once on each node."""

import argparse
import signal
import sys
from collections.abc import Sequence

from benchmarks.testbed.layout import MAX_NODES, MIN_NODES, Layout, Rate
from benchmarks.testbed.namespaces import TestbedUnavailable, leftovers, refuse_if_unavailable, remove
from benchmarks.testbed.testbed import Testbed

# Apart from any status that a command would end with.
UNAVAILABLE = 125


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: the command's, 125 if there can be no testbed, 2 for bad usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.clean and not options.command:
        parser.error("no command; write it after --, for example: -- python train.py")
    # Ended from outside, it must still remove what it built.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.clean:
            return _clean()
        with Testbed(Layout(options.nodes, options.rate)) as testbed:
            return testbed.run(options.command)
    except TestbedUnavailable as error:
        sys.stderr.write(f"no testbed: {error}\n")
        return UNAVAILABLE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _clean() -> int:
    refuse_if_unavailable()
    names = leftovers()
    remove(names)
    sys.stdout.write(f"removed {len(names)} namespaces of dead owners\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.testbed",
        description="Run a command once on each of several nodes, which are network namespaces on this machine around "
        "a switch. Each gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and "
        "GLOO_SOCKET_IFNAME, and a core of its own where there are enough. Needs root.",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=MIN_NODES,
        choices=range(MIN_NODES, MAX_NODES + 1),
        help=f"how many nodes ({MIN_NODES})",
    )
    parser.add_argument(
        "--rate", type=_rate, default="unlimited", help="what each node may send, for example 500mbit (unlimited)"
    )
    parser.add_argument("--clean", action="store_true", help="only remove what testbeds of dead owners left behind")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the command and its arguments, after --")
    return parser


def _rate(text: str) -> Rate | None:
    try:
        return Rate.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
