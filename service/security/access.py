"""The one place that decides whether a request may go on."""

from typing import NoReturn

import structlog
from starlette.datastructures import Headers

from service.problems import Problem, ProblemType
from service.security.roles import NO_TOKENS, Caller, need_of
from service.security.tokens_file import InvalidTokensFileError, TokensFile
from service.store.jobs import JobStore

log = structlog.get_logger(__name__)

_HOW = "send `Authorization: Bearer TOKEN`; the command line takes it from OVERLANE_TOKEN"


class Access:
    """Knows callers by their tokens, and refuses what their role or project does not allow.

    Without a tokens file everybody may do everything; the service then listens on loopback only.
    """

    def __init__(self, tokens: TokensFile | None, jobs: JobStore) -> None:
        self._tokens = tokens
        self._jobs = jobs

    async def admit(self, method: str, path: str, job_id: str | None, headers: Headers) -> Caller | None:
        """Who asks for the route `path`, e.g. `/v1/jobs/{job_id}`; None where the route lets in whoever comes.

        Raises `Problem`: no token or an unknown one, a role that is too low, a job of another project.
        """
        need = need_of(method, path)
        if need.role is None:
            return None
        caller = self._known(headers)
        if not caller.role.includes(need.role):
            _refuse(caller, method, path, f"needs the role {need.role.value}, and the token has {caller.role.value}")
        if need.every_project and not caller.sees_all:
            _refuse(caller, method, path, f"needs a token of every project, and this one is of {caller.project}")
        if job_id is not None and not caller.sees_all:
            await self._check_job(caller, job_id)
        return caller

    @property
    def version(self) -> tuple[int, ...] | None:
        """Another one when who may do what can have changed."""
        return None if self._tokens is None else self._tokens.version

    def caller(self, headers: Headers) -> Caller | None:
        """Whose token a request carries; None for no token or an unknown one.

        Raises `Problem` as `check` does.
        """
        if self._tokens is None:
            return NO_TOKENS
        self.check()
        token = bearer_token(headers)
        return None if token is None else self._tokens.caller(token)

    def check(self) -> None:
        """Raise `Problem` if there is a tokens file that cannot be used."""
        try:
            if self._tokens is not None:
                self._tokens.check()
        except InvalidTokensFileError:
            detail = "the tokens file of the service cannot be used; its log says why"
            raise Problem(ProblemType.NOT_READY, detail, headers={"Retry-After": "5"}) from None

    def _known(self, headers: Headers) -> Caller:
        caller = self.caller(headers)
        if caller is None:
            detail = f"no token was sent; {_HOW}" if bearer_token(headers) is None else f"no such token; {_HOW}"
            raise Problem(ProblemType.UNAUTHORIZED, detail, headers={"WWW-Authenticate": "Bearer"})
        return caller

    async def _check_job(self, caller: Caller, job_id: str) -> None:
        project = await self._jobs.project(job_id)
        if project is None or not caller.sees(project):
            raise Problem(ProblemType.UNKNOWN_JOB, f"no job has the id {job_id!r}")


def check_project(caller: Caller, project: str) -> None:
    """Raise `Problem` unless the caller may submit into the project."""
    if not caller.sees(project):
        detail = (
            f"this token submits into {caller.project!r}, not into {project!r}; set queue.project: {caller.project}"
        )
        raise Problem(ProblemType.FORBIDDEN, detail)


def bearer_token(headers: Headers) -> str | None:
    """The token that a request carries."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _refuse(caller: Caller, method: str, path: str, why: str) -> NoReturn:
    log.warning("request_refused", caller=caller.name, method=method, path=path, why=why)
    raise Problem(ProblemType.FORBIDDEN, f"{method} {path} {why}; ask an admin of the service for another token")
