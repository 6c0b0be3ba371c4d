"""Traces: the right lengths on the right lanes, on one clock, in a form that viewers read."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.problems import Problem, ProblemType
from service.telemetry import trace as tracing
from service.telemetry.chrome import Trace
from service.telemetry.trace import StepRange, trace_of
from tests.unit.service.chrome import lanes_of
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import START, collective, sample
from tests.unit.service.test_api import problem
from workers.reports import StepSample

pytestmark = pytest.mark.anyio


def at(ms: float) -> str:
    return (START + timedelta(milliseconds=ms)).isoformat()


async def get(plane: Plane, job_id: str, steps: str | None = None) -> str:
    answer = await plane.http.get(f"/v1/jobs/{job_id}/trace", params={} if steps is None else {"steps": steps})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="{job_id}.trace.json"'
    return answer.text


async def test_two_ranks_by_hand(plane: Plane) -> None:
    """Steps of 20 ms; rank 1 ends 5 ms later by the monitor's clock, to which its own had been added already."""
    job_id = await plane.started()
    parts = [collective("gradient", "ol", 6.0, 2.0), collective("input_dist", None, 3.0, 0.0)]
    known: dict[str, Any] = {"clock_uncertainty_ms": 0.25}
    await plane.report(
        job_id,
        sample(0, 0, time=at(20), clock_offset_ms=0.0, collectives=parts, **known),
        sample(0, 1, time=at(25), clock_offset_ms=-7000.0, collectives=parts[:1], **known),
        sample(1, 0, time=at(45), clock_offset_ms=0.0, collectives=[], exposed_ms=0.0, **known),
        sample(1, 1, time=at(47), clock_offset_ms=-7000.0, collectives=[], exposed_ms=0.0, **known),
    )
    text = await get(plane, job_id)
    assert lanes_of(text) == {
        "rank 0/steps": [(0, 20_000, "step 0"), (25_000, 45_000, "step 1")],
        "rank 0/compute": [(0, 15_000, "compute"), (15_000, 17_000, "exposed"), (25_000, 40_000, "compute")],
        "rank 0/input_dist": [(0, 3_000, "input_dist")],
        "rank 0/gradient OL": [(0, 6_000, "gradient OL"), (4_000, 6_000, "exposed")],
        "rank 1/steps": [(5_000, 25_000, "step 0"), (27_000, 47_000, "step 1")],
        "rank 1/compute": [(5_000, 20_000, "compute"), (20_000, 22_000, "exposed"), (27_000, 42_000, "compute")],
        "rank 1/gradient OL": [(5_000, 11_000, "gradient OL"), (9_000, 11_000, "exposed")],
    }
    trace = Trace.model_validate_json(text)
    notes = trace.otherData
    assert (notes.job_id, notes.first_step, notes.last_step, notes.ranks) == (job_id, 0, 1, 2)
    assert (notes.begins_at, notes.clock_uncertainty_ms) == (START, 0.25)
    assert "not" in notes.placement
    [step] = [event for event in trace.traceEvents if event.ph == "X" and event.name == "step 1" and event.pid == 2]
    assert (step.args["clock_offset_ms"], step.args["attempt"], step.args["loss"]) == (-7000.0, 0, 0.5)
    flights = [event for event in trace.traceEvents if event.ph == "X" and event.name == "gradient OL"]
    assert flights[0].args == {"bytes_sent": 100, "bytes_received": 200, "ms": 6.0, "exposed_ms": 2.0}
    counters = [(event.pid, event.ts, event.args) for event in trace.traceEvents if event.ph == "C"]
    assert counters == [
        (1, 0, {"exposed_ms": 2.0}), (1, 25_000, {"exposed_ms": 0.0}),
        (2, 5_000, {"exposed_ms": 2.0}), (2, 27_000, {"exposed_ms": 0.0}),
    ]  # fmt: skip


async def test_a_clock_that_is_not_known_is_named(plane: Plane) -> None:
    job_id = await plane.started()
    await plane.report(job_id, sample(0, 0, clock_offset_ms=1.0, clock_uncertainty_ms=0.5), sample(0, 1))
    trace = Trace.model_validate_json(await get(plane, job_id))
    assert trace.otherData.clock_uncertainty_ms is None
    assert "own clock" in trace.otherData.clocks
    labels = {event.pid: event.args["labels"] for event in trace.traceEvents if event.name == "process_labels"}
    assert ["clock not measured" in str(labels[pid]) for pid in (1, 2)] == [False, True]


