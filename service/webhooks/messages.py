"""What an endpoint is told, and how it can know that it is told by us: Standard Webhooks."""

import secrets
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from pydantic import SecretStr
from standardwebhooks import Webhook

from service.models import Answer, JobState, Moment


class MessageType(StrEnum):
    """The kinds of messages."""

    STATE_CHANGED = "job.state_changed"
    PING = "webhook.ping"


class JobChanged(Answer):
    """A job has entered `state`; `before` is null for a new one. Later changes of a job have larger numbers."""

    number: int
    job_id: str
    name: str
    project: str
    state: JobState
    before: JobState | None
    reason: str | None


class Pinged(Answer):
    """A test: somebody has asked for it."""

    endpoint: str


class Message(Answer):
    """The body of a request to an endpoint. `timestamp` is when it happened, not when it was sent."""

    type: MessageType
    timestamp: Moment
    data: JobChanged | Pinged


def new_message_id() -> str:
    """An id that no other message has, also not one of another database."""
    return f"msg_{secrets.token_urlsafe(18)}"


def signed_headers(message_id: str, body: str, keys: Sequence[SecretStr], at: datetime) -> dict[str, str]:
    """The headers with which a receiver can check a message that is sent at the time `at`, with any of the keys."""
    signatures = [Webhook(key.get_secret_value()).sign(message_id, at, body) for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
