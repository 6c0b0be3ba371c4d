"""The queue's decisions: worked examples."""

from dataclasses import replace
from datetime import timedelta

import pytest

from service.cluster.gateway import RayResources
from service.jobs.admission import Expire, Wait, decide
from service.jobs.quotas import Quota, Quotas
from service.jobs.room import Room
from service.models import JobState
from service.store.jobs import JobRecord
from tests.unit.service.fakes import START
from tests.unit.service.queued import cluster, decided, job, preempted, reasons, running, started


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
        "n0": {"GPU": 1}, "n1": {"GPU": 3},
    })  # fmt: skip
    decisions = decided(queue, busy)
    assert reasons(decisions) == {"job-1": "needs 2 workers with 1 CPU and 2 GPUs each, the nodes have room for 1"}
    one_node_free = RayResources(busy.nodes, {"GPU": 4}, {"n0": {"GPU": 4}, "n1": {}})
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
        "job-3": "needs 1 CPU, 2 of 8 free, behind job-7 of another project",
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


def test_what_is_in_use_counts_on_its_own_node() -> None:
    nodes = cluster({"CPU": 4}, {"CPU": 4}, used={"CPU": 4})
    second = {"n0": {"CPU": 0.0}, "n1": {"CPU": 4.0}}
    assert [node["CPU"] for node in Room.of(replace(nodes, used_at=second), []).nodes] == [4, 0]
    assert [node["CPU"] for node in Room.of(nodes, []).nodes] == [0, 4]


@pytest.mark.parametrize("used_at", [{"n1": {"CPU": 0.0}}, {"10.0.0.0": {"CPU": 4.0}, "10.0.0.1": {"CPU": 0.0}}])
def test_nothing_counts_as_free_because_a_node_is_not_named(used_at: dict[str, dict[str, float]]) -> None:
    """For example one that has joined since Ray counted."""
    nodes = replace(cluster({"CPU": 4}, {"CPU": 4}, used={"CPU": 4}), used_at=used_at)
    assert Room.of(nodes, []).free["CPU"] == 4
