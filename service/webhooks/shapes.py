"""What the API answers about webhooks."""

from service.models import Answer, JobState, Moment


class Webhook(Answer):
    """An endpoint, and how it gets on. `url` is without user, password and query.

    `pending` messages wait for their first or next attempt; `given_up` ones are not sent any more. An endpoint that is
    `gone` has answered 410: nothing is sent to it until it takes a test, or its address is another one.
    """

    name: str
    url: str
    project: str | None
    states: list[JobState] | None
    gone: bool
    pending: int
    delivered: int
    failed_attempts: int
    given_up: int
    last_success_at: Moment | None
    last_error_at: Moment | None
    last_error: str | None


class Webhooks(Answer):
    """All endpoints, as the webhooks file names them."""

    items: list[Webhook]


class WebhookTest(Answer):
    """What became of a test message. `status` is the endpoint's; null if it did not answer. `error` is null if it took
    the message.
    """

    name: str
    message_id: str
    status: int | None
    error: str | None
