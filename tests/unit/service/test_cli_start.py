"""What a command that only asks the service loads: the less, the sooner it answers."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    "alembic",
    "asyncpg",
    "fastapi",
    "numpy",
    "opentelemetry",
    "pyarrow",
    "ray",
    "sqlalchemy",
    "starlette",
    "torch",
)

# Runs commands as the console script does, with a service that has no job, and tells what is loaded in the end.
_SCRIPT = f"""
import contextlib, io, json, sys
import httpx
from service import cli, client

def answer(request):
    return httpx.Response(200, json={{"items": [], "next_cursor": None}})

cli.Client = lambda url, token: client.Client(url, token, httpx.MockTransport(answer))
sys.argv = ["overlane", *sys.argv[1:]]
with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
    cli.main()
loaded = [name for name in {HEAVY} if name in sys.modules]
print(json.dumps({{"loaded": loaded, "shown": shown.getvalue()}}))
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["list", "--help"], "newest first"), (["list"], "submitted"), (["list", "--json"], '"items": []')],
)
def test_a_client_command_loads_no_server(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert words in found["shown"]
    assert found["loaded"] == []
