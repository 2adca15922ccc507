"""Alembic's entry: runs migrations on the connection that ``store.migrate`` hands over."""

from alembic import context

from reward_server.store.models import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
