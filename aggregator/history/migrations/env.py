"""Alembic runs this for every command; the connection is handed to it, in a transaction."""

from alembic import context

from aggregator.history.migrate import VERSIONS
from aggregator.history.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSIONS,
)
context.run_migrations()
