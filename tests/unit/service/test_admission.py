"""The queue's decisions: worked examples, and what holds of every one of them."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.cluster.gateway import RayNode, RayResources
from service.jobs.admission import Decision, Expire, Preempt, Start, Wait, decide
from service.jobs.quotas import Quota, Quotas, Usage, held_by_project
from service.jobs.room import Room
from service.models import JobState
from service.store.jobs import JobRecord
from tests.unit.service.fakes import START
from workers.capacity import COUNTED_RESOURCES, find_shortage, group_resources, units
from workers.job import parse_job


def job(number: int, count: int = 1, **changes: object) -> JobRecord:
    """Job number `number`, which was submitted then; started ones were started in the order of their numbers too."""
    cpus, gpus = changes.pop("cpus", 1), changes.pop("gpus", 0)
    priority, project = changes.pop("priority", 0), changes.pop("project", "default")
    queue = {"priority": priority, "project": project, "deadline_s": changes.pop("deadline_s", None)}
    spec = parse_job(
        {
            "name": "tiny",
            "workers": {"count": count, "cpus": cpus, "gpus": gpus},
            "checkpoint": {"every_steps": changes.pop("every_steps", 10)},
            "queue": queue,
        }
    )
    fields = {
        "number": number, "id": f"job-{number}", "name": "tiny", "project": project, "priority": priority,
        "state": JobState.QUEUED, "reason": None, "stop_requested": False, "on_ray": False, "has_steps": False,
        "submitted_at": START + timedelta(seconds=number), "started_at": None, "ended_at": None, "attempts": 0,
        "dropped_samples": 0, "token_hash": None, "spec": spec.model_dump_json(), "plan": None, "result": None,
        "failure": None,
    }  # fmt: skip
    return JobRecord.model_validate(fields | changes)


def running(number: int, count: int = 1, **changes: object) -> JobRecord:
    at = START + timedelta(seconds=number)
    known: dict[str, object] = {"state": JobState.RUNNING, "started_at": at, "on_ray": True, "has_steps": True}
    return job(number, count, **(known | changes))


def cluster(*nodes: dict[str, float], used: dict[str, float] | None = None) -> RayResources:
    named = [RayNode(f"n{number}", f"10.0.0.{number}", number == 0, node) for number, node in enumerate(nodes)]
    return RayResources(tuple(named), used or {})


def decided(
    jobs: Sequence[JobRecord], on: RayResources, quotas: Quotas | None = None, *, after_s: float = 100
) -> list[Decision]:
    return decide(jobs, on, quotas or Quotas(), START + timedelta(seconds=after_s))


def started(decisions: Sequence[Decision]) -> list[str]:
    return [decision.job.id for decision in decisions if isinstance(decision, Start)]


def reasons(decisions: Sequence[Decision]) -> dict[str, str]:
    return {decision.job.id: decision.reason for decision in decisions if isinstance(decision, Wait | Expire)}


def preempted(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    return [(decision.job.id, decision.by.id) for decision in decisions if isinstance(decision, Preempt)]


def test_none_passes_the_first_that_does_not_fit_and_each_is_told_why() -> None:
    queue = [running(1, 12, gpus=1), job(2, 8, gpus=1), job(3, 1), job(4, 1, gpus=1)]
    decisions = decided(queue, cluster({"CPU": 64, "GPU": 16}))
    assert started(decisions) == []
    assert reasons(decisions) == {
        "job-2": "needs 8 GPUs, 4 of 16 free",
        "job-3": "needs 1 CPU, 52 of 64 free, behind job-2",
        "job-4": "needs 1 GPU, 4 of 16 free, behind job-2",
    }


def test_a_group_has_to_fit_on_the_nodes_and_not_only_into_their_sum() -> None:
    queue = [job(1, 2, gpus=2)]
    busy = RayResources(cluster({"CPU": 8, "GPU": 4}, {"CPU": 8, "GPU": 4}).nodes, {"GPU": 4}, {
        "10.0.0.0": {"GPU": 1}, "10.0.0.1": {"GPU": 3},
    })  # fmt: skip
    decisions = decided(queue, busy)
    assert reasons(decisions) == {"job-1": "needs 2 workers with 1 CPU and 2 GPUs each, the nodes have room for 1"}
    one_node_free = RayResources(busy.nodes, {"GPU": 4}, {"10.0.0.0": {"GPU": 4}})
    assert started(decided(queue, one_node_free)) == ["job-1"]


def test_groups_of_the_same_round_take_each_others_places() -> None:
    queue = [job(1, 1, cpus=3), job(2, 1, cpus=2), job(3, 1, cpus=2)]
    decisions = decided(queue, cluster({"CPU": 4}, {"CPU": 3}))
    assert started(decisions) == ["job-1", "job-2"]
    assert reasons(decisions) == {"job-3": "needs 1 worker with 2 CPUs each, the nodes have room for 0"}


def test_what_ray_does_not_count_yet_is_counted_once() -> None:
    fresh = running(1, 2, state=JobState.STARTING)
    for used in (0.0, 1.0, 2.0):
        assert Room.of(cluster({"CPU": 4}, used={"CPU": used}), [fresh.spec.workers]).free["CPU"] == 2
    assert Room.of(cluster({"CPU": 4}, used={"CPU": 3}), [fresh.spec.workers]).free["CPU"] == 1


def test_a_higher_priority_goes_first_whatever_its_age_and_share() -> None:
    queue = [running(1, 2, project="ads"), job(2, 2, project="feed"), job(3, 2, priority=1, project="ads")]
    assert started(decided(queue, cluster({"CPU": 4}))) == ["job-3"]


def test_the_project_that_holds_the_smaller_dominant_share_goes_first() -> None:
    """ads: 2 of 8 CPUs; feed: 3 of 4 GPUs. The CPUs that feed holds are not what counts."""
    queue = [running(1, 2, project="ads"), running(2, 1, gpus=3, project="feed")]
    queue += [job(3, 1, project="feed"), job(4, 1, project="ads"), job(5, 1, project="ads")]
    queue += [job(6, 1, project="ads"), job(7, 3, project="ads")]
    decisions = decided(queue, cluster({"CPU": 8, "GPU": 4}))
    assert started(decisions) == ["job-4", "job-5", "job-6"], "what was let in just before counts: 5 of 8 CPUs"
    assert reasons(decisions) == {
        "job-7": "needs 3 CPUs, 2 of 8 free",
        "job-3": "needs 1 CPU, 2 of 8 free, behind job-7",
    }


def test_equal_shares_go_by_age() -> None:
    queue = [job(2, 1, project="ads"), job(1, 1, project="feed"), job(3, 1, project="ads"), job(4, 1, project="feed")]
    assert started(decided(queue, cluster({"CPU": 3}))) == ["job-1", "job-2", "job-3"]


def test_quotas() -> None:
    quotas = Quotas({"ads": Quota(jobs=2), "feed": Quota(gpus=3), "*": Quota(cpus=1)})
    queue = [running(1, project="ads"), job(2, project="ads"), job(3, project="ads")]
    queue += [
        running(4, 2, gpus=1, project="feed"),
        job(5, 2, gpus=1, project="feed"),
        job(6, 4, gpus=1, project="feed"),
    ]
    queue += [job(7, 2, project="any"), job(8, 1, project="any"), job(9, 1, project="other")]
    decisions = decided(queue, cluster({"CPU": 32, "GPU": 8}), quotas)
    assert sorted(started(decisions)) == ["job-2", "job-8", "job-9"], "`*` holds for each project by itself"
    assert reasons(decisions) == {
        "job-3": "project ads holds 2 of the 2 jobs that it may hold at once",
        "job-5": "needs 2 GPUs, project feed holds 2 of the 3 it may hold",
        "job-6": "needs 4 GPUs, project feed may hold 3 in all",
        "job-7": "needs 2 CPUs, project any may hold 1 in all",
    }


def test_a_job_that_the_nodes_of_today_cannot_hold_is_in_nobodys_way() -> None:
    decisions = decided([job(1, 8), job(2, 2)], cluster({"CPU": 4}))
    assert started(decisions) == ["job-2"]
    assert reasons(decisions) == {"job-1": "needs 8 CPUs for 8 workers, the cluster has 4"}


def test_a_deadline_is_for_the_first_start() -> None:
    queue = [running(1, 4), job(2, deadline_s=50), job(3, deadline_s=50, started_at=START), job(4, deadline_s=96)]
    decisions = decided(queue, cluster({"CPU": 4}))
    assert [type(decision) for decision in decisions] == [Expire, Wait, Wait]
    assert reasons(decisions)["job-2"] == "did not start within deadline_s=50"


def test_a_lost_job_waits_for_the_end_of_its_old_processes_and_says_why_it_is_back() -> None:
    back = job(1, not_before=START + timedelta(seconds=160), requeued="Ray has lost it")
    queue = [back, job(2, 4)]
    decisions = decided(queue, cluster({"CPU": 4}))
    assert started(decisions) == ["job-2"]
    assert reasons(decisions) == {
        "job-1": "Ray has lost it; starts again after 03:06:45 UTC, when its old processes have ended"
    }
    assert started(decided(queue, cluster({"CPU": 4}), after_s=160)) == ["job-1"]


def test_who_makes_room_loses_least() -> None:
    """Of the lowest priority the one that started last, and nobody who is not needed."""
    queue = [running(1, 2), running(2, 1), running(3, 1, priority=1), running(4, 4, priority=5)]
    decisions = decided([*queue, job(5, 2, priority=5), job(6, 1, priority=5)], cluster({"CPU": 8}))
    assert preempted(decisions) == [("job-1", "job-5")], "job-2 alone does not do, and with job-1 it is not needed"
    assert reasons(decisions) == {
        "job-5": "needs 2 CPUs, 0 of 8 free; job-1 makes room",
        "job-6": "needs 1 CPU, 0 of 8 free, behind job-5",
    }
    assert preempted(decided([*queue, job(5, 1, priority=5)], cluster({"CPU": 8}))) == [("job-2", "job-5")]


@pytest.mark.parametrize(
    "spared",
    [
        running(1, 4, priority=5),
        running(1, 4, every_steps=None),
        running(1, 4, on_ray=False, state=JobState.STARTING),
        running(1, 4, state=JobState.STOPPING),
        running(1, 4, state=JobState.STOPPING, preempted_by="job-2"),
    ],
    ids=["same priority", "would lose all", "not on Ray yet", "stopping anyway", "stopping for it"],
)
def test_nobody_is_stopped_without_need(spared: JobRecord) -> None:
    assert preempted(decided([spared, job(2, 2, priority=5)], cluster({"CPU": 4}))) == []


def test_nobody_is_stopped_if_it_would_not_help() -> None:
    queue = [running(1, 2), running(2, 2, priority=5), job(3, 3, priority=5)]
    assert preempted(decided(queue, cluster({"CPU": 4}))) == []


def test_nobody_is_stopped_for_a_project_at_its_quota() -> None:
    queue = [running(1, 2), running(2, 2, project="ads", priority=5), job(3, 2, project="ads", priority=5)]
    assert preempted(decided(queue, cluster({"CPU": 4}), Quotas({"ads": Quota(jobs=1)}))) == []


def test_nobody_is_stopped_while_rays_figures_are_not_settled() -> None:
    queue = [running(1, 4), job(2, 2, priority=5)]
    assert preempted(decided(queue, cluster({"CPU": 4}))) == [("job-1", "job-2")]
    decisions = decide(queue, cluster({"CPU": 4}), Quotas(), START, may_preempt=False)
    assert preempted(decisions) == []


PROJECTS = ("ads", "feed", "rank")
AMOUNTS = st.sampled_from([0.5, 1, 2, 3])
LIMITS = st.none() | st.integers(0, 6)
QUOTAS = st.dictionaries(
    st.sampled_from([*PROJECTS, "*"]), st.builds(Quota, jobs=LIMITS, cpus=LIMITS, gpus=LIMITS)
).map(Quotas)
NODES = st.lists(
    st.fixed_dictionaries({"CPU": st.sampled_from([1, 2, 4, 8])}, optional={"GPU": st.sampled_from([1, 4])}),
    min_size=1,
    max_size=3,
)


@st.composite
def queues(draw: st.DrawFn) -> list[JobRecord]:
    jobs = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        make = running if draw(st.booleans()) else job
        jobs.append(
            make(
                number, draw(st.integers(1, 4)), cpus=draw(AMOUNTS), gpus=draw(st.sampled_from([0, 0, 0.5, 1])),
                priority=draw(st.integers(0, 2)), project=draw(st.sampled_from(PROJECTS)),
                every_steps=draw(st.sampled_from([None, 5])), deadline_s=draw(st.sampled_from([None, 95, 1000])),
            )
        )  # fmt: skip
    return draw(st.permutations(jobs))


@given(queues(), NODES, QUOTAS, st.fixed_dictionaries({"CPU": AMOUNTS}))
def test_what_holds_of_every_decision(
    jobs: list[JobRecord], nodes: list[dict[str, float]], quotas: Quotas, used: dict[str, float]
) -> None:
    on = cluster(*nodes, used=used)
    decisions = decided(jobs, on, quotas)
    queued = [each for each in jobs if each.state is JobState.QUEUED]
    about = [decision.job.id for decision in decisions if not isinstance(decision, Preempt)]
    assert sorted(about) == sorted(each.id for each in queued), "one decision for each job that waits"
    assert all(reasons(decisions).values()), "and a reason for each that does not start"
    _assert_within_quotas(jobs, decisions, quotas)
    _assert_within_room(jobs, decisions, on)
    _assert_none_passed(jobs, decisions, on, quotas)
    _assert_preemption(jobs, decisions)


def _assert_within_quotas(jobs: list[JobRecord], decisions: list[Decision], quotas: Quotas) -> None:
    before = held_by_project((each.project, each.spec.workers) for each in jobs if each.state is not JobState.QUEUED)
    after = dict(before)
    for decision in decisions:
        if isinstance(decision, Start):
            project = decision.job.project
            after[project] = after.get(project, Usage()).plus(decision.job.spec.workers)
    for project, usage in after.items():
        if usage.jobs == before.get(project, Usage()).jobs:
            continue
        quota = quotas.of(project)
        assert quota.jobs is None or usage.jobs <= quota.jobs
        for kind in COUNTED_RESOURCES:
            limit = quota.limit(kind)
            unchanged = usage.resources[kind] == before.get(project, Usage()).resources[kind]
            assert unchanged or limit is None or units(usage.resources[kind]) <= units(limit)


def _assert_within_room(jobs: list[JobRecord], decisions: list[Decision], on: RayResources) -> None:
    room = _room(jobs, on)
    for decision in decisions:
        if isinstance(decision, Start):
            assert find_shortage(decision.job.spec.workers, room.nodes) is None
            room = room.beside(decision.job.spec.workers)


def _assert_none_passed(jobs: list[JobRecord], decisions: list[Decision], on: RayResources, quotas: Quotas) -> None:
    """Whoever waits only for room waits behind nobody of a lower priority, and the first of them does not fit."""
    started_now = [decision.job for decision in decisions if isinstance(decision, Start)]
    behind = {
        job_id: reason.rpartition(", behind ")[2] for job_id, reason in reasons(decisions).items() if "behind" in reason
    }
    by_id = {each.id: each for each in jobs}
    heads = set(behind.values())
    assert len(heads) <= 1
    for job_id, head in behind.items():
        assert by_id[head].priority >= by_id[job_id].priority
        assert all(other.priority >= by_id[head].priority for other in started_now)
    room = _room(jobs, on)
    for other in started_now:
        room = room.beside(other.spec.workers)
    for head in heads:
        assert not room.holds(by_id[head].spec.workers)


def _assert_preemption(jobs: list[JobRecord], decisions: list[Decision]) -> None:
    victims = [decision for decision in decisions if isinstance(decision, Preempt)]
    for victim in victims:
        assert victim.job.priority < victim.by.priority
        assert victim.job.state is JobState.RUNNING
        assert victim.job.spec.checkpoint.every_steps is not None


def _room(jobs: list[JobRecord], on: RayResources) -> Room:
    held = sorted((each for each in jobs if each.state is not JobState.QUEUED), key=lambda each: each.number)
    return Room.of(on, [each.spec.workers for each in held])


@given(queues(), NODES, QUOTAS)
def test_nobody_waits_for_ever(jobs: list[JobRecord], nodes: list[dict[str, float]], quotas: Quotas) -> None:
    """When whatever runs ends after a while, each job that may and can ever start does, once."""
    on = cluster(*nodes)
    possible = [
        each for each in jobs if each.state is JobState.QUEUED and each.spec.queue.deadline_s is None
        and find_shortage(each.spec.workers, nodes) is None and not quotas.never_allows(each.project, each.spec.workers)
    ]  # fmt: skip
    assume(possible)
    order: list[str] = []
    for _ in range(len(jobs) + 1):
        decisions = decided(jobs, on, quotas)
        order += (now := started(decisions))
        # All that ran have ended, and what was let in runs.
        jobs = [
            running(each.number, each.spec.workers.min_count, cpus=each.spec.workers.cpus, gpus=each.spec.workers.gpus,
                    priority=each.priority, project=each.project) if each.id in now else each
            for each in jobs if each.state is JobState.QUEUED
        ]  # fmt: skip
    assert len(order) == len(set(order))
    assert {each.id for each in possible} <= set(order)


@given(queues(), NODES)
def test_the_first_of_the_highest_priority_is_never_passed(
    jobs: list[JobRecord], nodes: list[dict[str, float]]
) -> None:
    """Without quotas: no smaller job starts while one of a higher priority that could run here waits."""
    on = cluster(*nodes)
    decisions = decided(jobs, on)
    waiting = [decision.job for decision in decisions if isinstance(decision, Wait)]
    could = [each for each in waiting if find_shortage(each.spec.workers, nodes) is None]
    for decision in decisions:
        if isinstance(decision, Start):
            assert all(each.priority <= decision.job.priority for each in could)


def test_groups_take_what_they_need() -> None:
    """The figures above are those of workers.capacity."""
    assert group_resources(job(1, 3, cpus=0.5, gpus=1).spec.workers) == {"CPU": 1.5, "GPU": 3}
