"""Bad requests and job files, each with what is answered. `docs/bad-requests.md` is this table.

`python -m tests.unit.service.bad_requests` writes the page.
"""
# ruff: noqa: E501 - a message stands in one piece, as it is answered

from dataclasses import dataclass, field
from pathlib import Path

from service.problems import ProblemType
from service.routers.jobs import MAX_KEY_LENGTH
from service.traffic.limits import MAX_BODY_BYTES, MAX_HEADER_BYTES, MAX_URL_BYTES
from workers.job import MAX_JOB_BYTES

PAGE = Path(__file__).parents[3] / "docs" / "bad-requests.md"

YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}
GOOD = "name: tiny\ndata: {source: synthetic}\nworkers: {count: 2}\nqueue: {project: ranking}\n"


@dataclass(frozen=True)
class BadRequest:
    """A request that gets a no.

    `what` is wrong with it; where that is the job file, `body` is the YAML. `JOB` in the path, and in the message, is
    the id of a job that runs. `caller` names the token in `callers.py`; None sends none.
    """

    what: str
    kind: ProblemType
    message: str
    request: str = "POST /v1/jobs"
    body: str | bytes = ""
    headers: dict[str, str] = field(default_factory=lambda: YAML)
    caller: str | None = "ci"


def _job(what: str, lines: str, message: str, kind: ProblemType = ProblemType.INVALID_JOB) -> BadRequest:
    """A job file that is good but for some lines, which take the place of those of the same name."""
    kept = [line for line in GOOD.splitlines() if f"{line.partition(':')[0]}:" not in lines]
    return BadRequest(what, kind, message, body="\n".join([*kept, lines]))


JOB_FILES = (
    _job("unknown field", "training: {batchsize: 512}", "training.batchsize: unknown field; did you mean 'batch_size'?"),
    _job("unknown section", "worker: {count: 2}", "worker: unknown field; did you mean 'workers'?"),
    _job("wrong type", "training: {batch_size: many}", 'training.batch_size: Input should be a valid integer (got "many")'),
    _job("number out of range", "workers: {count: 0}", "workers.count: Input should be greater than or equal to 1 (got 0)"),
    BadRequest("missing name", ProblemType.INVALID_JOB, "name: Field required", body="workers: {count: 2}"),
    _job("name with capitals", "name: My Job", "name: String should match pattern '^[a-z0-9][a-z0-9-]{0,62}$' (got \"My Job\")"),
    _job("unknown schedule", "training: {schedule: fast}", "training.schedule: Input should be 'sync', 'sparse_dist' or 'prioritized' (got \"fast\")"),
    _job("unknown data source", "data: {source: movielens-1b}", "data.source: unknown source 'movielens-1b'; use one of movielens-100k, parquet, criteo-tsv, synthetic, or the import path package.module:callable of your own"),
    _job("unknown parameter of the source", "data: {source: synthetic, params: {row: 10}}", "data.params.row: unknown field; did you mean 'rows'?"),
    _job("files that are not there", "data: {source: criteo-tsv, path: /no/such/day_0}", "data.path: no such file or folder: /no/such/day_0; relative paths start at the working directory of the job"),
    _job("credentials in the path", "data: {source: criteo-tsv, path: 's3://key:secret@bucket/day_0'}", "data.path: leave credentials out of it; workers take them from their environment"),
    _job("Parquet without columns", "data: {source: parquet, path: s3://bucket/clicks}", "data.columns: source 'parquet' needs it: {label: COLUMN, dense: [...], ids: [...], sequences: [...]}"),
    _job("a column that stands there twice", "data: {source: parquet, path: s3://bucket/clicks, columns: {label: a, ids: [a]}}", "data.columns: column 'a' stands there twice; name it once (got {\"label\": \"a\", \"ids\": [\"a\"]})"),
    _job("path to a factory that is none", "model: {factory: sequence_ranker}", "model.factory: String should match pattern '^[A-Za-z_][\\w.]*:[A-Za-z_]\\w*$' (got \"sequence_ranker\")"),
    _job("NCCL without GPUs", "workers: {count: 2, backend: nccl}", 'workers: backend nccl needs gpus: 1 or more per worker; use backend: gloo on CPUs (got {"count": 2, "backend": "nccl"})'),
    _job("elastic group upside down", "workers: {count: {min: 4, max: 2}}", 'workers.count: max must not be less than min (4) (got {"min": 4, "max": 2})'),
    _job("early stopping without evaluations", "evaluation: {early_stopping: {metric: auc}}", 'evaluation: early_stopping needs evaluations to go by; set every_steps as well (got {"early_stopping": {"metric": "auc"}})'),
    _job("number that is no JSON", "training: {dense_lr: .inf}", "training.dense_lr: must be a finite number (got inf)"),
    _job("date that is no JSON", "model: {params: {since: 2026-01-02}}", "model.params.since: a date has no place in JSON; quote it to make it a string"),
    _job("field that stands there twice", "training: {epochs: 1, epochs: 2}", "job file: not valid YAML or JSON: field 'epochs' stands there twice in \"<unicode string>\", line 5, column 11: training: {epochs: 1, epochs: 2} ^"),
    _job("broken YAML", "training: {epochs: 1", "job file: not valid YAML or JSON: while parsing a flow mapping in \"<unicode string>\", line 5, column 11: training: {epochs: 1 ^ expected ',' or '}', but got '<stream end>' in \"<unicode string>\", line 5, column 21: training: {epochs: 1 ^"),
    _job("more than the cluster can hold", "workers: {count: 8}", "needs 8 CPUs for 8 workers, the cluster has 2", ProblemType.INFEASIBLE),
    _job("GPUs on a cluster without any", "workers: {count: 2, gpus: 1}", "needs 2 GPUs for 2 workers, the cluster has 0", ProblemType.INFEASIBLE),
    _job("project of somebody else", "queue: {project: ads}", "this token submits into 'ranking', not into 'ads'; set queue.project: ranking", ProblemType.FORBIDDEN),
    BadRequest("list instead of a job", ProblemType.INVALID_JOB, "job file: expected a mapping of fields, got list", body="[]", headers=JSON),
    BadRequest("broken JSON", ProblemType.INVALID_JOB, "job file: not valid JSON: Expecting value: line 1 column 10 (char 9)", body='{"name": ', headers=JSON),
    BadRequest("not UTF-8", ProblemType.INVALID_JOB, "job file: not UTF-8: 'utf-8' codec can't decode byte 0xff in position 6: invalid start byte", body=b"name: \xff"),
    BadRequest("nothing at all", ProblemType.INVALID_JOB, "job file: expected a mapping of fields, got NoneType"),
    BadRequest("job file that is too large", ProblemType.TOO_LARGE, "the body is larger than 65536 bytes", body="#" * (MAX_JOB_BYTES + 1)),
)  # fmt: skip

