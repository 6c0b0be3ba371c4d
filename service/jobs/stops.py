"""What there is to say of a job that was told to stop: what became of the steps that it had done."""

from service.store.jobs import JobRecord


def what_was_saved(job: JobRecord) -> str | None:
    """For example `saved at step 120`; None if there were no steps."""
    if job.stop is not None:
        return job.stop.in_words()
    return "it did not say whether it saved" if job.has_steps else None


def with_more(reason: str, more: str | None) -> str:
    """A reason and what else there is to say, if anything."""
    return reason if more is None else f"{reason}; {more}"


def before_it_started(job: JobRecord) -> str:
    """Why nothing was saved of a job that never ran, or not again."""
    again = job.requeued is not None or job.first_attempt > 0
    return f"stopped before it started{' again' if again else ''}"
