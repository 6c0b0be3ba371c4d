"""Reports that wait for delivery, and an account of every sample that will never be delivered."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from workers.reports import JobEnd, JobFailure, JobPlan, JobResult, JobStop, ReportBatch, StepSample


@dataclass(frozen=True)
class Account:
    """One rank's samples in one attempt: how many it has recorded, and how many of those came here."""

    recorded: int = 0
    arrived: int = 0

    @property
    def missing(self) -> int:
        """Samples that were given up by the rank, or lost on the way."""
        return max(0, self.recorded - self.arrived)


class Outbox:
    """Reports that wait for delivery. Beyond `capacity` samples the oldest are given up, and counted.

    With `follows` it takes the place of one that was lost, and counts nothing until `recall` has said what that knew:
    everything that the ranks recorded before would seem to be missing.
    """

    def __init__(self, capacity: int = 50_000, *, follows: bool = False) -> None:
        self._capacity = capacity
        self._samples: deque[StepSample] = deque()
        self._taken: list[StepSample] = []
        self._plan: JobPlan | None = None
        self._end: JobEnd | None = None
        self._accounts: dict[tuple[int, int], Account] = {}
        self._given_up = 0
        self._dropped_told = 0
        self._open, self._counts = True, not follows

    @property
    def dropped(self) -> int:
        """Samples that will not be delivered: given up by the ranks, lost on the way, or given up here."""
        if not self._counts:
            return 0
        return sum(account.missing for account in self._accounts.values()) + self._given_up

    @property
    def given_up(self) -> int:
        """Samples that came here and were given up."""
        return self._given_up

    @property
    def waiting(self) -> int:
        """Samples that wait."""
        return len(self._samples)

    def add_samples(self, rank: int, attempt: int, samples: list[StepSample], recorded: int) -> None:
        """Take samples of a rank, and the number that it has recorded in this attempt up to these."""
        account = self._accounts.get((attempt, rank), Account())
        recorded = max(account.recorded, recorded)
        self._accounts[attempt, rank] = Account(recorded, account.arrived + len(samples))
        if not self._open:
            return
        self._samples.extend(samples)
        while len(self._samples) > self._capacity:
            self._samples.popleft()
            self._given_up += 1

    def add(self, report: JobPlan | JobEnd) -> None:
        """Take a plan, or what the run tells last."""
        if isinstance(report, JobPlan):
            self._plan = report
        else:
            self._end = report

    def close(self) -> None:
        """Keep no reports from now on: nobody wants them."""
        self._open = False
        self._samples.clear()
        self._taken = []

    def give_up(self, batch: ReportBatch) -> None:
        """Count the samples of a batch that will not be delivered."""
        self._given_up += len(batch.samples)
        self._taken = []

    def accounts(self) -> dict[tuple[int, int], Account]:
        """The account of every attempt and rank, as it stands if what is not yet delivered gets lost."""
        undelivered = Counter((sample.attempt, sample.rank) for sample in (*self._samples, *self._taken))
        return {
            key: Account(account.recorded, account.arrived - undelivered[key])
            for key, account in self._accounts.items()
        }

    def recall(self, accounts: Mapping[tuple[int, int], Account], given_up: int) -> None:
        """Add what earlier outboxes of the job, which are lost, had delivered and given up, and count from now on."""
        self._counts = True
        for key, earlier in accounts.items():
            own = self._accounts.get(key, Account())
            self._accounts[key] = Account(max(own.recorded, earlier.recorded), own.arrived + earlier.arrived)
        self._given_up += given_up

    def take(self, limit: int) -> ReportBatch | None:
        """The next batch, with `limit` samples at most; None if there is nothing to tell.

        To take another one says that the one before was delivered, unless it was given up.
        """
        self._taken = []
        dropped = self.dropped
        if not self._open:
            return None
        if not (self._samples or self._plan or self._end) and dropped == self._dropped_told:
            return None
        self._taken = [self._samples.popleft() for _ in range(min(limit, len(self._samples)))]
        # The end must not overtake the steps that led to it.
        end = None if self._samples else self._end
        batch = ReportBatch(
            samples=self._taken,
            dropped=dropped,
            plan=self._plan,
            result=end if isinstance(end, JobResult) else None,
            failure=end if isinstance(end, JobFailure) else None,
            stop=end if isinstance(end, JobStop) else None,
        )
        self._dropped_told, self._plan = dropped, None
        if end is not None:
            self._end = None
        return batch
