"""Sources: how samples are cut and shared out, what MovieLens is read as, what synthetic data promises."""

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.streams import batches, lists
from workers.job import DataSpec, InvalidJob
from workers.sources import check, open_source
from workers.sources.schema import Consumed, Ragged, Samples, Source
from workers.sources.split import by_epoch, holdout_shares, padded, steps_left, train_shares

HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
# In time order: ann 10, bob 10, ann 20, ann 30, bob 30, ann 10 again, ...
ROWS = [
    ("ann", 10, 5, 100),
    ("ann", 30, 3, 104),
    ("bob", 10, 1, 101),
    ("ann", 20, 4, 102),
    ("bob", 30, 4, 105),
    ("ann", 10, 2, 106),
    ("cy", 20, 5, 107),
    ("ann", 20, 5, 108),
    ("bob", 20, 4, 109),
    ("cy", 10, 1, 110),
]
USERS = {"ann": 1, "bob": 2, "cy": 3}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.inter"
    path.write_text(HEADER + "".join(f"{USERS[user]}\t{item}\t{rating}\t{time}\n" for user, item, rating, time in ROWS))
    return path


def movielens(file: Path, **params: Any) -> Source:
    return open_source(DataSpec(path=str(file), params=params))


class TestSplit:
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4])
    @pytest.mark.parametrize("samples", [0, 1, 7, 24, 25, 95, 96, 97])
    def test_every_rank_gets_equally_many_and_no_sample_comes_twice(self, samples: int, world_size: int) -> None:
        ranks = [train_shares(samples, 0, rank, world_size, 8) for rank in range(world_size)]
        shares = list(zip(*ranks, strict=True))
        taken = [index for step in shares for share in step for index in range(samples)[share]]
        assert len(shares) == steps_left(samples, 0, world_size, 8)
        assert all(len({len(range(samples)[share]) for share in step}) == 1 for step in shares)
        assert taken == list(range(len(taken)))
        assert samples - len(taken) < world_size

    @given(
        samples=st.integers(1, 60),
        epochs=st.integers(1, 4),
        groups=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 6)), max_size=5),
    )
    def test_worker_groups_of_any_size_go_on_where_the_one_before_ended(
        self, samples: int, epochs: int, groups: list[tuple[int, int, int]]
    ) -> None:
        """Every group of (world size, batch size, steps) trains some steps; the last one goes on to the end."""
        trained: list[tuple[int, int]] = []
        for world_size, batch_size, steps in [*groups, (3, 4, 10_000)]:
            taken = len(trained)
            ranks = [train_shares(epochs * samples, taken, rank, world_size, batch_size) for rank in range(world_size)]
            for step in islice(zip(*ranks, strict=True), steps):
                for share in step:
                    for epoch, places in by_epoch(share, samples):
                        trained += [(epoch, place) for place in range(samples)[places]]
        stream = [(epoch, place) for epoch in range(epochs) for place in range(samples)]
        assert trained == stream[: len(trained)]
        assert len(stream) - len(trained) < 3

    def test_a_job_that_is_trained_to_its_end_has_no_steps_left(self) -> None:
        assert steps_left(20, 18, 3, 4) == steps_left(20, 24, 3, 4) == steps_left(20, 40, 3, 4) == 0
        assert steps_left(20, 18, 2, 4) == 1

    @pytest.mark.parametrize("world_size", [1, 2, 4])
    @pytest.mark.parametrize("samples", [0, 1, 8, 9, 33])
    def test_every_held_out_sample_counts_once_in_equally_many_batches(self, samples: int, world_size: int) -> None:
        shares = [list(holdout_shares(samples, rank, world_size, 8)) for rank in range(world_size)]
        assert len({len(share) for share in shares}) == 1
        counted = [index for share in shares for places in share for index in range(samples)[places]]
        assert counted == list(range(samples))

    def test_a_batch_is_filled_up_with_the_first_place(self) -> None:
        assert padded(slice(5, 8), 5).tolist() == [5, 6, 7, 0, 0]
        assert padded(slice(9, 9), 2).tolist() == [0, 0]


