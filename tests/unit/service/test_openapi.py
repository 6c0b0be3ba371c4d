"""The document at `/openapi.json`: complete, with examples, and true to what is answered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from service.app import create_app
from service.openapi.document import operations
from service.problems import MEDIA_TYPE, ProblemType
from service.security.roles import NEEDS
from service.settings import Settings
from tests.unit.service.callers import Callers
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import FakeRay
from workers.job import parse_job, read_job

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return create_app(Settings(home=tmp_path_factory.mktemp("home")), FakeRay()).openapi()


def resolved(document: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in part:
        return part
    found: Any = document
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    assert isinstance(found, dict)
    return found


def contents(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where it stands, and the content, of every body and every answer that has one."""
    for path, method, operation in operations(document):
        parts = {"body": operation["requestBody"]} if "requestBody" in operation else {}
        for what, part in (parts | operation["responses"]).items():
            for media_type, content in resolved(document, part).get("content", {}).items():
                yield f"{method} {path} {what} {media_type}", content


def test_every_body_and_answer_has_an_example(document: dict[str, Any]) -> None:
    without = [where for where, content in contents(document) if not {"example", "examples"} & set(content)]
    assert without == []


def test_examples_are_what_the_schemas_say(document: dict[str, Any]) -> None:
    checked = 0
    for where, content in contents(document):
        if "itemSchema" in content:
            continue
        schema = {**content["schema"], "components": document["components"]}
        named = content.get("examples", {"": {"value": content.get("example")}})
        for example in named.values():
            try:
                jsonschema.Draft202012Validator(schema).validate(example["value"])
            except jsonschema.ValidationError as error:
                raise AssertionError(f"{where}: {error.message} at {error.json_path}") from error
            checked += 1
    assert checked > 50


def test_the_examples_of_a_job_file_are_jobs(document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    assert parse_job(content["application/json"]["example"]) == read_job(content["application/yaml"]["example"])
    assert yaml.safe_load(content["application/yaml"]["example"])["name"] == "movielens"


def test_a_job_file_needs_no_more_than_a_name(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["JobSpec"]["required"] == ["name"]
    assert "required" not in schemas["TrainingSpec"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    rest: list[Any] = [document]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                resolved(document, part)
            rest += part.values()
        elif isinstance(part, list):
            rest += part


def test_every_problem_type_stands_in_it(document: dict[str, Any]) -> None:
    shown = {
        example["value"]["type"]
        for response in document["components"]["responses"].values()
        for example in response["content"][MEDIA_TYPE]["examples"].values()
    }
    assert shown == {kind.urn for kind in ProblemType}


def test_errors_are_problem_documents_everywhere(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert answer == {"$ref": f"#/components/responses/Problem{status}"}, (path, method, status)


async def test_only_what_is_tagged_says_so(plane: Plane) -> None:
    document = (await plane.http.get("/openapi.json")).json()
    job_id = await plane.with_steps(2)
    for path, method, operation in operations(document):
        if method != "get" or path.endswith(("/events", "/audit")):
            continue
        answer = await plane.http.get(path.replace("{job_id}", job_id))
        assert ("ETag" in answer.headers) == ("304" in operation["responses"]), path


def test_tokens_stand_in_it_where_the_service_asks_for_them(document: dict[str, Any], tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, tokens_file=Callers(tmp_path / "tokens").file)
    with_tokens = create_app(settings, FakeRay()).openapi()
    for path, method, operation in operations(with_tokens):
        is_open = NEEDS[f"{method.upper()} {path}"].role is None
        assert operation.get("security") == (None if is_open else [{"token": []}]), path
        assert ("401" in operation["responses"]) == (not is_open), path
    assert all("security" not in operation for _, _, operation in operations(document))


def test_no_parameter_is_null(document: dict[str, Any]) -> None:
    parameters = [each for _, _, operation in operations(document) for each in operation.get("parameters", ())]
    assert len(parameters) > 20
    for parameter in parameters:
        assert {"type", "$ref"} & set(parameter["schema"]), parameter
        assert "anyOf" not in parameter["schema"], parameter
