"""One example of everything that the API takes and gives, made of the same shapes; all belong to one job."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from service.jobs.capacity import resources_of
from service.models import (
    Cluster,
    ClusterResources,
    CollectiveOverlap,
    Health,
    Job,
    JobPage,
    JobState,
    LatestStep,
    NodeInfo,
    Overlap,
    Plan,
    RankOverlap,
    Spread,
    StateChange,
    StepPage,
    StoredStep,
    WatchedRun,
    WatchedRuns,
)
from service.problems import Problem, ProblemType
from service.security.audit import AuditAction, AuditEntry, AuditPage, JobFacts
from service.telemetry.trace import trace_of
from service.webhooks.shapes import Webhook, Webhooks, WebhookTest
from workers.job import JobSpec, parse_job
from workers.plans import Check, CheckName, Outcome, PlannedTraining
from workers.reports import JobPlan, ShardedTable

JOB_YAML = """\
name: movielens
model: {factory: "workers.models:sequence_ranker", params: {embedding_dim: 64}}
data: {source: movielens-100k, order: time}
training: {batch_size: 512, epochs: 2, schedule: prioritized}
workers: {count: 2, cpus: 1}
"""
JOB_FILE = {
    "name": "movielens",
    "model": {"factory": "workers.models:sequence_ranker", "params": {"embedding_dim": 64}},
    "data": {"source": "movielens-100k", "order": "time"},
    "training": {"batch_size": 512, "epochs": 2, "schedule": "prioritized"},
    "workers": {"count": 2, "cpus": 1},
}

_ID = "job-20260102-030405-k7m2xq"
_MESSAGE_ID = "msg_Uo9cH1rJ0m7sQm2b8dXkTz1w"
_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_TABLES = tuple(
    ShardedTable(name=name, module="embeddings", rows=rows, dim=64, sharding="row_wise", ranks=(0, 1))
    for name, rows in (("user", 943), ("item", 1682))
)
_MS = Spread(mean=8.1, p50=8.0, p95=9.4, p99=11.2)

_CHANGE = StateChange(number=2, time=_AT, state=JobState.STARTING, reason=None)
TEXTS = {
    "text/plain": "attempt 0: 2 workers\nstep 100 of 352, loss 0.583\n",
    "text/event-stream": f"id: 2\nevent: state\ndata: {_CHANGE.model_dump_json()}\n\n",
}
"""By media type, what is no JSON."""


def answers() -> dict[str, dict[str, Any]]:
    """By the name of its shape, an example of each answer."""
    spec = parse_job(JOB_FILE)
    job, step = _job(spec), _step()
    entry = AuditEntry(
        number=7, time=_AT, actor="ci", action=AuditAction.STOP, job_id=_ID, project="default",
        before=JobFacts(name="movielens", state=JobState.RUNNING),
        after=JobFacts(name="movielens", state=JobState.STOPPING),
    )  # fmt: skip
    examples: list[BaseModel] = [
        job,
        JobPage(items=[job], next_cursor="41"),
        StepPage(items=[step], next_after=None),
        _overlap(),
        trace_of(_ID, [step]),
        AuditPage(items=[entry], next_cursor=None),
        _plan(spec),
        _cluster(),
        _watched(),
        _webhooks(),
        WebhookTest(name="ops", message_id=_MESSAGE_ID, status=204, error=None),
        Health(),
    ]
    return {type(each).__name__: each.model_dump(mode="json") for each in examples}


def problems() -> dict[int, dict[str, dict[str, Any]]]:
    """By status and by the last word of its type, an example of each problem."""
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for kind in ProblemType:
        document = Problem(kind, _DETAILS.get(kind, kind.title)).document(f"/v1/jobs/{_ID}")
        slug = kind.urn.rpartition(":")[2]
        found.setdefault(kind.status, {})[slug] = {"summary": kind.title, "value": document}
    return found


_DETAILS = {
    ProblemType.INVALID_JOB: "training.batchsize: unknown field; did you mean 'batch_size'?",
    ProblemType.INVALID_REQUEST: "limit: Input should be less than or equal to 200",
    ProblemType.INFEASIBLE: "needs 8 CPUs for 8 workers, the cluster has 2",
    ProblemType.UNKNOWN_JOB: "no job has the id 'job-1'",
    ProblemType.JOB_ACTIVE: f"{_ID} is running; stop it first",
    ProblemType.UNAUTHORIZED: "no token was sent; send `Authorization: Bearer TOKEN`",
    ProblemType.RATE_LIMITED: "too many requests; ask again in 2 s",
    ProblemType.UNSUPPORTED_MEDIA_TYPE: "Content-Type 'text/plain': send the job file as application/json",
}


def _job(spec: JobSpec) -> Job:
    latest = LatestStep(
        step=100, steps=352, rank_count=2, samples_per_s=21_300.0, step_ms=24.0, compute_ms=19.8, comm_ms=8.1,
        exposed_ms=0.4, comm_overlap=0.95, id_overlap=0.41, loss=0.583,
    )  # fmt: skip
    plan = JobPlan(
        steps=352, world_size=2, prioritized={"embeddings": "row_wise, 2 table(s), dim 64"}, not_prioritized={},
        sharding=_TABLES,
    )  # fmt: skip
    return Job(
        id=_ID, name=spec.name, project=spec.queue.project, state=JobState.RUNNING, reason=None, submitted_at=_AT,
        started_at=_AT, ended_at=None, attempts=1, spec=spec, resources=resources_of(spec), plan=plan, result=None,
        failure=None, dropped_samples=0, latest=latest,
    )  # fmt: skip


def _watched() -> WatchedRuns:
    command = "python -m workers.train --job examples/movielens.yaml"
    run = WatchedRun(
        id="raysubmit_k7m2xq", state=JobState.RUNNING, reason=None, entrypoint=command, started_at=_AT, ended_at=None
    )
    return WatchedRuns(items=[run])


def _webhooks() -> Webhooks:
    ops = Webhook(
        name="ops", url="https://hooks.example/overlane", project=None, states=[JobState.FAILED, JobState.LOST],
        gone=False, pending=1, delivered=41, failed_attempts=2, given_up=0, last_success_at=_AT, last_error_at=_AT,
        last_error="HTTP 503",
    )  # fmt: skip
    return Webhooks(items=[ops])


def _step() -> StoredStep:
    sent = {"name": "embedding", "partition": "nol", "bytes_sent": 81_920, "bytes_received": 80_128}
    return StoredStep.model_validate(
        {"step": 100, "rank": 0, "samples": 512, "time": _AT, "loss": 0.583, "data_wait_ms": 0.1, "attempt": 0}
        | {
            "step_ms": 24.0,
            "compute_ms": 19.8,
            "comm_ms": 8.1,
            "exposed_ms": 0.4,
            "hidden_ms": 7.7,
            "comm_overlap": 0.95,
        }
        | {"ids": 10_240, "overlapped_ids": 4_198, "id_overlap": 0.41, "clock_offset_ms": 0.02}
        | {"clock_uncertainty_ms": 0.3, "collectives": [{**sent, "ms": 6.0, "exposed_ms": 0.0}]}
    )


def _overlap() -> Overlap:
    embedding = CollectiveOverlap(
        name="embedding", partition="nol", ms=_MS, exposed_ms=_MS, comm_overlap=0.95, bytes_sent=81_920,
        bytes_received=80_128,
    )  # fmt: skip
    rank = RankOverlap(rank=0, step_ms=_MS, exposed_ms=_MS, comm_overlap=0.95, collectives=[embedding])
    return Overlap(
        steps=349, warmup_steps=3, step_ms=_MS, compute_ms=_MS, comm_ms=_MS, exposed_ms=_MS, hidden_ms=_MS,
        comm_overlap=0.95, id_overlap=0.41, collectives=[embedding], ranks=[rank],
    )  # fmt: skip


def _plan(spec: JobSpec) -> Plan:
    found = {
        CheckName.SCHEMA: "the job file is valid",
        CheckName.DATA: "352 steps; 3 features look up 2 tables",
        CheckName.MODEL: "SequenceRanker, with 0.641 MiB of embedding tables",
        CheckName.TABLES: "0.641 MiB of tables fit 2 x 11.8 GiB",
        CheckName.CLUSTER: "it would start now",
    }
    return Plan(
        outcome=Outcome.OK,
        checks=[Check(name=name, outcome=Outcome.OK, detail=detail) for name, detail in found.items()],
        resources=resources_of(spec),
        waits_for=None,
        training=PlannedTraining(steps=352, world_size=2, sharding=_TABLES),
    )


def _cluster() -> Cluster:
    both = {"CPU": 2.0, "GPU": 0.0}
    return Cluster(
        resources=ClusterResources(total=both, available={"CPU": 0.0, "GPU": 0.0}),
        nodes=[NodeInfo(id="5d3c", address="10.0.0.1", head=True, resources={"CPU": 2.0})],
        ray_address="http://10.0.0.1:8265",
        jobs=dict.fromkeys(JobState, 0) | {JobState.RUNNING: 1},
    )