class TestMovieLens:
    def test_time_order_and_labels(self, file: Path) -> None:
        (samples,) = batches(movielens(file), size=100)
        assert samples.ids["user"].values.tolist() == [0, 1, 0, 0, 1, 0, 2, 0, 1]
        assert samples.ids["item"].values.tolist() == [0, 0, 1, 2, 2, 0, 1, 1, 1]
        assert samples.labels.tolist() == [1, 0, 1, 0, 1, 0, 1, 1, 1]

    def test_a_history_holds_only_what_the_user_rated_before(self, file: Path) -> None:
        (samples,) = batches(movielens(file, history=3), size=100)
        assert lists(samples, "history") == [[], [], [0], [0, 1], [0], [0, 1, 2], [], [1, 2, 0], [0, 2]]

    def test_the_latest_interactions_are_held_out_with_their_popularity_in_training(self, file: Path) -> None:
        source = movielens(file, holdout=0.2)
        (held_out,) = source.holdout(0, 1, 4)
        assert held_out.valid == 2
        assert held_out.samples.ids["item"].values[:2].tolist() == [1, 0]
        assert lists(held_out.samples, "history")[:2] == [[0, 2], [1]]
        assert held_out.popularity is not None
        np.testing.assert_allclose(held_out.popularity[:2], [1.0, 1.0])
        assert sum(len(samples) for samples in batches(source)) == 8

    def test_ranks_together_train_what_one_rank_trains(self, file: Path) -> None:
        source = movielens(file)
        shares = [batches(source, rank, 2, size=2) for rank in (0, 1)]
        assert len(shares[0]) == len(shares[1]) == source.steps(2, 2, 1)
        together = np.concatenate([np.concatenate([one.labels, two.labels]) for one, two in zip(*shares, strict=True)])
        (alone,) = batches(source, size=100)
        np.testing.assert_array_equal(together, alone.labels[: len(together)])

    def test_a_run_that_starts_later_sees_the_same_batches(self, file: Path) -> None:
        source = open_source(DataSpec(path=str(file), order="shuffled"))
        whole = batches(source, size=2, epochs=3)
        assert len(whole) == source.steps(1, 2, 3) == 14
        for step in range(len(whole) + 1):
            start = Consumed(step, sum(samples.taken for samples in whole[:step]))
            rest = batches(source, size=2, epochs=3, start=start)
            assert len(rest) == source.steps(1, 2, 3, start)
            for one, two in zip(whole[step:], rest, strict=True):
                np.testing.assert_array_equal(one.ids["user"].values, two.ids["user"].values)

    def test_a_step_may_straddle_two_epochs(self, file: Path) -> None:
        source = movielens(file)
        (epoch,) = batches(source, size=9)
        stream = np.concatenate([samples.labels for samples in batches(source, size=5, epochs=2)])
        np.testing.assert_array_equal(stream, np.tile(epoch.labels, 2))

    def test_shuffled_epochs_hold_the_same_samples_in_another_order(self, file: Path) -> None:
        source = open_source(DataSpec(path=str(file), order="shuffled"))
        first, second = batches(source, size=9, epochs=2)
        assert sorted(first.labels) == sorted(second.labels)
        assert first.ids["user"].values.tolist() != second.ids["user"].values.tolist()

    def test_the_whole_of_movielens_is_there(self) -> None:
        source = open_source(DataSpec())
        assert [table.rows for table in source.schema.tables] == [943, 1682]
        assert source.steps(2, 512, 1) == 88

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "has no column 'user_id' in its first line"),
            (HEADER.replace("rating", "stars"), "has no column 'rating' in its first line"),
            (HEADER + "1\t2\t3\t4\n", "holds 1 interactions; at least 2 are needed"),
            (HEADER + "1\t2\tgood\t4\n", "cannot read .* could not convert string 'good'"),
        ],
    )
    def test_a_file_that_is_not_movielens_is_refused(self, file: Path, text: str, problem: str) -> None:
        file.write_text(text)
        with pytest.raises(InvalidJob, match=problem):
            movielens(file)


