"""Secrets with which jobs report to the service; only their hashes are kept."""

import hashlib
import hmac
import secrets


def new_token() -> str:
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What is stored of a token. A plain hash will do: the token is random and long."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_token(token: str, stored_hash: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_token(token), stored_hash)
