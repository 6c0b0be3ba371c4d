"""Running totals over the step samples of all ranks: progress while a job runs, and the table at its end."""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from pipeline.report import CollectiveName, Partition
from workers.reports import WARMUP_NEEDS_MORE_THAN, WARMUP_STEPS, StepSample

_MAX_INCOMPLETE = 10_000


@dataclass(frozen=True)
class Progress:
    """The newest step that every rank of its attempt has reported.

    `step` counts from 1; `samples_per_s` is over all `ranks`, and leaves out what happens between steps.
    """

    attempt: int
    ranks: int
    step: int
    loss: float | None
    step_ms: float
    samples_per_s: float
    comm_overlap: float | None


@dataclass
class Times:
    """Sums over rank-steps, in milliseconds and bytes."""

    ms: float = 0.0
    exposed_ms: float = 0.0
    bytes_sent: int = 0

    @property
    def comm_overlap(self) -> float | None:
        """The hidden share, 0 to 1; None if nothing was sent."""
        return 1 - self.exposed_ms / self.ms if self.ms > 0 else None

    def merge(self, other: "Times") -> None:
        """Add the sums of another."""
        self.ms += other.ms
        self.exposed_ms += other.exposed_ms
        self.bytes_sent += other.bytes_sent


@dataclass
class Totals:
    """Sums over `rank_steps` steps of single ranks."""

    rank_steps: int = 0
    step_ms: float = 0.0
    compute_ms: float = 0.0
    ids: int = 0
    overlapped_ids: int | None = 0
    comm: Times = field(default_factory=Times)
    collectives: dict[tuple[CollectiveName, Partition | None], Times] = field(
        default_factory=lambda: defaultdict(Times)
    )

    def add(self, sample: StepSample) -> None:
        """Add one step of one rank."""
        self.rank_steps += 1
        self.step_ms += sample.step_ms
        self.compute_ms += sample.compute_ms
        self.ids += sample.ids
        known = self.overlapped_ids is not None and sample.overlapped_ids is not None
        self.overlapped_ids = (self.overlapped_ids or 0) + (sample.overlapped_ids or 0) if known else None
        self.comm.ms += sample.comm_ms
        self.comm.exposed_ms += sample.exposed_ms
        for report in sample.collectives:
            times = self.collectives[report.name, report.partition]
            times.ms += report.ms
            times.exposed_ms += report.exposed_ms
            times.bytes_sent += report.bytes_sent
            self.comm.bytes_sent += report.bytes_sent

    def merge(self, other: "Totals") -> None:
        """Add the sums over other rank-steps."""
        self.rank_steps += other.rank_steps
        self.step_ms += other.step_ms
        self.compute_ms += other.compute_ms
        self.ids += other.ids
        known = self.overlapped_ids is not None and other.overlapped_ids is not None
        self.overlapped_ids = (self.overlapped_ids or 0) + (other.overlapped_ids or 0) if known else None
        self.comm.merge(other.comm)
        for kind, times in other.collectives.items():
            self.collectives[kind].merge(times)


@dataclass(frozen=True)
class Summary:
    """What all ranks measured. The first `warmup_steps` steps of every attempt are left out."""

    totals: Totals
    warmup_steps: int
    first_loss: float | None
    last_loss: float | None


class Tally:
    """Takes samples in any order between ranks; keeps sums, and only the steps that some rank has yet to report."""

    def __init__(self) -> None:
        self._all, self._warm = Totals(), Totals()
        self._incomplete: dict[tuple[int, int], list[StepSample]] = {}
        self._recent: deque[tuple[int, float]] = deque(maxlen=20)
        self._progress: Progress | None = None
        self._first_loss: float | None = None
        self._first_step: dict[int, int] = {}
        self._steps = 0

    @property
    def progress(self) -> Progress | None:
        """None before the first step is complete."""
        return self._progress

    def first_step(self, attempt: int) -> int | None:
        """The step with which an attempt began; None before its first sample."""
        return self._first_step.get(attempt)

    def add(self, samples: list[StepSample], world_size: int | None) -> None:
        """Add samples of one rank in an attempt with `world_size` ranks; while that is None, no step is complete."""
        for sample in samples:
            self._all.add(sample)
            first = self._first_step.setdefault(sample.attempt, sample.step)
            if sample.step >= first + WARMUP_STEPS:
                self._warm.add(sample)
            self._steps = max(self._steps, sample.step + 1)
            key = (sample.attempt, sample.step)
            together = self._incomplete.setdefault(key, [])
            together.append(sample)
            if len(together) == world_size:
                self._complete(together)
                # Samples can be dropped on the way, so some steps never become complete: forget the older ones.
                self._incomplete = {other: rest for other, rest in self._incomplete.items() if other > key}
            elif len(self._incomplete) > _MAX_INCOMPLETE:
                # A rank that reports nothing any more must not fill the memory with what the others report.
                del self._incomplete[min(self._incomplete)]

    def summary(self) -> Summary:
        """The totals so far."""
        warmup = WARMUP_STEPS if self._steps > WARMUP_NEEDS_MORE_THAN else 0
        totals = self._warm if warmup else self._all
        last = self._progress.loss if self._progress else None
        return Summary(totals, warmup, self._first_loss, last)

    def snapshot(self) -> "Tally":
        """A copy without the steps that some rank has yet to report."""
        kept = Tally()
        kept.recall(self)
        return kept

    def recall(self, earlier: "Tally") -> None:
        """Add what an earlier tally of the same run, which is lost, had counted."""
        self._all.merge(earlier._all)
        self._warm.merge(earlier._warm)
        self._first_step |= earlier._first_step
        self._steps = max(self._steps, earlier._steps)
        self._progress = self._progress or earlier._progress
        self._first_loss = self._first_loss if earlier._first_loss is None else earlier._first_loss

    def _complete(self, samples: list[StepSample]) -> None:
        count = len(samples)
        attempt = samples[0].attempt
        if self._progress is not None and attempt != self._progress.attempt:
            self._recent.clear()
        losses = [sample.loss for sample in samples if sample.loss is not None]
        loss = sum(losses) / count if len(losses) == count else None
        self._recent.append((sum(sample.samples for sample in samples), sum(s.step_ms for s in samples) / count))
        step_ms = sum(ms for _, ms in self._recent) / len(self._recent)
        comm = Times(sum(sample.comm_ms for sample in samples), sum(sample.exposed_ms for sample in samples))
        self._progress = Progress(
            attempt=attempt,
            ranks=count,
            step=samples[0].step + 1,
            loss=loss,
            step_ms=step_ms,
            samples_per_s=1e3 * sum(n for n, _ in self._recent) / max(1e-9, step_ms * len(self._recent)),
            comm_overlap=comm.comm_overlap,
        )
        if samples[0].step == 0:
            self._first_loss = loss
