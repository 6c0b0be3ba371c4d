"""What the end of a job on Ray means."""

from service.cluster.gateway import RayJob, RayStatus
from service.jobs.stops import what_was_saved, with_more
from service.models import JobState
from service.store.jobs import JobRecord


def verdict(job: JobRecord, seen: RayJob) -> tuple[JobState, str | None]:
    """What an ended Ray job means."""
    ended = status(job, seen)
    if ended is RayStatus.SUCCEEDED:
        return JobState.SUCCEEDED, None
    if ended is RayStatus.STOPPED:
        saved = what_was_saved(job)
        return JobState.STOPPED, saved if job.stop_requested else with_more("stopped through Ray", saved)
    return JobState.FAILED, job.failure.message if job.failure else (seen.message or "Ray says no more than FAILED")


def status(job: JobRecord, seen: RayJob) -> RayStatus:
    """How a job has ended: what Ray says, or what the job was told and has told itself where Ray has not seen it."""
    if not seen.end_unseen or job.failure is not None:
        return seen.status
    if job.stop_requested or job.preempted_by is not None:
        return RayStatus.STOPPED
    return RayStatus.SUCCEEDED if job.result is not None else RayStatus.FAILED
