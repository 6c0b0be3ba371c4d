"""The mutants: single faults, each with the check that must catch it. `docs/mutants.md` is this table.

Not in it, since the result stays the same: two lanes exchanged, priority and background traffic exchanged, rows taken
for shared that are not, a fence more than needed. They cost time only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from pipeline import schedules
from pipeline.checks import check
from pipeline.schedule import Schedule, Stage
from tests.integration.pipeline.mutants import code_mutations as code
from tests.integration.pipeline.mutants import schedule_mutations as table
from tests.integration.pipeline.mutants.catchers import Catcher, Mutate
from tests.integration.pipeline.mutants.schedule_mutations import Fence
from tests.unit.pipeline.fences import starts_a_collective


class Part(StrEnum):
    """Which part of the pipeline a mutant damages; the sections of the document."""

    NEEDS = "A need dropped"
    ORDER = "A stage at the wrong time"
    FENCES = "A fence weakened"
    RUNTIME = "The runtimes"
    GRADIENTS = "Gradients on their way to the tables"
    EMBEDDINGS = "Embeddings on their way to the trainers"
    OVERLAP = "What two batches share"
    TIME = "Learning rates and iterations"
    FLUSH = "Flush"
    DENSE = "The dense part"


@dataclass(frozen=True)
class Mutant:
    """One fault. `subject` is what it damages, `change` what it does to it."""

    part: Part
    subject: str
    change: str
    mutate: Mutate
    caught_by: Catcher
    schedule: str = "prioritized"

    @property
    def name(self) -> str:
        return f"{self.schedule}: {self.subject}: {self.change}"


def dropped_needs() -> Iterator[Mutant]:
    """Every need of every schedule. Needs that order accesses to table rows are missed by the checks, the others by
    the stage that reads the value.
    """
    for schedule in schedules.ALL.values():
        for stage in schedule.stages:
            for need in stage.needs:
                mutate = partial(table.drop_need, schedule.name, stage.name, need)
                with mutate():
                    ordering = bool(check(schedules.ALL[schedule.name]))
                catcher = Catcher.CHECKS if ordering else Catcher.DECLARED_NEEDS
                yield Mutant(Part.NEEDS, stage.name, str(need), mutate, catcher, schedule.name)


def weakened_fences() -> Iterator[Mutant]:
    """The wait of every need that crosses lanes; every lane on which an output is recorded; and, on the host, every
    transfer. One recording per lane is enough, and so is one wait of the host, so these are taken from all readers.
    """
    for schedule in schedules.ALL.values():
        for producer in schedule.stages:
            readers = [stage for stage in schedule.stages if producer.name in {need.stage for need in stage.needs}]
            foreign = [stage for stage in readers if stage.lane is not producer.lane]
            for stage in foreign:
                yield _weakened(schedule, producer, [stage], Fence.EVENT)
            for lane in dict.fromkeys(stage.lane for stage in foreign):
                yield _weakened(schedule, producer, [stage for stage in foreign if stage.lane is lane], Fence.RECORD)
            if starts_a_collective(producer):
                yield _weakened(schedule, producer, readers, Fence.TRANSFER)


def _weakened(schedule: Schedule, producer: Stage, readers: list[Stage], what: Fence) -> Mutant:
    names = [stage.name for stage in readers]
    change = "for all" if what is Fence.TRANSFER else f"for {' and '.join(names)}"
    mutate = partial(table.weaken_fence, producer.name, frozenset(names), what)
    catcher = Catcher.CPU_WAITS if what is Fence.TRANSFER else Catcher.CUDA_FENCES
    return Mutant(Part.FENCES, f"{producer.name}, without {what}", change, mutate, catcher, schedule.name)


def _order() -> Iterator[Mutant]:
    skew, below, without = table.move_skew, table.move_below, table.leave_out
    for schedule, stage, change, mutate in (
        ("prioritized", "nol_apply", "one batch too late", partial(skew, "prioritized", "nol_apply", 2)),
        ("prioritized", "ol_apply", "one batch too late", partial(skew, "prioritized", "ol_apply", 1)),
        ("prioritized", "nol_lookup", "two batches early", partial(skew, "prioritized", "nol_lookup", -2)),
        ("prioritized", "ol_lookup", "one batch early", partial(skew, "prioritized", "ol_lookup", -2)),
        ("prioritized", "nol_lookup", "before nol_apply", partial(below, "prioritized", "nol_lookup", "partition")),
        ("prioritized", "ol_apply", "never", partial(without, "prioritized", "ol_apply")),
        ("prioritized", "nol_apply", "never", partial(without, "prioritized", "nol_apply")),
        ("sync", "apply", "one batch too late", partial(skew, "sync", "apply", 1)),
        ("sparse_dist", "apply", "one batch too late", partial(skew, "sparse_dist", "apply", 1)),
        ("sparse_dist", "lookup", "one batch early", partial(skew, "sparse_dist", "lookup", -1)),
    ):
        yield Mutant(Part.ORDER, stage, change, mutate, Catcher.CHECKS, schedule)


def _runtime() -> Iterator[Mutant]:
    for subject, change, mutate, catcher in (
        ("CUDA", "no lane waits for its collectives", code.transfer_left_alone, Catcher.CUDA_FENCES),
        ("CUDA", "a stage counts as done when it begins", code.done_before_the_work, Catcher.CUDA_FENCES),
        ("CUDA", "tensors inside dataclasses are not recorded", code.hidden_tensors_forgotten, Catcher.CUDA_FENCES),
        ("CUDA", "all lanes on one stream", code.everything_on_one_stream, Catcher.CUDA_STREAMS),
        ("CUDA", "two lanes share a stream", code.lanes_share_a_stream, Catcher.CUDA_STREAMS),
        ("CPU", "the host never waits", code.no_wait_on_the_host, Catcher.CPU_WAITS),
        ("executor", "outputs dropped a step early", code.dropped_a_step_early, Catcher.CUDA_FENCES),
    ):
        yield Mutant(Part.RUNTIME, subject, change, mutate, catcher)


def _masks(catcher: Catcher) -> Iterator[tuple[Part, str, str, Mutate, Catcher]]:
    for change, mutate in (
        ("OL taken for NOL and the reverse", code.masks_inverted),
        ("nothing is found", code.nothing_shared),
    ):
        for subject, forward, backward in (
            ("both masks", True, True),
            ("lookup mask", True, False),
            ("gradient mask", False, True),
        ):
            yield Part.OVERLAP, subject, change, partial(mutate, forward=forward, backward=backward), catcher


def _numbers() -> Iterator[Mutant]:
    two, three = Catcher.TWO_RANKS, Catcher.THREE_RANKS
    rows: tuple[tuple[Part, str, str, Mutate, Catcher], ...] = (
        (Part.GRADIENTS, "division", "gradients not divided", partial(code.no_division, "parted"), two),
        (Part.GRADIENTS, "owner order", "left in wire order", partial(code.no_gradient_permutation, "parted"), two),
        (Part.GRADIENTS, "wire order", "sent in trainer order", code.gradients_in_trainer_order, two),
        (Part.EMBEDDINGS, "trainer order", "left in wire order", code.no_embedding_permutation, two),
        (Part.EMBEDDINGS, "wire order", "sent in owner order", code.rows_in_owner_order, two),
        *_masks(two),
        (Part.OVERLAP, "both masks", "ids compared place by place", code.compared_place_by_place, two),
        (Part.OVERLAP, "masks on the wire", "taken for each other", code.masks_in_wrong_order, two),
        (Part.OVERLAP, "trainer's end", "OL and NOL swapped", code.ends_swapped, Catcher.BOTH_ENDS),
        (Part.OVERLAP, "trainer's end", "OL and NOL swapped", code.ends_swapped, two),
        (Part.TIME, "deferred gradient", "sees the present time", code.gradients_at_present_time, two),
        (Part.TIME, "deferred gradient", "leaves its rate behind", code.rates_not_restored, two),
        (Part.TIME, "lookups", "count as iterations", code.lookups_count_as_iterations, two),
        (Part.TIME, "batches", "do not count as iterations", code.iterations_not_counted, two),
        (Part.FLUSH, "flush", "does nothing", code.no_flush, two),
        *(
            (Part.FLUSH, stage, "left out by flush", partial(code.flush_skips, stage), two)
            for stage in ("nol_gradient_a2a", "nol_apply")
        ),
        (Part.FLUSH, "flush", "takes note of what is late and does not do it", code.flush_forgets, two),
        (Part.FLUSH, "flush", "done twice", code.flush_repeats, two),
        (Part.FLUSH, "loaded weights", "lookups made before are kept", code.stale_lookups_after_loading, two),
        (Part.DENSE, "optimizer", "left out", code.dense_step_left_out, two),
        (Part.DENSE, "weight gradients", "left out", code.weight_gradients_left_out, two),
        (Part.DENSE, "weight gradients", "computed twice", code.weight_gradients_twice, two),
        (Part.DENSE, "weight gradients", "of the bias left out", code.bias_gradients_left_out, two),
        (Part.DENSE, "weight gradients", "before DDP knows its buckets", code.split_too_early, three),
        (Part.DENSE, "dense all-reduce", "sum instead of mean", code.dense_gradients_summed, two),
        (Part.DENSE, "dense all-reduce", "divides instead of multiplying", code.dense_gradients_divided, three),
    )
    for part, subject, change, mutate, catcher in rows:
        yield Mutant(part, subject, change, mutate, catcher)
    for name in ("sync", "sparse_dist"):
        for subject, change, mutate in (
            ("division", "gradients not divided", partial(code.no_division, "whole")),
            ("owner order", "left in wire order", partial(code.no_gradient_permutation, "whole")),
        ):
            yield Mutant(Part.GRADIENTS, subject, change, mutate, two, name)


MUTANTS: tuple[Mutant, ...] = (*dropped_needs(), *_order(), *weakened_fences(), *_runtime(), *_numbers())
