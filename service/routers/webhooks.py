"""Routes that show whom the service tells of changes of state, and that test it."""

from fastapi import APIRouter

from service.problems import ProblemDocument
from service.routers.access import Asking
from service.services import Used
from service.webhooks.shapes import Webhooks, WebhookTest

router = APIRouter(prefix="/v1/webhooks", tags=["operations"])


@router.get("")
async def webhooks(services: Used) -> Webhooks:
    """The endpoints that OVERLANE_WEBHOOKS_FILE names, and how they get on."""
    return await services.webhooks.overview()


@router.post("/{name}/ping", responses={404: {"model": ProblemDocument}})
async def ping(name: str, services: Used, caller: Asking) -> WebhookTest:
    """Send a signed test message to an endpoint, once and now. One that takes it is not gone any more."""
    return await services.webhooks.test(name, caller.name)