REQUESTS = (
    BadRequest("unknown media type", ProblemType.UNSUPPORTED_MEDIA_TYPE, "Content-Type 'text/plain': send the job file as application/json or application/yaml", body=GOOD, headers={"Content-Type": "text/plain"}),
    BadRequest("key of another job file", ProblemType.KEY_REUSED, "Idempotency-Key 'used' was used for JOB with another job file; use a new key", body=GOOD, headers={**YAML, "Idempotency-Key": "used"}),
    BadRequest("key that is too long", ProblemType.INVALID_REQUEST, "idempotency-key: String should have at most 191 characters", body=GOOD, headers={**YAML, "Idempotency-Key": "k" * (MAX_KEY_LENGTH + 1)}),
    BadRequest("unknown job", ProblemType.UNKNOWN_JOB, "no job has the id 'job-1'", "GET /v1/jobs/job-1"),
    BadRequest("job of another project", ProblemType.UNKNOWN_JOB, "no job has the id 'JOB'", "GET /v1/jobs/JOB", caller="rival"),
    BadRequest("deleting a job that runs", ProblemType.JOB_ACTIVE, "JOB is starting; stop it first", "DELETE /v1/jobs/JOB"),
    BadRequest("state that there is not", ProblemType.INVALID_REQUEST, "state: Input should be 'queued', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'stopped' or 'lost'", "GET /v1/jobs?state=done"),
    BadRequest("limit that is too high", ProblemType.INVALID_REQUEST, "limit: Input should be less than or equal to 200", "GET /v1/jobs?limit=1000"),
    BadRequest("cursor that no page has given", ProblemType.INVALID_REQUEST, "cursor: not the next_cursor of a page (got 'latest')", "GET /v1/jobs?cursor=latest"),
    BadRequest("rank that is no number", ProblemType.INVALID_REQUEST, "rank: Input should be a valid integer, unable to parse string as an integer", "GET /v1/jobs/JOB/steps?rank=first"),
    BadRequest("steps that are no range", ProblemType.INVALID_REQUEST, "steps: String should match pattern '^[0-9]{1,15}(-[0-9]{1,15})?$'", "GET /v1/jobs/JOB/trace?steps=9-"),
    BadRequest("event id that is none", ProblemType.INVALID_REQUEST, "last-event-id: Input should be a valid integer, unable to parse string as an integer", "GET /v1/jobs/JOB/events", headers={"Last-Event-ID": "x"}),
    BadRequest("address that there is not", ProblemType.NOT_FOUND, "GET /v1/job: Not Found; /openapi.json has the addresses and what they know", "GET /v1/job"),
    BadRequest("method that the address does not know", ProblemType.METHOD_NOT_ALLOWED, "PUT /v1/jobs: Method Not Allowed; /openapi.json has the addresses and what they know", "PUT /v1/jobs", body=GOOD),
    BadRequest("no token", ProblemType.UNAUTHORIZED, "no token was sent; send `Authorization: Bearer TOKEN`; the command line takes it from OVERLANE_TOKEN", "GET /v1/jobs", caller=None),
    BadRequest("token that is none", ProblemType.UNAUTHORIZED, "no such token; send `Authorization: Bearer TOKEN`; the command line takes it from OVERLANE_TOKEN", "GET /v1/jobs", headers={"Authorization": "Bearer guess"}, caller=None),
    BadRequest("role that is too low", ProblemType.FORBIDDEN, "POST /v1/jobs/{job_id}/stop needs the role submitter, and the token has viewer; ask an admin of the service for another token", "POST /v1/jobs/JOB/stop", caller="looker"),
    BadRequest("audit without an admin's token", ProblemType.FORBIDDEN, "GET /v1/audit needs the role admin, and the token has submitter; ask an admin of the service for another token", "GET /v1/audit"),
    BadRequest("webhook that there is not", ProblemType.NOT_FOUND, "no webhook has the name 'nobody'; OVERLANE_WEBHOOKS_FILE names them", "POST /v1/webhooks/nobody/ping", caller="root"),
    BadRequest("host that is not the service's", ProblemType.FOREIGN_ORIGIN, "Host 'evil.example' is not this service; add it to OVERLANE_ALLOWED_HOSTS if it is", "GET /v1/jobs", headers={"Host": "evil.example"}),
    BadRequest("page of somebody else", ProblemType.FOREIGN_ORIGIN, "Origin 'https://evil.example' may not use this service; add its host to OVERLANE_ALLOWED_HOSTS if it may", "GET /v1/jobs", headers={"Origin": "https://evil.example"}),
    BadRequest("address that is too long", ProblemType.ADDRESS_TOO_LONG, "the address is longer than 8192 bytes, its query included", "GET /v1/jobs?project=" + "x" * MAX_URL_BYTES),
    BadRequest("headers that are too large", ProblemType.HEADERS_TOO_LARGE, "the headers are larger than 16384 bytes", "GET /v1/jobs", headers={"X-Long": "x" * MAX_HEADER_BYTES}),
    BadRequest("body that is too large", ProblemType.TOO_LARGE, "the body is larger than 16777216 bytes", "POST /v1/jobs", headers={**YAML, "Content-Length": f"{MAX_BODY_BYTES + 1}"}),
)  # fmt: skip

