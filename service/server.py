"""A running control plane: its port, its home, its Ray, its HTTP server. All of it, or nothing of it."""

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import NoReturn

import structlog
import uvicorn

from service.app import create_app
from service.cluster.embedded import ClusterError, EmbeddedRay
from service.cluster.gateway import HttpRayGateway
from service.home import HomeInUseError, HomeLock
from service.settings import Settings
from service.store.database import Database
from service.store.engine import DatabaseUnavailableError
from service.store.schema import NewerDatabaseError
from service.tracing.start import traces

log = structlog.get_logger(__name__)

_UP_TIMEOUT_S = 30.0
_DOWN_TIMEOUT_S = 10.0
# Streams that are still being followed are cut off after this time.
_GRACE_S = 1
# So is a client that takes nothing of what it is sent for this time: nothing else would ever end a stream to it.
_DEAF_AFTER_S = 60


class PortTakenError(Exception):
    """Something else listens on the port."""


class ServerError(Exception):
    """The HTTP server did not start, or ended by itself."""


# Set by a signal. Its exception alone is not enough: it is lost if the signal comes while Python runs a callback of the
# garbage collector.
_stop_asked = threading.Event()

START_ERRORS = (
    PortTakenError, HomeInUseError, ClusterError, ServerError, NewerDatabaseError, DatabaseUnavailableError, OSError,
)  # fmt: skip
"""What keeps a control plane from starting; each says what to do."""


class ControlPlane:
    """A control plane that answers at `url` until its `with` block ends."""

    def __init__(
        self, url: str, server: uvicorn.Server, thread: threading.Thread, embedded_ray: EmbeddedRay | None
    ) -> None:
        self.url = url
        self._server = server
        self._thread = thread
        self._embedded_ray = embedded_ray

    def check(self) -> None:
        """Raise `ServerError` or `ClusterError` if a part has ended by itself: without it, no job gets on any more.

        Raises `KeyboardInterrupt` after a signal.
        """
        _stop_if_asked()
        if not self._thread.is_alive():
            raise ServerError("the HTTP server has ended; the log says why")
        if self._embedded_ray is not None:
            self._embedded_ray.check()

    def wait(self) -> NoReturn:
        """Wait for a signal, which raises `KeyboardInterrupt`. Raises what `check` raises."""
        while True:
            self.check()
            self._thread.join(timeout=1.0)

    def stop(self) -> None:
        """End the server. Whatever still hangs then cannot outlive the process."""
        self._server.should_exit = True
        self._thread.join(_DOWN_TIMEOUT_S)


@contextmanager
def control_plane(settings: Settings) -> Iterator[ControlPlane]:
    """Start everything, and stop everything at the end of the block; on a failure nothing stays behind.

    For the main thread only, since it holds signals off while it cleans up. Raises `START_ERRORS`, and
    `ValidationError` for what the environment says of traces.
    """
    stack = ExitStack()
    try:
        yield _start(settings, stack)
    finally:
        with _uninterrupted():
            stack.close()


def _start(settings: Settings, stack: ExitStack) -> ControlPlane:
    # Before anything that it could be told of, and ended after it.
    stack.enter_context(traces())
    # The port next: it is the cheapest thing to be wrong.
    listener = stack.enter_context(_listen(settings.host, settings.port))
    stack.enter_context(HomeLock(settings.home))
    # Opened here for its errors, which say what to do; those of an application that does not start do not get out.
    asyncio.run(_open_once(settings))
    settings = settings.model_copy(update={"port": listener.getsockname()[1]})
    gateway, embedded_ray = _ray(settings, stack)
    app = create_app(settings, gateway)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
    plane = ControlPlane(settings.url, server, thread, embedded_ray)
    stack.callback(plane.stop)
    thread.start()
    _wait_until_up(server, thread)
    _keep_what_is_there()
    _stop_if_asked()
    return plane


def _stop_if_asked() -> None:
    if _stop_asked.is_set():
        raise KeyboardInterrupt


def _keep_what_is_there() -> None:
    """Leave what was imported out of garbage collection: to look through it would hold up every request."""
    gc.collect()
    gc.freeze()


async def _open_once(settings: Settings) -> None:
    await (await Database.open(settings.database)).close()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does."""

    def end(_number: int, _frame: FrameType | None) -> None:
        _stop_asked.set()
        raise KeyboardInterrupt

    _stop_asked.clear()
    with _signals_handled_by(end):
        yield


def _uninterrupted() -> AbstractContextManager[None]:
    """Cleaning up takes a second and must not stop half way when somebody presses Ctrl-C twice."""
    return _signals_handled_by(signal.SIG_IGN)


@contextmanager
def _signals_handled_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def free_port(host: str, preferred: int) -> int:
    """`preferred` if nothing listens on it, else 0, for which the system chooses a free port."""
    try:
        _listen(host, preferred).close()
    except PortTakenError:
        return 0
    return preferred


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _DEAF_AFTER_S)
    try:
        listener.bind((host, port))
        # Without listening, a second service could bind the same port while Ray starts.
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise PortTakenError(
            f"port {port} on {host} cannot be used ({error.strerror}); stop what listens there or choose another --port"
        ) from None
    return listener


def _ray(settings: Settings, stack: ExitStack) -> tuple[HttpRayGateway, EmbeddedRay | None]:
    if settings.ray_address is not None:
        token = settings.ray_token_file.read_text().strip() if settings.ray_token_file else None
        return HttpRayGateway(settings.ray_address, token), None
    ray = EmbeddedRay(settings.home, settings.cluster_cpus)
    stack.callback(ray.stop)
    ray.start()
    return HttpRayGateway(ray.address, ray.token), ray


def _wait_until_up(server: uvicorn.Server, thread: threading.Thread) -> None:
    pause = threading.Event()
    for _ in range(int(_UP_TIMEOUT_S / 0.05)):
        if server.started:
            return
        if not thread.is_alive():
            break
        pause.wait(0.05)
    raise ServerError("the HTTP server did not start; the log says why")
