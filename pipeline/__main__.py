"""`python -m pipeline show|check|simulate SCHEDULE`: a schedule in the terminal, without a model or a GPU."""

import argparse
import sys

from pipeline import schedules
from pipeline.checks import check
from pipeline.drawing import draw, draw_violations
from pipeline.schedule import Schedule
from pipeline.simulator import Load, chart, durations, simulate


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, 1 if a check fails, 2 for bad usage."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    schedule = schedules.ALL[chosen.schedule]
    match chosen.command:
        case "show":
            return _say(draw(schedule, chosen.steps))
        case "check":
            return _check(schedule)
        case _:
            try:
                load = Load(chosen.compute_ms, chosen.comm_ms, chosen.id_overlap, chosen.dist_ms, chosen.dense_ms)
            except ValueError as error:
                parser.error(str(error))
            return _simulate(schedule, load)


def _check(schedule: Schedule) -> int:
    violations = check(schedule)
    if violations:
        return _say(draw_violations(schedule, violations), status=1)
    return _say(f"{schedule.name}: static, replay and happens-before checks passed")


def _simulate(schedule: Schedule, load: Load) -> int:
    simulation = simulate(schedule, durations(schedule, load))
    bound = max(load.compute_ms, load.comm_ms)
    comm_ms = load.comm_ms + load.dense_ms
    return _say(
        f"{chart(schedule, simulation)}\n\n"
        f"step_ms     {simulation.step_ms:8.1f}   ({simulation.step_ms / bound:.2f} x the larger of compute and comm)\n"
        f"exposed_ms  {simulation.exposed_ms:8.1f}   of {comm_ms:.1f} ms embedding, gradient and dense communication"
    )


def _say(text: str, status: int = 0) -> int:
    sys.stdout.write(text + "\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="Draw, check or simulate a schedule.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("show", "draw the timeline: which batch each stage works on in each step"),
        ("check", "run the three checks: static, replay, happens-before"),
        ("simulate", "predict step time and exposed communication"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("schedule", choices=list(schedules.ALL))
        if name == "show":
            command.add_argument("--steps", type=int, default=4, help="how many steps to draw")
        if name == "simulate":
            load = Load()
            command.add_argument("--compute-ms", type=float, default=load.compute_ms, help="compute of one step")
            command.add_argument("--comm-ms", type=float, default=load.comm_ms, help="rows and gradients of one step")
            command.add_argument("--id-overlap", type=float, default=load.id_overlap, help="share of ids in common")
            command.add_argument("--dist-ms", type=float, default=load.dist_ms, help="input dist of one step")
            command.add_argument("--dense-ms", type=float, default=load.dense_ms, help="all-reduce of the dense part")
    return parser


if __name__ == "__main__":
    sys.exit(main())
