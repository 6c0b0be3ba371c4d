"""What the terminal shows: jobs and overlap as rich tables."""

from rich.console import Console, Group
from rich.table import Table

from service.models import Job, JobPage, Overlap, Plan, Spread, WatchedRuns
from service.webhooks.shapes import Webhooks

# Where there is no terminal to fit into, ids and figures must not be cut.
_WIDTH_OF_FILES = 160


def console() -> Console:
    """Standard output, as wide as the terminal is. Texts come from users and errors, so they are never markup."""
    plain = Console(markup=False, emoji=False)
    return plain if plain.is_terminal else Console(markup=False, emoji=False, width=_WIDTH_OF_FILES)


def jobs_table(page: JobPage) -> Table:
    """One line for each job."""
    table = Table("id", "name", "state", "step", "step ms", "exposed ms", "comm overlap", "submitted", box=None)
    for job in page.items:
        latest = job.latest
        progress = "" if latest is None else f"{latest.step + 1}/{latest.steps or '?'}"
        figures = ("", "", "")
        if latest is not None:
            figures = (f"{latest.step_ms:.1f}", f"{latest.exposed_ms:.1f}", share(latest.comm_overlap))
        table.add_row(job.id, job.name, job.state.value, progress, *figures, f"{job.submitted_at:%Y-%m-%d %H:%M:%S}Z")
    return table


def runs_table(runs: WatchedRuns) -> Table:
    """One line for each run of others."""
    table = Table("id", "state", "started", "command", box=None)
    for run in runs.items:
        started = "" if run.started_at is None else f"{run.started_at:%Y-%m-%d %H:%M:%S}Z"
        table.add_row(run.id, run.state.value, started, run.entrypoint)
    return table


def webhooks_table(webhooks: Webhooks) -> Table:
    """One line for each endpoint."""
    table = Table("name", "address", "pending", "delivered", "given up", "last success", "last error", box=None)
    for each in webhooks.items:
        succeeded = "" if each.last_success_at is None else f"{each.last_success_at:%Y-%m-%d %H:%M:%S}Z"
        failed = "" if each.last_error_at is None else f"{each.last_error_at:%Y-%m-%d %H:%M:%S}Z {each.last_error}"
        counts = (str(each.pending), str(each.delivered), str(each.given_up))
        table.add_row(each.name, each.url, *counts, succeeded, failed)
    return table


def job_table(job: Job) -> Table:
    """What there is to say about one job."""
    table = Table("", "", show_header=False, box=None)
    resources = job.resources
    rows = {
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "reason": job.reason,
        "submitted": f"{job.submitted_at:%Y-%m-%d %H:%M:%S}Z",
        "schedule": job.spec.training.schedule.value,
        "resources": f"{workers(job)}, {resources.cpus:g} CPUs, {resources.gpus:g} GPUs",
        "attempts": str(job.attempts),
        "dropped samples": str(job.dropped_samples) if job.dropped_samples else None,
    }
    if job.latest is not None:
        rows["step"] = f"{job.latest.step + 1} of {job.latest.steps or '?'}, {job.latest.step_ms:.1f} ms"
        rows["comm overlap"] = share(job.latest.comm_overlap)
    if job.result is not None:
        rows |= {name: number(value) for name, value in job.result.metrics.items()}
        rows["checkpoint"] = job.result.checkpoint
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, value)
    return table


def workers(job: Job) -> str:
    """How many workers: `2 workers`, or `1-4 workers, now 3` of an elastic group that has a plan."""
    if job.resources.max_workers is None:
        return f"{job.resources.workers} workers"
    now = "" if job.plan is None or job.state.ended else f", now {job.plan.world_size}"
    return f"{job.resources.workers}-{job.resources.max_workers} workers{now}"


def plan_tables(plan: Plan) -> Group:
    """One line for each check, and one for each table that has found its place."""
    checks = Table("check", "outcome", "", box=None)
    for check in plan.checks:
        checks.add_row(check.name.value, check.outcome.value.replace("_", " "), check.detail)
    if plan.training is None:
        return Group(checks)
    title = f"{plan.training.steps} steps on {plan.training.world_size} ranks"
    tables = Table("table", "module", "rows", "dim", "sharding", "ranks", "bytes", title=title, title_justify="left")
    for each in plan.training.sharding:
        ranks = ", ".join(map(str, each.ranks))
        tables.add_row(each.name, each.module, str(each.rows), str(each.dim), each.sharding, ranks, size(each.bytes))
    return Group(checks, tables)


def overlap_table(overlap: Overlap, title: str) -> Table:
    """Per collective, OL and NOL apart: mean ms for each rank and step, the exposed part, what is hidden, bytes.

    The last line is the union of all collectives, in which times that lie over each other count once.
    """
    table = Table("collective", title=title, title_justify="left")
    for heading in ("ms", "exposed ms", "p95 exposed", "comm overlap", "sent", "received"):
        table.add_column(heading, justify="right")
    for part in overlap.collectives:
        name = part.name if part.partition is None else f"{part.name} {part.partition.upper()}"
        table.add_row(
            name, *_times(part.ms, part.exposed_ms, part.comm_overlap), size(part.bytes_sent), size(part.bytes_received)
        )
    if overlap.comm_ms is not None and overlap.exposed_ms is not None:
        sent = size(sum(part.bytes_sent for part in overlap.collectives))
        received = size(sum(part.bytes_received for part in overlap.collectives))
        times = _times(overlap.comm_ms, overlap.exposed_ms, overlap.comm_overlap)
        table.add_section()
        table.add_row("all (union)", *times, sent, received, style="bold")
    return table


def share(value: float | None) -> str:
    """A share of 0 to 1 in percent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """A figure without a unit."""
    return "-" if value is None else f"{value:.4f}"


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a figure above one."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _times(comm: Spread, exposed: Spread, hidden: float | None) -> tuple[str, str, str, str]:
    return f"{comm.mean:.2f}", f"{exposed.mean:.2f}", f"{exposed.p95:.2f}", share(hidden)
