"""What `/openapi.json` says beyond what FastAPI finds out: problem documents, examples, tags of answers, tokens."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from service.openapi import examples
from service.problems import MEDIA_TYPE
from service.routers.body import JOB_FILE_MEDIA_TYPES
from service.security.roles import need_of
from service.traffic.request_ids import REQUEST_ID_HEADER

Document = dict[str, Any]

_PROBLEM = {"$ref": "#/components/schemas/ProblemDocument"}
_JSON = "application/json"
_EVENTS = "text/event-stream"
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
    "required": ["data"],
}
_JOB_FILE = {"$ref": "#/components/schemas/JobSpec"}

# What any request may be answered. Below /v1/ there are rates and, where the service knows tokens, roles as well.
_OF_ALL = (403, 413, 414, 431, 500, 503)
_BELOW_V1 = (429,)
_WITH_TOKENS = (401,)


def describe(app: FastAPI, with_tokens: bool) -> None:
    """Let `app.openapi()` give the whole document. `with_tokens` says whether the service asks for them."""
    generate = app.openapi

    def openapi() -> Document:
        if app.openapi_schema is None:
            app.openapi_schema = complete(generate(), with_tokens)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def complete(document: Document, with_tokens: bool) -> Document:
    """The document with what is missing in it."""
    answers, problems = examples.answers(), examples.problems()
    components = document["components"]
    components["headers"] = _HEADERS
    components["responses"] = {f"Problem{status}": _problem(problems[status]) for status in problems}
    if with_tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, method, operation in operations(document):
        asks = with_tokens and need_of(method.upper(), path).role is not None
        _take_job_file(operation)
        _refer_to_problems(operation, path.startswith("/v1/"), asks)
        if asks:
            operation["security"] = [{"token": []}]
        _tell_parameters(operation)
        _describe_events(operation)
        _exemplify(operation, answers)
        if _is_tagged(path, operation):
            _tag(operation)
        for status, answer in operation["responses"].items():
            if "$ref" not in answer and status.isdecimal():
                answer.setdefault("headers", {})[REQUEST_ID_HEADER] = {"$ref": "#/components/headers/RequestId"}
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    return document


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Path, method and operation of everything in the document."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


_HEADERS = {
    "RequestId": {"description": "The request's id, which the service's log has too", "schema": {"type": "string"}},
    "ETag": {"description": "As If-None-Match it is answered 304 while nothing changes", "schema": {"type": "string"}},
    "RetryAfter": {"description": "Seconds to wait before asking again", "schema": {"type": "string"}},
}  # fmt: skip


def _take_job_file(operation: Document) -> None:
    content = operation.get("requestBody", {}).get("content", {})
    if set(content) == set(JOB_FILE_MEDIA_TYPES):
        operation["requestBody"]["content"] = {
            media_type: {"schema": _JOB_FILE, "example": examples.JOB_FILE}
            if media_type == _JSON
            else {"schema": {"type": "string"}, "example": examples.JOB_YAML}
            for media_type in content
        }


def _problem(documents: Document) -> Document:
    headers = (
        {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}}
        if {"rate-limited", "timed-out"} & set(documents)
        else {}
    )
    return {
        "description": " or ".join(document["summary"] for document in documents.values()),
        "headers": {REQUEST_ID_HEADER: {"$ref": "#/components/headers/RequestId"}, **headers},
        "content": {MEDIA_TYPE: {"schema": _PROBLEM, "examples": documents}},
    }


def _refer_to_problems(operation: Document, below_v1: bool, asks_for_token: bool) -> None:
    own = [int(status) for status in operation["responses"] if status.isdecimal() and int(status) >= 400]
    common = (*_OF_ALL, *(_BELOW_V1 if below_v1 else ()), *(_WITH_TOKENS if asks_for_token else ()))
    for status in sorted({*own, *common}):
        operation["responses"][str(status)] = {"$ref": f"#/components/responses/Problem{status}"}


def _exemplify(operation: Document, answers: Document) -> None:
    for answer in operation["responses"].values():
        for media_type, content in answer.get("content", {}).items():
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            if name in answers:
                content["example"] = answers[name]
            elif media_type in examples.TEXTS:
                content["example"] = examples.TEXTS[media_type]


def _describe_events(operation: Document) -> None:
    """Server-sent events, in the way in which FastAPI describes its own."""
    for answer in operation["responses"].values():
        if (content := answer.get("content", {}).get(_EVENTS)) is not None:
            content["itemSchema"] = _EVENT


def _tell_parameters(operation: Document) -> None:
    """A parameter that is not given is left out: there is no way to send null."""
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        given = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
        if len(given) == 1:
            del schema["anyOf"]
            parameter["schema"] = given[0] | schema


def _is_tagged(path: str, operation: Document) -> bool:
    content = operation["responses"].get("200", {}).get("content", {})
    return path.startswith("/v1/") and "requestBody" not in operation and _JSON in content


def _tag(operation: Document) -> None:
    tag = {"ETag": {"$ref": "#/components/headers/ETag"}}
    operation["responses"]["200"].setdefault("headers", {}).update(tag)
    operation["responses"]["304"] = {"description": "Nothing has changed", "headers": tag}
    known = {"name": "If-None-Match", "in": "header", "required": False, "schema": {"type": "string"}}
    operation.setdefault("parameters", []).append(known)
