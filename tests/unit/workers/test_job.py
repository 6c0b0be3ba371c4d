"""The job file: what it accepts, and every message that a wrong one gets."""

from pathlib import Path
from typing import Any

import pytest

from workers.job import InvalidJob, JobSpec, ScheduleName, load_job, parse_job, read_job, read_json


def problems(raw: object) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        parse_job(raw)
    return caught.value.problems


def test_a_name_is_all_that_a_job_needs() -> None:
    job = parse_job({"name": "tiny"})
    assert job.training.schedule is ScheduleName.PRIORITIZED
    assert job.workers.count == 2
    assert job.data.source == "movielens-100k"


def test_the_example_is_valid() -> None:
    example = Path(__file__).parents[3] / "examples" / "movielens.yaml"
    assert load_job(example).name == "movielens"


def test_json_is_read_like_yaml() -> None:
    assert read_job('{"name": "tiny"}') == read_job("name: tiny")


def test_a_job_survives_the_way_to_a_worker() -> None:
    job = parse_job({"name": "tiny", "model": {"params": {"hidden": [8]}}})
    assert JobSpec.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"name": "a", "trainning": {}}, "trainning: unknown field; did you mean 'training'?"),
        (
            {"name": "a", "training": {"batchsize": 3}},
            "training.batchsize: unknown field; did you mean 'batch_size'?",
        ),
        (
            {"name": "a", "retries": {"zzz": 1}},
            "retries.zzz: unknown field; known fields: max",
        ),
        (
            {"name": "a", "training": {"sparse_optimizer": {"learning_rate": 1}}},
            "training.sparse_optimizer.learning_rate: unknown field; known fields: name, lr",
        ),
        ({}, "name: Field required"),
        ({"name": "No Spaces"}, "name: String should match pattern '^[a-z0-9][a-z0-9-]{0,62}$' (got \"No Spaces\")"),
        (
            {"name": "a", "training": {"batch_size": 0}},
            "training.batch_size: Input should be greater than or equal to 1 (got 0)",
        ),
        (
            {"name": "a", "training": {"schedule": "fast"}},
            "training.schedule: Input should be 'sync', 'sparse_dist' or 'prioritized' (got \"fast\")",
        ),
        (
            {"name": "a", "workers": {"count": {"min": 3, "max": 2}}},
            'workers.count: max must not be less than min (3) (got {"min": 3, "max": 2})',
        ),
        (
            {"name": "a", "model": {"factory": "no_colon"}},
            "model.factory: String should match pattern '^[A-Za-z_][\\w.]*:[A-Za-z_]\\w*$' (got \"no_colon\")",
        ),
        (
            {"name": "a", "data": {"columns": {"label": "y", "ids": ["u"], "sequence": ["h"]}}},
            "data.columns.sequence: unknown field; did you mean 'sequences'?",
        ),
        ({"name": "a", "data": {"columns": {"ids": ["u"]}}}, "data.columns.label: Field required"),
        (
            {"name": "a", "data": {"columns": {"label": "y", "ids": ["y"]}}},
            'data.columns: column \'y\' stands there twice; name it once (got {"label": "y", "ids": ["y"]})',
        ),
        (
            {"name": "a", "data": {"columns": {"label": "y"}}},
            'data.columns: no column has ids to look up; name at least one in ids or sequences (got {"label": "y"})',
        ),
        ([1], "job file: expected a mapping of fields, got list"),
        (None, "job file: expected a mapping of fields, got NoneType"),
    ],
)
def test_a_fault_is_named_with_its_field_and_value(raw: Any, problem: str) -> None:
    assert problems(raw) == [problem]


def test_a_job_that_was_kept_without_columns_is_read() -> None:
    assert parse_job({"name": "a", "data": {"columns": {}}}).data.columns is None


def test_nccl_without_gpus_is_refused() -> None:
    (problem,) = problems({"name": "a", "workers": {"backend": "nccl"}})
    assert problem.startswith("workers: backend nccl needs gpus: 1 or more per worker; use backend: gloo on CPUs")


def test_all_faults_are_named_at_once() -> None:
    assert len(problems({"nam": "a", "training": {"epochs": -1}})) == 3


def test_text_that_is_no_yaml_is_refused() -> None:
    with pytest.raises(InvalidJob, match="job file: not valid YAML or JSON"):
        read_job("name: [")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name: a\nmodel: {params: {x: " + "[" * 5_000 + "]" * 5_000 + "}}", "nested too deep"),
        ("[" * 60_000, "nested too deep"),
        ("name: a\nmodel: {params: {day: 2020-13-45}}", "month must be in 1..12"),
        ("name: a\nqueue: {priority: " + "1" * 5_000 + "}", "digits"),
        ("name: a\nname: b", "field 'name' stands there twice"),
        ("name: a\nmodel: {params: {x: 1, x: 2}}", "field 'x' stands there twice"),
        ('{"name": "a", "name": "b"}', "field 'name' stands there twice"),
    ],
)
def test_text_that_readers_stumble_over_is_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidJob, match="job file: not valid YAML or JSON: ") as caught:
        read_job(text)
    assert fault in str(caught.value)


def test_yaml_that_takes_over_a_mapping_may_change_a_field_of_it() -> None:
    job = read_job("name: a\nmodel: {params: &x {k: 1, l: 1}}\ndata: {params: {<<: *x, l: 3}}\n")
    assert job.data.params == {"k": 1, "l": 3}


