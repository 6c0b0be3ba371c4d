"""Somebody who is told: a real HTTP server on loopback, and the file that names it."""

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from standardwebhooks import Webhook

SECRET = f"whsec_{base64.b64encode(b'0123456789abcdef0123456789abcdef').decode()}"
OTHER_SECRET = f"whsec_{base64.b64encode(b'fedcba9876543210fedcba9876543210').decode()}"


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str = SECRET) -> dict[str, Any]:
        """The message, if the library's own check finds it in order. Raises `WebhookVerificationError`."""
        message = Webhook(secret).verify(self.body, dict(self.headers))
        assert isinstance(message, dict)
        return message


@dataclass
class Receiver:
    """Keeps what comes, and answers `status`, or waits for `released` first if it `hangs`."""

    url: str
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    hangs: bool = False
    released: threading.Event = field(default_factory=threading.Event)
    received: list[Received] = field(default_factory=list)

    @property
    def told(self) -> list[tuple[str | None, str]]:
        """Before and after of each change, in the order in which they came."""
        return [(message["data"]["before"], message["data"]["state"]) for message in self.messages]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [each.verified() for each in self.received]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that is there within the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            if receiver.hangs:
                receiver.released.wait(60)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.content)))
            self.end_headers()
            self.wfile.write(receiver.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def webhooks_file(path: Path, endpoints: Mapping[str, Mapping[str, Any]]) -> Path:
    """A webhooks file with these endpoints, each with the secret unless it has one."""
    secret = {"secret": SECRET}
    content = {
        name: {**({} if {"secret", "secret_file"} & set(each) else secret), **each} for name, each in endpoints.items()
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    path.chmod(0o600)
    return path
