"""The queue's decisions: what holds of every one of them."""

from hypothesis import assume, given
from hypothesis import strategies as st

from service.cluster.gateway import RayResources
from service.jobs.admission import Decision, Preempt, Start, Wait
from service.jobs.quotas import Quota, Quotas, Usage, held_by_project
from service.jobs.room import Room
from service.models import JobState
from service.store.jobs import JobRecord
from tests.unit.service.queued import cluster, decided, job, reasons, running, started
from workers.capacity import COUNTED_RESOURCES, find_shortage, units

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
        job_id: reason.rpartition(", behind ")[2].removesuffix(" of another project")
        for job_id, reason in reasons(decisions).items()
        if "behind" in reason
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
    # What is let in runs through the next round and ends after it, so a job may take two.
    for _ in range(2 * len(jobs) + 2):
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
