"""Puts what holds for every request and answer around the application."""

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

from service.settings import Settings
from service.traffic.etags import ETags
from service.traffic.limits import SizeLimits, TimeLimit
from service.traffic.rates import RateLimits
from service.traffic.request_ids import REQUEST_ID_HEADER, is_well_formed
from service.traffic.unexpected import UnexpectedErrors

_GZIP_LEAST_BYTES = 2048
# Half the time of zlib's own choice, and the JSON of steps is 3 % larger for it.
_GZIP_LEVEL = 4


def install(app: FastAPI, settings: Settings) -> None:
    """Add what an accepted request goes through, from the inside to the outside. Event streams are not compressed."""
    app.add_middleware(UnexpectedErrors)
    app.add_middleware(TimeLimit, limit_s=settings.request_timeout_s)
    app.add_middleware(ETags)
    app.add_middleware(GZipMiddleware, minimum_size=_GZIP_LEAST_BYTES, compresslevel=_GZIP_LEVEL)
    by_token = settings.tokens_file is not None
    app.add_middleware(RateLimits, per_s=settings.rate_limit, burst=settings.rate_burst, by_token=by_token)
    app.add_middleware(SizeLimits)


def name_requests(app: FastAPI) -> None:
    """Give every request an id, the client's own if that is well-formed. Goes outside of everything else."""
    app.add_middleware(
        CorrelationIdMiddleware, header_name=REQUEST_ID_HEADER, validator=is_well_formed, transformer=None
    )
