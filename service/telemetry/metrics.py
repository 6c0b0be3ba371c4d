"""Prometheus figures: how many jobs are in each state, and the newest step of every rank of the jobs that are alive."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from service.models import JobState
from workers.reports import StepSample

_RANK = ("job_id", "rank")
_COLLECTIVE = (*_RANK, "collective", "partition")


class _Snapshot(Collector):
    """The figures of one moment; read from the database before, since Prometheus asks synchronously."""

    def __init__(self, counts: Mapping[JobState, int], samples: Sequence[tuple[str, StepSample]]) -> None:
        self._counts = counts
        self._samples = samples

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = GaugeMetricFamily("overlane_jobs", "Jobs in each state", labels=["state"])
        for state, count in self._counts.items():
            jobs.add_metric([state.value], count)
        yield jobs
        yield from self._of_ranks()
        yield from self._of_collectives()

    def _of_ranks(self) -> Iterable[GaugeMetricFamily]:
        step = _gauge("step_ms", "Duration of the newest step", _RANK)
        compute = _gauge("compute_ms", "Compute in the newest step", _RANK)
        comm = _gauge("comm_ms", "Time with a collective in flight in the newest step", _RANK)
        exposed = _gauge("exposed_ms", "Part of comm_ms in which the rank waited", _RANK)
        overlap = _gauge("comm_overlap", "Share of comm_ms that was hidden, 0 to 1", _RANK)
        for job_id, sample in self._samples:
            labels = [job_id, str(sample.rank)]
            step.add_metric(labels, sample.step_ms)
            compute.add_metric(labels, sample.compute_ms)
            comm.add_metric(labels, sample.comm_ms)
            exposed.add_metric(labels, sample.exposed_ms)
            if sample.comm_overlap is not None:
                overlap.add_metric(labels, sample.comm_overlap)
        return step, compute, comm, exposed, overlap

    def _of_collectives(self) -> Iterable[GaugeMetricFamily]:
        comm = _gauge("collective_comm_ms", "Time in flight of one collective in the newest step", _COLLECTIVE)
        exposed = _gauge("collective_exposed_ms", "Part of it in which the rank waited", _COLLECTIVE)
        overlap = _gauge("collective_comm_overlap", "Share of it that was hidden, 0 to 1", _COLLECTIVE)
        for job_id, sample in self._samples:
            for part in sample.collectives:
                labels = [job_id, str(sample.rank), part.name.value, part.partition.value if part.partition else ""]
                comm.add_metric(labels, part.ms)
                exposed.add_metric(labels, part.exposed_ms)
                if part.ms > 0:
                    overlap.add_metric(labels, 1 - part.exposed_ms / part.ms)
        return comm, exposed, overlap


def exposition(counts: Mapping[JobState, int], samples: Sequence[tuple[str, StepSample]]) -> bytes:
    """The text that Prometheus scrapes; `samples` are pairs of job id and newest sample of a rank."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(counts, samples))
    return generate_latest(registry)


def _gauge(name: str, help_text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"overlane_{name}", help_text, labels=labels)
