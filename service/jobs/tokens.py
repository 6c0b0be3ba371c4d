"""Secrets, of which only hashes are kept.

Those with which jobs report to the service follow from a key of its own. So whichever of several tries to submit a job
Ray takes, also when the service has died in between, the job holds the token whose hash is recorded.
"""

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path


class ReportTokens:
    """Makes the tokens of all starts of all jobs."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, job_id: str, start: int) -> str:
        """The token of one start of a job."""
        code = hmac.digest(self._key, f"{job_id}/{start}".encode(), "sha256")
        return base64.urlsafe_b64encode(code).rstrip(b"=").decode()


def new_token() -> str:
    return secrets.token_urlsafe(32)


def load_key(path: Path) -> bytes:
    """The key in a file that only its owner reads; made when it is not there. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    return path.read_bytes()


def hash_token(token: str) -> str:
    """What is stored of a token. A plain hash will do: the token is random and long."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_token(token: str, stored_hash: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_token(token), stored_hash)
