"""Everything the service says no to, as RFC 9457 problem documents. This is the only place that knows their form.

The client reads them too, so nothing here needs the web framework: `answers.py` makes HTTP answers of them.
"""

from enum import Enum
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

MEDIA_TYPE = "application/problem+json"


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
    """A no with its reason. Raised anywhere, turned into an answer by `answers.py`."""

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

    def document(self, instance: str) -> dict[str, Any]:
        """What the answer says; `instance` is the path of the request."""
        document = ProblemDocument(
            type=self.kind.urn,
            title=self.kind.title,
            status=self.kind.status,
            detail=self.detail,
            instance=instance,
            errors=self.errors,
        )
        return document.model_dump(mode="json", exclude_none=True)