class TestSynthetic:
    @staticmethod
    def open(**params: Any) -> Source:
        return open_source(DataSpec(source="synthetic", params={"samples": 600, "rows": 3000, **params}))

    @pytest.mark.parametrize("share", [0.0, 0.12, 0.5, 0.9, 1.0])
    def test_the_chosen_share_of_ids_was_in_the_previous_batch(self, share: float) -> None:
        source = self.open(id_overlap=share, ids_per_sample=5)
        ranks = [batches(source, rank, 2, size=50, epochs=2) for rank in (0, 1)]
        ids = [np.concatenate([one.ids["f1"].values, two.ids["f1"].values]) for one, two in zip(*ranks, strict=True)]
        measured = [np.isin(now, before).mean() for before, now in pairwise(ids)]
        assert measured == pytest.approx([share] * len(measured), abs=0.005)

    def test_ids_are_skewed_and_inside_the_table(self) -> None:
        (samples,) = batches(self.open(zipf=1.2), size=600)
        ids = samples.ids["f0"].values
        assert ids.min() >= 0
        assert ids.max() < 3000
        assert np.sort(np.bincount(ids))[-10:].sum() > 0.3 * len(ids)

    def test_samples_may_have_no_ids_at_all(self) -> None:
        (samples,) = batches(self.open(ids_per_sample=2, min_ids_per_sample=0), size=600)
        assert set(samples.ids["f0"].lengths.tolist()) == {0, 1, 2}

    def test_the_seed_makes_the_data(self) -> None:
        one, same, other = (batches(self.open(), seed=seed, size=600)[0].ids["f0"].values for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_a_run_that_starts_later_sees_the_same_batches(self) -> None:
        source = self.open(id_overlap=0.3, dense=2)
        whole = batches(source, rank=1, world_size=2, size=80, epochs=2)
        assert [len(samples) for samples in whole] == [80] * 7 + [40]
        rest = batches(source, rank=1, world_size=2, size=80, epochs=2, start=Consumed(5, 800))
        assert source.steps(2, 80, 2, Consumed(5, 800)) == len(rest) == 3
        for one, two in zip(whole[5:], rest, strict=True):
            np.testing.assert_array_equal(one.ids["f1"].values, two.ids["f1"].values)
            np.testing.assert_array_equal(one.dense, two.dense)

    def test_both_labels_occur(self) -> None:
        (samples,) = batches(self.open(), size=600)
        assert 0.2 < samples.labels.mean() < 0.8


def test_bad_rows_count_as_taken() -> None:
    one = Ragged(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))
    labels = np.ones(1, dtype=np.float32)
    assert Samples(labels, {"f": one}).taken == 1
    assert Samples(labels, {"f": one}, rows=3).taken == 3


class TestCheck:
    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            ({"source": "movielens"}, "data.source: unknown source 'movielens'; use one of movielens-100k, parquet"),
            ({"path": "/nowhere/ml.inter"}, "data.path: no such file: /nowhere/ml.inter"),
            ({"params": {"histroy": 3}}, r"data.params.histroy: unknown field; did you mean 'history'\?"),
            ({"columns": {"label": "x", "ids": ["y"]}}, "data.columns: source 'movielens-100k' has none; leave it out"),
            ({"max_bad_rows": 1}, "data.max_bad_rows: source 'movielens-100k' has none; leave it out"),
            ({"source": "synthetic", "path": "x"}, "data.path: source 'synthetic' reads no file"),
            ({"source": "synthetic", "order": "shuffled"}, "data.order: source 'synthetic' has no order"),
            ({"source": "synthetic", "params": {"rows": 1}}, "data.params.rows: .* greater than or equal to 3"),
            (
                {"source": "synthetic", "params": {"min_ids_per_sample": 1, "id_overlap": 0.5}},
                "data.params: id_overlap needs a fixed number of ids per sample",
            ),
        ],
    )
    def test_a_fault_is_named(self, data: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidJob, match=problem):
            check(DataSpec(**data))

    def test_movielens_that_is_not_installed_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workers.sources.movielens.find_spec", lambda name: None)
        with pytest.raises(InvalidJob, match="not installed; run `make setup`"):
            check(DataSpec())

    def test_a_source_of_ones_own_is_imported_when_it_is_opened(self) -> None:
        path = "workers.sources.movielens:open_source"
        assert open_source(DataSpec(source=path)).steps(1, 90_000, 1) == 1
        with pytest.raises(InvalidJob, match=r"data.source: cannot import 'nowhere.at_all:source'"):
            open_source(DataSpec(source="nowhere.at_all:source"))
