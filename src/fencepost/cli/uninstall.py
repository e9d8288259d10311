"""What ``fencepost guard install`` left in a database, and the statements that remove it."""

from dataclasses import dataclass
from typing import Any

from fencepost.errors import ConfigError

_TABLES = ("fencepost_mark", "fencepost_replaced", "fencepost_run", "fencepost_saga")
_KEPT = ("fencepost_run", "fencepost_saga")  # with rows they are the memory of once() and of sagas, not of guards
_TRIGGERS = ("fencepost_fenced", "fencepost_epoch", "fencepost_truncate")
_FUNCTIONS = (*_TRIGGERS, "fencepost_resource", "fencepost_admit", "fencepost_highest", "fencepost_judge")
_SERVED = "these marks are those of 'fencepost resource', whose values are in this database; they cannot be removed"


@dataclass(frozen=True, slots=True)
class Installed:
    """What is there, and how to remove it."""

    triggers: list[tuple[str, str]]
    """Table and trigger."""
    tables: dict[str, int]
    """Table and number of rows, of those that would be removed."""
    kept: dict[str, int]
    """The same, of those that stay, because they hold the runs of once() and the sagas."""
    statements: list[str]

    @property
    def marks(self) -> int:
        return self.tables.get("fencepost_mark", 0)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        triggers = [{"table": table, "trigger": trigger} for table, trigger in self.triggers]
        return {"triggers": triggers, "tables": self.tables, "kept": self.kept}

    def words(self) -> str:
        """For a person."""
        parts = [f"the trigger {trigger!r} on {table}" for table, trigger in self.triggers]
        parts += [f"the table {table} ({rows} row{'' if rows == 1 else 's'})" for table, rows in self.tables.items()]
        return ", ".join(parts)


def look(conn: Any, table: str | None) -> Installed:
    """What is there: all of it, or only the triggers on ``table``. ConfigError if there is no such table, or if
    the marks are needed by something else."""
    import sqlite3

    return _sqlite(conn, table) if isinstance(conn, sqlite3.Connection) else _postgres(conn, table)


def _postgres(conn: Any, table: str | None) -> Installed:
    where, arguments = "", [list(_TRIGGERS)]
    if table is not None:
        quoted = ".".join(map(_quoted, table.split(".")))
        ((oid,),) = conn.execute("SELECT to_regclass(%s)::oid", (quoted,)).fetchall()
        _require(oid, table)
        where = "AND tgrelid = %s"
        arguments.append(oid)
    elif conn.execute("SELECT to_regclass('fencepost_value')").fetchone() != (None,):
        raise ConfigError(_SERVED)
    # A partition's trigger goes with that of its table. regclass and format() quote what has to be quoted.
    triggers = conn.execute(
        "SELECT tgrelid::regclass::text, tgname::text, format('DROP TRIGGER %%I ON %%s', tgname, tgrelid::regclass) "
        "FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
        "WHERE proname = ANY(%s) AND pg_function_is_visible(tgfoid) AND NOT tgisinternal AND tgparentid = 0 "
        f"{where} ORDER BY 1, 2",
        arguments,
    ).fetchall()
    drops = [drop for _, _, drop in triggers]
    named = [(on, trigger) for on, trigger, _ in triggers]
    if table is not None:
        return Installed(named, {}, {}, drops)
    there = [each for each in _TABLES if conn.execute("SELECT to_regclass(%s)", (each,)).fetchone() != (None,)]
    tables, kept = _counted(conn, there)
    functions = conn.execute(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = ANY(%s) AND pg_function_is_visible(oid) "
        "ORDER BY array_position(%s, proname::text)",
        (list(_FUNCTIONS), list(_FUNCTIONS)),
    ).fetchall()
    drops += [f"DROP FUNCTION {function}" for (function,) in functions]
    return Installed(named, tables, kept, [*drops, *(f"DROP TABLE {each}" for each in tables)])


def _sqlite(conn: Any, table: str | None) -> Installed:
    def exists(name: str) -> bool:
        found = conn.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)", (name,))
        return found.fetchone() is not None

    if table is not None:
        _require(exists(table), table)
    elif [name for (name,) in conn.execute("SELECT name FROM pragma_table_info('value')")] == ["resource", "data"]:
        raise ConfigError(_SERVED)
    found = conn.execute(
        "SELECT tbl_name, name FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'fencepost_* *' "
        "AND lower(substr(name, instr(name, ' ') + 1)) = lower(tbl_name) ORDER BY 1, 2"
    )
    triggers = [(on, trigger) for on, trigger in found if table is None or on.lower() == table.lower()]
    drops = [f"DROP TRIGGER {_quoted(trigger)}" for _, trigger in triggers]
    if table is not None:
        return Installed(triggers, {}, {}, drops)
    tables, kept = _counted(conn, [each for each in _TABLES if exists(each)])
    return Installed(triggers, tables, kept, [*drops, *(f"DROP TABLE {each}" for each in tables)])


def _counted(conn: Any, there: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Tables to remove and tables to keep, each with the number of its rows."""
    rows = {each: conn.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in there}
    kept = {each: count for each, count in rows.items() if count and each in _KEPT}
    return {each: count for each, count in rows.items() if each not in kept}, kept


def _require(found: object, table: str) -> None:
    if not found:
        raise ConfigError(f"there is no table {table!r}; name the one that has the trigger")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
