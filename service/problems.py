"""Everything the service says no to, as RFC 9457 problem documents. This is the only place that knows their form."""

from enum import Enum
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from service.store.engine import DatabaseUnavailableError

MEDIA_TYPE = "application/problem+json"

log = structlog.get_logger(__name__)


class ProblemType(Enum):
    """The kinds of problem: stable slug, HTTP status, title."""

    INVALID_JOB = ("invalid-job", HTTPStatus.UNPROCESSABLE_ENTITY, "The job file is not valid")
    INVALID_REQUEST = ("invalid-request", HTTPStatus.UNPROCESSABLE_ENTITY, "The request is not valid")
    INFEASIBLE = ("infeasible", HTTPStatus.UNPROCESSABLE_ENTITY, "The cluster can never hold this job")
    KEY_REUSED = ("idempotency-key-reused", HTTPStatus.UNPROCESSABLE_ENTITY, "The key belongs to another job file")
    UNKNOWN_JOB = ("unknown-job", HTTPStatus.NOT_FOUND, "There is no such job")
    NOT_FOUND = ("not-found", HTTPStatus.NOT_FOUND, "There is nothing at this address")
    METHOD_NOT_ALLOWED = ("method-not-allowed", HTTPStatus.METHOD_NOT_ALLOWED, "The address does not know this method")
    STEPS_ARCHIVED = ("steps-archived", HTTPStatus.GONE, "The steps of the job are archived")
    JOB_ACTIVE = ("job-active", HTTPStatus.CONFLICT, "The job has not ended")
    UNAUTHORIZED = ("unauthorized", HTTPStatus.UNAUTHORIZED, "The token is missing or wrong")
    FORBIDDEN = ("forbidden", HTTPStatus.FORBIDDEN, "The token does not allow this")
    FOREIGN_ORIGIN = ("foreign-origin", HTTPStatus.FORBIDDEN, "The request comes from a foreign page")
    ADDRESS_TOO_LONG = ("address-too-long", HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long")
    HEADERS_TOO_LARGE = (
        "headers-too-large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too large",
    )  # fmt: skip
    RATE_LIMITED = ("rate-limited", HTTPStatus.TOO_MANY_REQUESTS, "Too many requests")
    TIMED_OUT = ("timed-out", HTTPStatus.SERVICE_UNAVAILABLE, "The request took too long")
    TOO_LARGE = ("too-large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request is too large")
    UNSUPPORTED_MEDIA_TYPE = ("unsupported-media-type", HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The format is not known")
    RAY_UNAVAILABLE = ("ray-unavailable", HTTPStatus.SERVICE_UNAVAILABLE, "The Ray cluster does not answer")
    DATABASE_UNAVAILABLE = ("database-unavailable", HTTPStatus.SERVICE_UNAVAILABLE, "The database does not answer")
    NOT_READY = ("not-ready", HTTPStatus.SERVICE_UNAVAILABLE, "The service is not ready")
    INTERNAL = ("internal", HTTPStatus.INTERNAL_SERVER_ERROR, "The service failed")

    def __init__(self, slug: str, status: HTTPStatus, title: str) -> None:
        self.urn = f"urn:overlane:problem:{slug}"
        self.status = status
        self.title = title


class FieldError(BaseModel):
    """One fault of a request: which field, and what is wrong with it."""

    field: str
    message: str


class ProblemDocument(BaseModel):
    """The body of every error answer (RFC 9457). `errors` lists each fault where there can be several."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FieldError] | None = None


class Problem(Exception):  # noqa: N818 - the field's word for it
    """A no with its reason. Raised anywhere, turned into an answer here."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        errors: list[FieldError] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = errors
        self.headers = headers

    def answer(self, instance: str) -> JSONResponse:
        """The HTTP answer; `instance` is the path of the request."""
        return JSONResponse(self.document(instance), self.kind.status, media_type=MEDIA_TYPE, headers=self.headers)

    def document(self, instance: str) -> dict[str, Any]:
        """What the answer says."""
        document = ProblemDocument(
            type=self.kind.urn,
            title=self.kind.title,
            status=self.kind.status,
            detail=self.detail,
            instance=instance,
            errors=self.errors,
        )
        return document.model_dump(mode="json", exclude_none=True)


def install(app: FastAPI) -> None:
    """Answer every error of `app` with a problem document."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(DatabaseUnavailableError, _database_unavailable)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.answer(request.url.path)


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [
        FieldError(field=".".join(str(part) for part in fault["loc"][1:]) or str(fault["loc"][0]), message=fault["msg"])
        for fault in error.errors()
    ]
    detail = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
    return Problem(ProblemType.INVALID_REQUEST, detail, faults).answer(request.url.path)


async def _database_unavailable(request: Request, error: Exception) -> Response:
    log.warning("database_unavailable", method=request.method, path=request.url.path, error=str(error))
    # Not the error itself: it names hosts and users.
    detail = "The database does not answer; try again, with the same Idempotency-Key if the request carried one"
    return Problem(ProblemType.DATABASE_UNAVAILABLE, detail, headers={"Retry-After": "5"}).answer(request.url.path)


_KIND_OF_STATUS = {
    HTTPStatus.NOT_FOUND: ProblemType.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: ProblemType.METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ProblemType.TOO_LARGE,
}


_UNKNOWN = (ProblemType.NOT_FOUND, ProblemType.METHOD_NOT_ALLOWED)


async def _http_error(request: Request, error: Exception) -> Response:
    """Errors that the framework raises itself, such as an unknown route or method."""
    assert isinstance(error, HTTPException)
    kind = _KIND_OF_STATUS.get(HTTPStatus(error.status_code), ProblemType.INVALID_REQUEST)
    hint = "; /openapi.json has the addresses and what they know"
    detail = f"{request.method} {request.url.path}: {error.detail}{hint if kind in _UNKNOWN else ''}"
    headers = dict(error.headers or {})
    if kind is ProblemType.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods_of(request))
    return Problem(kind, detail, headers=headers).answer(request.url.path)


def _methods_of(request: Request) -> list[str]:
    """What the address knows; the framework names only the methods of the first route that has it."""
    found: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        if route.path is not None and compile_path(route.path)[0].match(request.url.path):
            found |= set(route.methods or ())
    return sorted(found)
