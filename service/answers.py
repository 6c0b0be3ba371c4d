"""Turns problems, and the errors of framework and database, into HTTP answers."""

from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from service.problems import MEDIA_TYPE, FieldError, Problem, ProblemType
from service.store.engine import DatabaseUnavailableError

log = structlog.get_logger(__name__)


def answer_of(problem: Problem, instance: str) -> JSONResponse:
    """The HTTP answer that says `problem`; `instance` is the path of the request."""
    return JSONResponse(problem.document(instance), problem.kind.status, media_type=MEDIA_TYPE, headers=problem.headers)


def install(app: FastAPI) -> None:
    """Answer every error of `app` with a problem document."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(DatabaseUnavailableError, _database_unavailable)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return answer_of(error, request.url.path)


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [
        FieldError(field=".".join(str(part) for part in fault["loc"][1:]) or str(fault["loc"][0]), message=fault["msg"])
        for fault in error.errors()
    ]
    detail = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
    return answer_of(Problem(ProblemType.INVALID_REQUEST, detail, faults), request.url.path)


async def _database_unavailable(request: Request, error: Exception) -> Response:
    log.warning("database_unavailable", method=request.method, path=request.url.path, error=str(error))
    # Not the error itself: it names hosts and users.
    detail = "The database does not answer; try again, with the same Idempotency-Key if the request carried one"
    away = Problem(ProblemType.DATABASE_UNAVAILABLE, detail, headers={"Retry-After": "5"})
    return answer_of(away, request.url.path)


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
    return answer_of(Problem(kind, detail, headers=headers), request.url.path)


def _methods_of(request: Request) -> list[str]:
    """What the address knows; the framework names only the methods of the first route that has it."""
    found: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        if route.path is not None and compile_path(route.path)[0].match(request.url.path):
            found |= set(route.methods or ())
    return sorted(found)
