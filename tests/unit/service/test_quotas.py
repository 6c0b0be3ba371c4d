"""The file of quotas: what it says, and what is wrong with it."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.jobs.quotas import InvalidQuotasError, Quota, Quotas, Usage, read_quotas
from service.settings import Settings, faults_of
from workers.job import WorkersSpec


def written(folder: Path, text: str) -> Path:
    path = folder / "quotas.yaml"
    path.write_text(text)
    return path


def test_without_a_file_nothing_is_limited() -> None:
    quotas = read_quotas(None)
    assert quotas.never_allows("ads", WorkersSpec(count=1000, gpus=8)) is None
    assert quotas.exceeded_by("ads", WorkersSpec(count=1000), Usage(jobs=1000)) is None


def test_a_project_that_is_named_has_its_own_limits_only(tmp_path: Path) -> None:
    quotas = read_quotas(written(tmp_path, 'ads: {jobs: 4, cpus: 2.5}\n"*": {gpus: 2}\n'))
    assert quotas == Quotas({"ads": Quota(jobs=4, cpus=2.5), "*": Quota(gpus=2)})
    assert quotas.of("ads").gpus is None
    assert quotas.of("feed") == Quota(gpus=2)


def test_fractions_add_up() -> None:
    quotas, workers = Quotas({"ads": Quota(cpus=0.3)}), WorkersSpec(count=1, cpus=0.1)
    held = Usage().plus(workers).plus(workers)
    assert quotas.exceeded_by("ads", workers, held) is None
    assert quotas.exceeded_by("ads", workers, held.plus(workers)) is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 'expected projects with limits, such as "ads: {gpus: 8}"'),
        ("- ads", "expected projects with limits"),
        ("ads: 4", "ads: expected limits, such as {jobs: 4, cpus: 32, gpus: 8}"),
        ("ads: {gpu: 4}", "ads.gpu: unknown limit; known are jobs, cpus, gpus"),
        ("ads: {gpus: -1}", "ads.gpus: Input should be greater than or equal to 0"),
        ("ads: {gpus: '8'}", "ads.gpus: Input should be a valid"),
        ("ads: {jobs: true}", "ads.jobs: Input should be a valid integer"),
        ("ads: {jobs: 1.5}", "ads.jobs: Input should be a valid integer"),
        ("ads: {cpus: .nan}", "ads.cpus"),
        ("ads: {cpus: .inf}", "ads.cpus"),
        ("Ads: {jobs: 4}", "'Ads' is no project: small letters, digits and -"),
        ("7: {jobs: 4}", "7 is no project"),
        ("ads: {jobs: 1}\nads: {jobs: 2}", "'ads' stands there twice"),
        ("ads: {jobs: 1, jobs: 2}", "'jobs' stands there twice"),
        ("ads: {jobs: 1", "cannot be read"),
        ("? [a]\n: {jobs: 1}", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidQuotasError) as raised:
        read_quotas(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert words in str(raised.value)


def test_the_service_does_not_start_with_a_file_that_it_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(quotas_file=written(tmp_path, "ads: {gpu: 4}"))
    assert "quotas.yaml: ads.gpu: unknown limit" in faults_of(raised.value)
    with pytest.raises(ValidationError) as raised:
        Settings(quotas_file=tmp_path / "missing.yaml")
    assert "missing.yaml: cannot be read: " in faults_of(raised.value)