_HEAD = """\
# Bad requests

What the service answers to requests and job files that are not as they must be: status, the last word of the problem
document's `type` (`urn:overlane:problem:...`), and its `detail`. Nothing is recorded of any of them.
`tests/unit/service/test_bad_requests.py` sends each of them and compares; this page is written from the same table by
`python -m tests.unit.service.bad_requests`.
"""


def page() -> str:
    """The table as Markdown."""
    lines = [
        _HEAD,
        f"## Job files ({len(JOB_FILES)})\n",
        "| what is wrong | status | type | message |",
        "|---|---|---|---|",
    ]
    lines += [_row(bad.what, bad) for bad in JOB_FILES]
    lines += [f"\n## Requests ({len(REQUESTS)})\n", "| request | status | type | message |", "|---|---|---|---|"]
    lines += [_row(f"{bad.what}: `{_shown(bad.request)}`", bad) for bad in REQUESTS]
    return "\n".join(lines) + "\n"


def _row(what: str, bad: BadRequest) -> str:
    message = bad.message.replace("|", "\\|")
    return f"| {what} | {bad.kind.status.value} | {bad.kind.urn.rpartition(':')[2]} | `` {message} `` |"


def _shown(request: str) -> str:
    return request if len(request) < 60 else f"{request[:40]}..."


if __name__ == "__main__":
    PAGE.write_text(page())
