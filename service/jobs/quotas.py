"""How much of the cluster each project may hold at once: the file that OVERLANE_QUOTAS_FILE names.

    ads: {jobs: 4, cpus: 32, gpus: 8}
    "*": {gpus: 2}        # each project that is not named

A limit that is not given does not exist. An elastic group counts with its smallest size.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError

from workers.capacity import COUNTED_RESOURCES, group_resources, named, units
from workers.job import WorkersSpec

EVERY_OTHER = "*"
_PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class InvalidQuotasError(ValueError):
    """A quotas file that cannot be used; the message names file, project and field."""


class Quota(BaseModel):
    """What one project may hold at once; None: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs: StrictInt | None = Field(default=None, ge=0)
    cpus: StrictInt | StrictFloat | None = Field(default=None, ge=0, allow_inf_nan=False)
    gpus: StrictInt | StrictFloat | None = Field(default=None, ge=0, allow_inf_nan=False)

    def limit(self, kind: str) -> float | None:
        """The limit of a counted resource."""
        return self.cpus if kind == "CPU" else self.gpus


@dataclass(frozen=True)
class Usage:
    """What the jobs of one project hold."""

    jobs: int = 0
    resources: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTED_RESOURCES, 0.0))

    def plus(self, workers: WorkersSpec) -> "Usage":
        """With one more job."""
        group = group_resources(workers)
        return Usage(self.jobs + 1, {kind: self.resources[kind] + group[kind] for kind in COUNTED_RESOURCES})

    def dominant_share(self, total: Mapping[str, float]) -> float:
        """The largest share of any resource of the cluster that the project holds (dominant resource fairness)."""
        return max((self.resources[kind] / total[kind] for kind in COUNTED_RESOURCES if total.get(kind)), default=0.0)


@dataclass(frozen=True)
class Quotas:
    """The quotas of all projects."""

    projects: Mapping[str, Quota] = field(default_factory=dict)

    def of(self, project: str) -> Quota:
        return self.projects.get(project) or self.projects.get(EVERY_OTHER) or Quota()

    def never_allows(self, project: str, workers: WorkersSpec) -> str | None:
        """Why the project could not start such a job even if it held nothing; None if it could."""
        quota, group = self.of(project), group_resources(workers)
        if quota.jobs == 0:
            return f"project {project} may hold no jobs; raise its quota"
        for kind in COUNTED_RESOURCES:
            limit = quota.limit(kind)
            if limit is not None and units(group[kind]) > units(limit):
                return f"needs {named(group[kind], kind)}, project {project} may hold {limit:g} in all"
        return None

    def exceeded_by(self, project: str, workers: WorkersSpec, held: Usage) -> str | None:
        """Why the project, which holds `held`, may not start such a job now; None if it may."""
        quota, group = self.of(project), group_resources(workers)
        if quota.jobs is not None and held.jobs >= quota.jobs:
            return f"project {project} holds {held.jobs} of the {quota.jobs} jobs that it may hold at once"
        for kind in COUNTED_RESOURCES:
            limit, has = quota.limit(kind), held.resources[kind]
            if limit is not None and units(has + group[kind]) > units(limit):
                return f"needs {named(group[kind], kind)}, project {project} holds {has:g} of the {limit:g} it may hold"
        return None


def held_by_project(jobs: Iterable[tuple[str, WorkersSpec]]) -> dict[str, Usage]:
    """What the started jobs hold, given the project and the workers of each."""
    held: dict[str, Usage] = {}
    for project, workers in jobs:
        held[project] = held.get(project, Usage()).plus(workers)
    return held


def read_quotas(path: Path | None) -> Quotas:
    """Read the file; no file is no quotas. Raises `InvalidQuotasError`."""
    if path is None:
        return Quotas()
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InvalidQuotasError(f"{path}: cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise InvalidQuotasError(f'{path}: expected projects with limits, such as "ads: {{gpus: 8}}"')
    return Quotas({_project(path, name): _quota(path, name, limits) for name, limits in content.items()})


class _OnceLoader(yaml.SafeLoader):
    """YAML in which no project and no limit stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _project(path: Path, name: object) -> str:
    if isinstance(name, str) and (name == EVERY_OTHER or _PROJECT.fullmatch(name)):
        return name
    raise InvalidQuotasError(
        f"{path}: {name!r} is no project: small letters, digits and -, or {EVERY_OTHER!r} for each that is not named"
    )


def _quota(path: Path, project: object, limits: object) -> Quota:
    if not isinstance(limits, dict):
        raise InvalidQuotasError(f"{path}: {project}: expected limits, such as {{jobs: 4, cpus: 32, gpus: 8}}")
    try:
        return Quota.model_validate(limits)
    except ValidationError as error:
        fault = error.errors()[0]
        message = fault["msg"]
        if fault["type"] == "extra_forbidden":
            message = f"unknown limit; known are {', '.join(Quota.model_fields)}"
        raise InvalidQuotasError(f"{path}: {project}.{fault['loc'][0]}: {message}") from None
