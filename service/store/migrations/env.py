"""Alembic runs this file in `service.store.schema`, which hands it the connection and its transaction."""

from alembic import context

from service.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter a table: it gets a new one with the rows of the old.
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
