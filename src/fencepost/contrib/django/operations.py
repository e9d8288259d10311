"""A migration operation that prepares a database for guards, and sets triggers on tables of yours."""

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from fencepost.errors import ConfigError
from fencepost.guards import postgres, sqlite

__all__ = ["InstallGuard"]


class InstallGuard(Operation):
    """Prepare the database; with a table, also refuse changes of its rows that are not fenced, from any client.

        operations = [InstallGuard("shop_account", resource="account/{id}")]

    ``resource`` (Postgres; SQLite has no such trigger, and nothing is done there) or ``column`` as in
    `fencepost.guards.postgres.ddl`. Undoing it drops the triggers and keeps the marks: without them a holder that
    was replaced would be admitted again. Databases of other vendors are left alone. A later migration that alters the
    table makes SQLite build it again, without triggers: run this operation after it once more.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, table: str | None = None, resource: str | None = None, column: str | None = None) -> None:
        if table is None and (resource or column):
            raise ConfigError("resource= and column= are for the triggers of a table, and none is named")
        postgres.ddl(table, resource=resource, column=column)  # raises for invalid arguments
        self.table = table
        self.resource = resource
        self.column = column

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """How a migration writes it."""
        options = {"resource": self.resource, "column": self.column}
        args = [] if self.table is None else [self.table]
        return type(self).__qualname__, args, {name: value for name, value in options.items() if value is not None}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models do not change."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Run the statements of the guard."""
        for statement in self._statements(app_label, schema_editor.connection):
            schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the triggers; the marks stay."""
        conn = schema_editor.connection
        if self.table is None or not self._statements(app_label, conn):
            return
        if conn.vendor == "postgresql":
            row = "fencepost_fenced" if self.resource else "fencepost_epoch"
            drops = [f"DROP TRIGGER IF EXISTS {name} ON {_quoted(self.table)}" for name in (row, "fencepost_truncate")]
        else:
            named = [f"fencepost_{what} {self.table}" for what in ("epoch", "leap", "delete")]
            drops = [f"DROP TRIGGER IF EXISTS {conn.ops.quote_name(name)}" for name in named]
        for statement in drops:
            schema_editor.execute(statement, params=None)

    def _statements(self, app_label: str, conn: Any) -> list[str]:
        if not router.allow_migrate(conn.alias, app_label):
            return []
        if conn.vendor == "postgresql":
            return postgres.ddl(self.table, resource=self.resource, column=self.column)
        if conn.vendor == "sqlite" and not self.resource:
            return sqlite.ddl(self.table, column=self.column)
        return []

    def describe(self) -> str:
        """One line for ``makemigrations`` and ``migrate --plan``."""
        return f"Fence the rows of {self.table}" if self.table else "Prepare the database for fencing tokens"

    @property
    def migration_name_fragment(self) -> str:
        """For a migration's file name."""
        return f"fence_{self.table}".replace(".", "_") if self.table else "marks"


def _quoted(table: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
