"""`overlane token`: makes a token and the line that makes the service know it. It asks no service."""

import sys
from typing import Annotated

import typer
from pydantic import ValidationError

from service.security.roles import Role
from service.security.tokens_file import faults_of_entry, new_entry


def token(
    name: Annotated[str, typer.Argument(help="whose token it is; the audit shows this name")],
    role: Annotated[Role, typer.Option(help="each role may do what the ones before it may")],
    project: Annotated[str, typer.Option(help="the project in which it may; '*' for every project, as admins need")],
) -> None:
    """Make a token for the service's OVERLANE_TOKENS_FILE. It is shown this once and kept nowhere."""
    try:
        secret, entry = new_entry(name, role, project)
    except ValidationError as error:
        sys.stderr.write("".join(f"overlane: {fault}\n" for fault in faults_of_entry(error)))
        raise typer.Exit(2) from None
    # The token alone on standard output, so that it can go where it is kept without passing over a screen.
    sys.stdout.write(f"{secret}\n")
    sys.stderr.write(
        f"Above is the token, for OVERLANE_TOKEN. Add to the file that OVERLANE_TOKENS_FILE names:\n{entry.line}\n"
    )
