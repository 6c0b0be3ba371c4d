"""What running jobs report: taken in from their monitor actors, given out as steps, latest figures and overlap."""

import asyncio
import json
import math
from collections.abc import Callable

from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError

from service.jobs.tokens import is_token
from service.models import LatestStep, Overlap, StepPage, StoredStep
from service.problems import FieldError, Problem, ProblemType
from service.store.jobs import JobRecord, JobStore
from service.store.steps import StepsArchivedError, StepStore
from service.telemetry.overlap import overlap_of
from workers.reports import ReportBatch, StepSample


class Telemetry:
    """The logic behind the report, step and overlap routes. `poke` wakes the reconciler."""

    def __init__(self, jobs: JobStore, steps: StepStore, poke: Callable[[], None]) -> None:
        self._jobs = jobs
        self._steps = steps
        self._poke = poke

    async def reporter(self, job_id: str, token: str | None) -> JobRecord:
        """The job that reports with this token. Raises `Problem`, the same for a wrong token and an unknown job."""
        record = await self._jobs.get(job_id)
        known = None if record is None else record.token_hash
        if record is None or known is None or token is None or not is_token(token, known):
            raise Problem(ProblemType.UNAUTHORIZED, f"not the report token of {job_id}")
        return record

    async def accept(self, job_id: str, token: str | None, body: bytes) -> None:
        """Store a delivery. Raises `Problem`: as `reporter`, and for a body that is not a strict `ReportBatch`."""
        record = await self.reporter(job_id, token)
        try:
            await self._steps.record(job_id, _counted_from(record.first_attempt, parse_reports(body)))
        except StepsArchivedError:
            raise Problem(
                ProblemType.STEPS_ARCHIVED, f"{job_id} ended long ago and takes no reports any more"
            ) from None
        except IntegrityError:
            raise Problem(ProblemType.UNKNOWN_JOB, f"{job_id} was deleted meanwhile") from None
        if not record.has_steps:
            self._poke()

    async def latest(self, record: JobRecord) -> LatestStep | None:
        """The newest step that every rank reported."""
        if not record.has_steps:
            return None
        ranks = _ranks(record)
        step = await self._steps.newest_complete(record.id, ranks)
        if step is None:
            return None
        return _latest(await self._steps.of_step(record.id, step), record.plan.steps if record.plan else None)

    async def page(self, record: JobRecord, after: int, rank: int | None, limit: int) -> StepPage:
        """Stored samples above step `after`.

        While the job runs, steps that are newer than the newest complete one are held back: some rank's part of them
        is still on its way, and a reader that goes on after them would never see it.
        """
        until = None
        if rank is None and not record.state.ended:
            until = await self._steps.newest_complete(record.id, _ranks(record))
            if until is None:
                return StepPage(items=[], next_after=None)
        samples = await self._steps.page(record.id, after, until, rank, limit)
        items = [StoredStep.model_validate(sample.model_dump()) for sample in samples]
        return StepPage(items=items, next_after=items[-1].step if items else None)

    async def overlap(self, job_id: str) -> Overlap:
        """Figures over all stored steps."""
        rows = await self._steps.figures(job_id)
        return await asyncio.to_thread(overlap_of, rows)


def check_steps_are_here(record: JobRecord) -> None:
    """Raises `Problem` if the steps of the job have been archived."""
    if (at := record.steps_archived_at) is not None:
        detail = f"archive/{record.id}.parquet in the service's home has the steps of {record.id} since {at:%Y-%m-%d}"
        raise Problem(ProblemType.STEPS_ARCHIVED, detail)


def parse_reports(body: bytes) -> ReportBatch:
    """Read strict JSON: NaN, Infinity and numbers too large for a double are refused. Raises `Problem`."""
    try:
        return ReportBatch.model_validate(json.loads(body, parse_constant=_refuse, parse_float=_finite))
    except ValidationError as error:
        faults = [
            FieldError(field=".".join(str(part) for part in fault["loc"]) or "body", message=fault["msg"])
            for fault in error.errors()
        ]
    except (ValueError, RecursionError) as error:
        faults = [FieldError(field="body", message=f"not strict JSON: {error}")]
    detail = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
    raise Problem(ProblemType.INVALID_REQUEST, detail, faults)


def _counted_from(first: int, batch: ReportBatch) -> ReportBatch:
    """A run counts its attempts from 0 whenever the job is started; here they go on."""
    if first == 0:
        return batch
    samples = [sample.model_copy(update={"attempt": first + sample.attempt}) for sample in batch.samples]
    plan = batch.plan.model_copy(update={"attempt": first + batch.plan.attempt}) if batch.plan else None
    return batch.model_copy(update={"samples": samples, "plan": plan})


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _ranks(record: JobRecord) -> int:
    """Ranks of an attempt whose plan is not known: as many as there may be, so that no step counts too early."""
    return record.plan.world_size if record.plan else record.spec.workers.max_count


def _latest(samples: list[StepSample], planned: int | None) -> LatestStep:
    def mean(name: str) -> float:
        return float(sum(getattr(sample, name) for sample in samples)) / len(samples)

    losses = [sample.loss for sample in samples if sample.loss is not None]
    looked = [sample for sample in samples if sample.overlapped_ids is not None]
    ids = sum(sample.ids for sample in looked)
    step_ms, comm_ms, exposed_ms = mean("step_ms"), mean("comm_ms"), mean("exposed_ms")
    return LatestStep(
        step=samples[0].step,
        steps=planned,
        rank_count=len(samples),
        samples_per_s=sum(sample.samples for sample in samples) / step_ms * 1000 if step_ms > 0 else None,
        step_ms=step_ms,
        compute_ms=mean("compute_ms"),
        comm_ms=comm_ms,
        exposed_ms=exposed_ms,
        comm_overlap=1 - exposed_ms / comm_ms if comm_ms > 0 else None,
        id_overlap=sum(sample.overlapped_ids or 0 for sample in looked) / ids if ids else None,
        loss=sum(losses) / len(losses) if losses else None,
    )
