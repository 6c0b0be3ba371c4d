"""A control plane whose server ends."""

import threading

import pytest
import uvicorn

from service.server import ControlPlane, ServerError


def test_a_server_that_ends_by_itself_is_an_error() -> None:
    async def app(*_: object) -> None:
        """Never called."""

    thread = threading.Thread(target=lambda: None)
    thread.start()
    with pytest.raises(ServerError, match="has ended"):
        ControlPlane("http://127.0.0.1:1", uvicorn.Server(uvicorn.Config(app)), thread, None).wait()
