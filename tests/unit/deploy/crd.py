"""KubeRay's custom resource definitions as closed JSON Schemas. They are not part of this repository."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

REPO = Path(__file__).resolve().parents[3]
# The definition leaves a resource's own metadata to the API server; these are the fields a manifest may set.
METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
}


def folder() -> Path:
    """Where the definitions lie: OVERLANE_KUBERAY_CRDS, else the folder `shared` beside the checkout."""
    return Path(os.environ.get("OVERLANE_KUBERAY_CRDS", REPO.parent / "shared/data/kuberay"))


def closed_schema(definition: Path, version: str) -> dict[str, Any]:
    """The schema of one version of a definition, with unknown fields forbidden as the API server's strict mode does."""
    text = definition.read_text(encoding="utf-8")
    # The definition has 1.4 MB, which the pure Python loader needs seconds for.
    versions = yaml.load(text, Loader=yaml.CSafeLoader)["spec"]["versions"]
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == version)
    schema["properties"]["metadata"] = METADATA
    closed = close(schema)
    assert isinstance(closed, dict)
    return closed


def close(schema: object) -> object:
    """Forbid unknown fields in every object whose fields are listed, unless it says that it keeps them."""
    if isinstance(schema, list):
        return [close(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: close(value) for name, value in schema.items()}
    lists_fields = isinstance(schema.get("properties"), Mapping) and schema.get("type") == "object"
    if lists_fields and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def faults(manifest: object, schema: dict[str, Any]) -> Iterator[str]:
    """One line for each fault, `path: message`."""
    for error in Draft202012Validator(schema).iter_errors(manifest):
        yield f"{error.json_path}: {error.message}"