def test_json_that_is_no_yaml_is_read() -> None:
    assert read_job('{\n\t"name": "a"\n}').name == "a"
    assert read_job('{"name": "a", "model": {"params": {"x": "\x7f"}}}').model.params == {"x": "\x7f"}


@pytest.mark.parametrize(
    ("raw", "field"),
    [({"queue": {"priority": 10**30}}, "queue.priority"), ({"training": {"seed": 2**53}}, "training.seed")],
)
def test_whole_numbers_that_nothing_can_store_are_refused(raw: dict[str, Any], field: str) -> None:
    (problem,) = problems({"name": "a", **raw})
    assert problem.startswith(f"{field}: Input should be less than or equal to ")


def test_field_names_are_strings() -> None:
    assert problems({"name": "a", "model": {"params": {"x": {1: 2}}}}) == [
        "model.params.x: the field name 1 has no place in JSON; quote it"
    ]


def test_a_file_that_cannot_be_a_job_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="is larger than 65536 bytes"):
        load_job(Path("/dev/zero"))
    (tmp_path / "job").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidJob, match="cannot read"):
        load_job(tmp_path / "job")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"job file: cannot read .*none\.yaml"):
        load_job(tmp_path / "none.yaml")


def test_a_range_of_workers_is_an_elastic_group() -> None:
    workers = read_job("name: a\nworkers: {count: {min: 1, max: 4}}").workers
    assert (workers.is_elastic, workers.min_count, workers.max_count) == (True, 1, 4)
    assert JobSpec.model_validate_json(JobSpec(name="a", workers=workers).model_dump_json()).workers == workers
    fixed = read_job("name: a\nworkers: {count: 3}").workers
    assert (fixed.is_elastic, fixed.min_count, fixed.max_count) == (False, 3, 3)


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        (0, "workers.count: Input should be greater than or equal to 1 (got 0)"),
        ("two", "workers.count: Input should be a valid integer"),
        (None, "workers.count: Input should be a valid integer"),
        ({"min": 0, "max": 2}, "workers.count: min: Input should be greater than or equal to 1"),
        ({"min": 1}, "workers.count: max: Field required"),
        ({"min": 1, "mx": 2, "max": 2}, "workers.count: mx: unknown field; known fields: min, max, resize_every_s"),
    ],
)
def test_a_count_that_is_wrong_has_one_problem(count: object, problem: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_job({"name": "a", "workers": {"count": count}})
    (found,) = caught.value.problems
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"name": "\\ud800"}', "name: half a character"),
        ('{"name": "tiny", "model": {"params": {"a": ["\\udfff"]}}}', "model.params.a.0: half a character"),
        ('{"name": "tiny", "model": {"params": {"\\ud800": 1}}}', "model.params: the field name '\\ud800' has half"),
    ],
)
def test_half_a_character_is_no_text(text: str, fault: str) -> None:
    for read in (read_json, read_job):
        with pytest.raises(InvalidJob) as caught:
            read(text)
        assert fault in str(caught.value)
    assert read_json('{"name": "tiny", "model": {"params": {"a": "\\ud83d\\ude00"}}}').model.params == {
        "a": "\U0001f600"
    }


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", True, "Input should be a valid integer"),
        ("epochs", "2", "Input should be a valid integer"),
        ("max_steps", False, "Input should be a valid integer"),
        ("dense_lr", "0.1", "Input should be a valid number"),
        ("dedup", 1, "Input should be true or false"),
        ("dedup", "yes", "Input should be true or false"),
    ],
)
def test_nothing_is_taken_for_what_it_is_not(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidJob, match=rf"training\.{field}: {message}"):
        parse_job({"name": "tiny", "training": {field: value}})


@pytest.mark.parametrize("count", [True, "2"])
def test_a_number_of_workers_is_a_number(count: object) -> None:
    with pytest.raises(InvalidJob, match=r"workers\.count: Input should be a valid integer"):
        parse_job({"name": "tiny", "workers": {"count": count}})


@pytest.mark.parametrize(("written", "value"), [("1e-3", 0.001), ("1E3", 1000.0), ("2.5e1", 25.0), ("1.0e-2", 0.01)])
def test_powers_of_ten_in_yaml_are_numbers(written: str, value: float) -> None:
    assert read_job(f"name: tiny\ntraining: {{dense_lr: {written}}}\n").training.dense_lr == value


def test_what_only_looks_like_a_power_of_ten_stays_text() -> None:
    assert read_job("name: tiny\nmodel: {params: {version: 1e, hash: e12, id: 1e5x}}\n").model.params == {
        "version": "1e",
        "hash": "e12",
        "id": "1e5x",
    }


FIGURES = "workers.count workers.cpus workers.gpus workers.hang_timeout_s queue.deadline_s checkpoint.timeout_s"


@pytest.mark.parametrize("figure", FIGURES.split())
@pytest.mark.parametrize("value", [10**10, 1e308])
def test_figures_that_nobody_can_reckon_with_are_refused(figure: str, value: float) -> None:
    section, field = figure.split(".")
    with pytest.raises(InvalidJob, match=rf"{section}\.{field}: "):
        parse_job({"name": "tiny", section: {field: value}})
