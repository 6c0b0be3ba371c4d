"""The RayJob manifest holds against KubeRay's own schema, and what it names exists."""

import copy
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy import crd
from workers.job import JobSpec, load_job

MANIFEST = crd.REPO / "deploy/kuberay/movielens-rayjob.yaml"
DOCKERFILE = crd.REPO / "deploy/Dockerfile"


@pytest.fixture
def manifest() -> dict[str, Any]:
    loaded = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    definition = crd.folder() / "ray.io_rayjobs.yaml"
    if not definition.is_file():
        pytest.skip(f"{definition} is not there; set OVERLANE_KUBERAY_CRDS to a folder with KubeRay's CRDs")
    return crd.closed_schema(definition, "v1")


@pytest.fixture
def job(manifest: dict[str, Any]) -> JobSpec:
    return load_job(crd.REPO / job_file(manifest))


def job_file(manifest: dict[str, Any]) -> Path:
    words = shlex.split(manifest["spec"]["entrypoint"])
    assert words[:4] == ["python", "-m", "workers.train", "--job"]
    return Path(words[4])


def pod_specs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_manifest_is_valid(manifest: dict[str, Any], schema: dict[str, Any]) -> None:
    assert manifest["apiVersion"] == "ray.io/v1"
    assert manifest["kind"] == "RayJob"
    assert list(crd.faults(manifest, schema)) == []


def _rename_entrypoint(spec: dict[str, Any]) -> None:
    spec["entryPoint"] = spec.pop("entrypoint")


def _misspell_replicas(spec: dict[str, Any]) -> None:
    group = spec["rayClusterSpec"]["workerGroupSpecs"][0]
    group["replica"] = group.pop("replicas")


def _misspell_container_field(spec: dict[str, Any]) -> None:
    spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"


def _number_in_start_params(spec: dict[str, Any]) -> None:
    spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0


def _unknown_auth_mode(spec: dict[str, Any]) -> None:
    spec["rayClusterSpec"]["authOptions"]["mode"] = "tokens"


def _drop_group_name(spec: dict[str, Any]) -> None:
    del spec["rayClusterSpec"]["workerGroupSpecs"][0]["groupName"]


def _bad_quantity(spec: dict[str, Any]) -> None:
    pod = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    pod["containers"][0]["resources"]["limits"]["memory"] = "4 GB"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (_rename_entrypoint, r"'entryPoint' was unexpected"),
        (_misspell_replicas, r"'replica' was unexpected"),
        (_misspell_container_field, r"'imagePullPolcy' was unexpected"),
        (_number_in_start_params, r"0 is not of type 'string'"),
        (_unknown_auth_mode, r"'tokens' is not one of"),
        (_drop_group_name, r"'groupName' is a required property"),
        (_bad_quantity, r"'4 GB' does not match"),
    ],
)
def test_damaged_manifest_is_rejected(
    manifest: dict[str, Any], schema: dict[str, Any], damage: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    damaged = copy.deepcopy(manifest)
    damage(damaged["spec"])
    found = list(crd.faults(damaged, schema))
    assert len(found) == 1
    assert re.search(complaint, found[0])


def test_job_file_is_in_the_image_and_valid(manifest: dict[str, Any], job: JobSpec) -> None:
    assert job.name == "movielens"
    assert f"COPY {job_file(manifest).parts[0]}/ " in DOCKERFILE.read_text(encoding="utf-8")


def test_workers_fit_one_to_a_pod(manifest: dict[str, Any], job: JobSpec) -> None:
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == job.workers.count
    assert float(group["rayStartParams"]["num-cpus"]) == job.workers.cpus


def test_ray_version_is_the_locked_one(manifest: dict[str, Any]) -> None:
    version = manifest["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray=={version}" in (crd.REPO / "requirements/lock.txt").read_text(encoding="utf-8").splitlines()


def test_pods_run_as_nobody_special_in_the_image_folder(manifest: dict[str, Any]) -> None:
    (workdir,) = set(re.findall(r"^WORKDIR (/app)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE))
    for pod in pod_specs(manifest):
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["workingDir"] == workdir
            assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_checkpoints_go_to_the_shared_volume(manifest: dict[str, Any]) -> None:
    storage = yaml.safe_load(manifest["spec"]["runtimeEnvYAML"])["env_vars"]["OVERLANE_STORAGE"]
    claim = yaml.safe_load((MANIFEST.parent / "storage.yaml").read_text(encoding="utf-8"))
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pod_specs(manifest):
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == [storage]


def test_environment_values_are_strings(manifest: dict[str, Any]) -> None:
    variables = yaml.safe_load(manifest["spec"]["runtimeEnvYAML"])["env_vars"]
    assert {type(value) for value in variables.values()} == {str}


def test_the_jobs_api_asks_for_a_token(manifest: dict[str, Any]) -> None:
    assert manifest["spec"]["rayClusterSpec"]["authOptions"]["mode"] == "token"
