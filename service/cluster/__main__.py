"""`python -m service.cluster clean --home DIR` removes everything that a control plane left behind."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from service.cluster.embedded import ClusterError, private_folder_of, remove_cluster
from service.home import HomeInUseError, HomeLock

cli = typer.Typer(add_completion=False, help="The embedded Ray of a control plane.")


@cli.callback()
def _group() -> None:
    """Keep `clean` a subcommand."""


@cli.command()
def clean(home: Annotated[Path, typer.Option(help="the control plane's folder")]) -> None:
    """Remove a control plane's state and whatever is left of its Ray head."""
    try:
        with HomeLock(home.resolve()):
            killed = remove_cluster(private_folder_of(home))
            shutil.rmtree(home.resolve())
    except (HomeInUseError, ClusterError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(f"removed {home}" + (f", ended {killed} processes of its Ray head" if killed else ""))


if __name__ == "__main__":
    cli()