async def test_lanes_of_one_kind_stand_at_the_same_place_in_every_rank(plane: Plane) -> None:
    job_id = await plane.started()
    kinds = [("dense_allreduce", None), ("gradient", "nol"), ("gradient", "ol"), ("embedding", "ol")]
    for rank, own in enumerate((kinds, kinds[:1])):
        await plane.report(job_id, sample(0, rank, collectives=[collective(*kind, 1.0, 0.5) for kind in own]))
    trace = Trace.model_validate_json(await get(plane, job_id))
    names = [
        [event.args["name"] for event in trace.traceEvents if event.name == "thread_name" and event.pid == pid]
        for pid in (1, 2)
    ]
    assert names[0] == ["steps", "compute", "embedding OL", "gradient OL", "gradient NOL", "dense_allreduce"]
    assert names[1] == names[0]


async def test_which_steps(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "NEWEST_STEPS", 3)
    job_id = await plane.started()
    await plane.report(
        job_id, *[sample(step, rank, time=at(30 * step)) for step in range(6) for rank in range(2)], sample(6, 0)
    )

    async def steps(asked: str | None) -> list[str]:
        return [name for _, _, name in lanes_of(await get(plane, job_id, asked)).get("rank 0/steps", [])]

    assert await steps(None) == ["step 3", "step 4", "step 5"], "the newest that all ranks have reported"
    assert await steps("2") == ["step 2"]
    assert await steps("4-99") == ["step 4", "step 5", "step 6"]
    assert await steps("70-99") == []
    assert await steps(f"5-{'9' * 15}") == ["step 5", "step 6"]
    empty = Trace.model_validate_json(await get(plane, job_id, "70-99"))
    assert (empty.traceEvents, empty.otherData.first_step, empty.otherData.begins_at) == ([], None, None)


async def test_a_job_without_steps_has_an_empty_trace(plane: Plane) -> None:
    assert lanes_of(await get(plane, await plane.submit())) == {}


@pytest.mark.parametrize("steps", ["", "x", "-3", "3-", "3-1", "1-2-3", "9" * 16, "1.5", "\u0663"])
async def test_steps_that_are_none(plane: Plane, steps: str) -> None:
    job_id = await plane.with_steps(1)
    problem(await plane.http.get(f"/v1/jobs/{job_id}/trace?steps={steps}"), ProblemType.INVALID_REQUEST)
    with pytest.raises(Problem):
        StepRange.parse(steps)
    problem(await plane.http.get("/v1/jobs/job-nope/trace"), ProblemType.UNKNOWN_JOB)


async def test_more_than_a_trace_holds(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_SAMPLES", 5)
    job_id = await plane.with_steps(4, ranks=2)
    answer = await plane.http.get(f"/v1/jobs/{job_id}/trace?steps=1-9")
    problem(answer, ProblemType.INVALID_REQUEST)
    assert answer.json()["detail"].endswith("such as 1-2")
    assert len(lanes_of(await get(plane, job_id, "1-2"))["rank 1/steps"]) == 2
    assert len(lanes_of(await get(plane, job_id, "2-9"))["rank 1/steps"]) == 2


MS = st.floats(0, 40, allow_subnormal=False)


@st.composite
def samples(draw: st.DrawFn) -> list[StepSample]:
    """Any times and lengths, also such that steps lie over each other and parts are longer than their step."""
    made = []
    for step in range(draw(st.integers(0, 4))):
        for rank in draw(st.sets(st.sampled_from([0, 1, 120]), min_size=1)):
            kinds = draw(st.sets(st.sampled_from([("gradient", "ol"), ("gradient", "nol"), ("input_dist", None)])))
            made.append(
                StepSample.model_validate(
                    sample(
                        step,
                        rank,
                        time=datetime(2026, 1, 2, tzinfo=UTC) + timedelta(milliseconds=20 * step + draw(MS)),
                        step_ms=draw(MS),
                        compute_ms=draw(MS),
                        exposed_ms=draw(MS),
                        collectives=[collective(*kind, draw(MS), draw(MS)) for kind in kinds],
                    )
                )
            )
    return made


@given(samples())
@settings(deadline=None, max_examples=50)
def test_every_trace_can_be_shown(made: list[StepSample]) -> None:
    lanes = lanes_of(trace_of("job-1", made).model_dump_json())
    for one in made:
        pieces = lanes[f"rank {one.rank}/steps"]
        [(begin, end)] = [(begin, end) for begin, end, name in pieces if name == f"step {one.step}"]
        assert end - begin <= one.step_ms * 1000 + 1
    for lane, pieces in lanes.items():
        steps = lanes[f"{lane.split('/')[0]}/steps"]
        for begin, end, name in pieces:
            assert any(first <= begin and end <= last for first, last, _ in steps), f"{name} sticks out of its step"
    assert sum(len(pieces) for lane, pieces in lanes.items() if lane.endswith("/steps")) == len(made)
