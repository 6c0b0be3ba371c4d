"""Brings the tables of a database to what this version of the service needs."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

# Any number that nothing else in the database locks.
_LOCK = 0x6F7665726C616E65


class NewerDatabaseError(Exception):
    """A newer version of the service has changed the database; this one would spoil it."""


def upgrade(connection: Connection, name: str) -> None:
    """Run the migrations that the database has not seen, within the transaction of `connection`.

    `name` is what the database is called in errors. Raises `NewerDatabaseError`.
    """
    if connection.dialect.name == "postgresql":
        # Services that start at the same time migrate one after the other. SQLite's transaction sees to that itself.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    _refuse_newer(ScriptDirectory.from_config(config), MigrationContext.configure(connection), name)
    command.upgrade(config, "head")


def _refuse_newer(known: ScriptDirectory, found: MigrationContext, name: str) -> None:
    revisions = {script.revision for script in known.walk_revisions()}
    unknown = [revision for revision in found.get_current_heads() if revision not in revisions]
    if unknown:
        raise NewerDatabaseError(
            f"the database {name} has schema {', '.join(unknown)}, and this version of Overlane knows "
            f"{', '.join(known.get_heads())}: a newer version has used it; install that version, or restore a copy "
            "from before its upgrade"
        )
