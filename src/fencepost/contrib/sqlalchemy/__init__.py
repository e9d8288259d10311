"""SQLAlchemy: fenced sessions, and the guard's tables, columns and triggers in your metadata.

    with locks.lock("account/42") as lease, fenced(session, "account/42", lease):
        session.get(Account, 42).balance -= 10

``session`` is a Session, a scoped_session or a Connection, on Postgres or SQLite; `fencepost.contrib.sqlalchemy.aio` is
for asyncio ones. The guard is that of the database: `fencepost.guards.postgres` or `fencepost.guards.sqlite`.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, event
from sqlalchemy.orm import Mapped, mapped_column

from fencepost.errors import ConfigError
from fencepost.events import Hook
from fencepost.guards import postgres, sqlite
from fencepost.guards.column import EPOCH
from fencepost.guards.policy import Ceiling, Policy
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Stamp
from fencepost.sql import BlockingConnection
from fencepost.sql.connections import Fenced, kind, require_blocking

__all__ = ["Epoch", "admit", "ddl", "enter", "epoch_column", "fenced", "guard", "mark", "prepare", "removal"]

C = TypeVar("C", bound=BlockingConnection)

_THERE = "contrib.sqlalchemy.aio"


def admit(
    session: BlockingConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> bool:
    """Return once the write that follows in this session's transaction may be made; the mark commits with it.

    Call it before the transaction's first read. It does not flush pending changes of a Session. Without a lease, the
    lease of the enclosing ``with lock:`` is used; ``payload`` and the errors are those of
    `fencepost.guards.postgres.admit`.

        with Session(engine) as session, session.begin():
            admit(session, "account/42", lease)
            session.get(Account, 42).balance -= 10
    """
    found: bool = _guard(session).admit(session, resource, lease, payload=payload, hooks=hooks, policy=policy)
    return found


def enter(
    session: BlockingConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does.

    For example::

        with Session(engine) as session, session.begin():
            enter(session, "account/42", lease)
            balance = session.get(Account, 42).balance
    """
    _guard(session).enter(session, resource, lease, hooks=hooks, policy=policy)


def fenced(
    session: C,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> Fenced[C]:
    """A whole transaction of a session: admitted before it can read, committed at the end, rolled back if it raises.

    ConfigError if the session is in a transaction already: what it has read may be older than its lease.

        with fenced(session, "account/42", lease):
            session.get(Account, 42).balance -= 10
    """
    return _guard(session).fenced(session, resource, lease, hooks=hooks, policy=policy)  # type: ignore[no-any-return]


def mark(session: BlockingConnection, resource: str) -> Stamp | None:
    """The largest stamp admitted so far, as this session sees it; None if there is none.

    For example::

        seen = mark(session, "account/42")
    """
    return _guard(session).mark(session, resource)  # type: ignore[no-any-return]


def prepare(metadata: MetaData) -> None:
    """Have ``metadata.create_all`` create what the guard needs, too. It may run again where that exists already.

    ``drop_all`` does not drop it: without its mark, a resource admits a replaced holder again.

        prepare(Base.metadata)
        Base.metadata.create_all(engine)
    """
    event.listen(metadata, "before_create", _creating(None, {}))


def guard(
    table: Any,
    *,
    resource: str | None = None,
    column: str | None = None,
    key: Iterable[str] = (),
    ceiling: Ceiling = "on",
) -> None:
    """Have the creation of ``table``, a Table or a mapped class, set the triggers that refuse unfenced changes.

    ``resource`` (Postgres) names what must have been admitted in the same transaction, such as ``account/{id}``;
    ``column`` is the row's epoch, which each change must raise, such as ``lock_epoch``. See
    `fencepost.guards.postgres.ddl` and, for ``key``, `fencepost.guards.sqlite.ddl`.

        guard(Account, resource="account/{id}")
    """
    found = getattr(table, "__table__", table)
    if not isinstance(found, Table):
        raise ConfigError(f"guard() takes a Table or a mapped class, not {table!r}")
    if (resource is None) == (column is None):
        raise ConfigError("a trigger needs either resource=, such as 'account/{id}', or column=, such as 'lock_epoch'")
    wanted = [column] if column else re.findall(r"\{([^{}]*)\}", resource or "")
    for name in [*wanted, *key]:
        if name not in found.columns:
            raise ConfigError(f"the table {found.name!r} has no column {name!r}")
    options = {"resource": resource, "column": column, "key": tuple(key), "ceiling": ceiling}
    event.listen(found, "after_create", _creating(found.fullname, options))


def ddl(
    dialect: str,
    table: str | None = None,
    *,
    resource: str | None = None,
    column: str | None = None,
    key: Iterable[str] = (),
    ceiling: Ceiling = "on",
) -> list[str]:
    """The statements that prepare a database, one in each string, and set triggers on ``table`` if one is named.

    ``dialect`` is SQLAlchemy's name: ``postgresql`` or ``sqlite``. For migrations see `fencepost.contrib.alembic`.

        for statement in ddl("postgresql", "account", resource="account/{id}"):
            connection.exec_driver_sql(statement)
    """
    if dialect == "postgresql":
        if key:
            raise ConfigError("key= is for SQLite; the triggers of Postgres need none")
        scripts = postgres.ddl(table, resource=resource, column=column, ceiling=ceiling)
        return [statement for script in scripts for statement in _statements(script)]
    if resource is not None:
        raise ConfigError("a trigger with resource= is for Postgres; with SQLite take column=")
    _require_sqlite(dialect)
    return [statement.strip() for statement in sqlite.ddl(table, column=column, key=tuple(key), ceiling=ceiling)]


def removal(dialect: str, table: str) -> list[str]:
    """The statements that take the triggers off a table; its marks and its epochs stay.

    For example::

        for statement in removal("postgresql", "account"):
            connection.exec_driver_sql(statement)
    """
    if dialect == "postgresql":
        name = ".".join(map(_quoted, table.split(".")))
        return [f"DROP TRIGGER IF EXISTS fencepost_{each} ON {name}" for each in ("fenced", "epoch", "truncate")]
    _require_sqlite(dialect)
    names = ("epoch", "leap", "delete", "move", "replace", "replaced", "leapt")
    return [f"DROP TRIGGER IF EXISTS {_quoted(f'fencepost_{each} {table}')}" for each in names]


def epoch_column(name: str = EPOCH) -> Column[int]:
    """The column for the column form, `fencepost.guards.column`: in a Table, or for ``op.add_column``.

    For example::

        op.add_column("account", epoch_column())
    """
    return Column(name, BigInteger, nullable=False, server_default="0")


class Epoch:
    """A mixin for mapped classes: the column for the column form, `fencepost.guards.column`.

    For example::

        class Account(Epoch, Base):
            __tablename__ = "account"
            id: Mapped[int] = mapped_column(primary_key=True)
    """

    lock_epoch: Mapped[int] = mapped_column(BigInteger, nullable=False, server_default="0")


def dialect_of(session: Any) -> str:
    """SQLAlchemy's name of the database; ConfigError if this is no session or connection of SQLAlchemy's."""
    if not kind(session).startswith("sqlalchemy"):
        raise ConfigError(f"a Session or a Connection of SQLAlchemy is needed here, not {type(session)!r}")
    bound = session.get_bind() if hasattr(session, "get_bind") else session
    return str(bound.dialect.name)


def guard_of(dialect: str) -> Any:
    """The guard for a database; ConfigError if there is none."""
    if dialect == "postgresql":
        return postgres
    _require_sqlite(dialect)
    return sqlite


def _guard(session: Any) -> Any:
    require_blocking(session, _THERE)
    return guard_of(dialect_of(session))


def _require_sqlite(dialect: str) -> None:
    if dialect != "sqlite":
        raise ConfigError(f"there are guards for postgresql and sqlite, not for {dialect!r}")


def _creating(table: str | None, options: dict[str, Any]) -> Callable[..., None]:
    def create(_: object, connection: Connection, **__: object) -> None:
        for statement in ddl(connection.dialect.name, table, **options):
            connection.exec_driver_sql(statement)

    return create


def _statements(script: str) -> list[str]:
    """Each statement of a script of ours, which some drivers, such as asyncpg, take only one by one."""
    found: list[str] = []
    lines: list[str] = []
    quoted = False
    for line in script.splitlines():
        lines.append(line)
        quoted ^= line.count("$$") % 2 == 1
        if line.endswith(";") and not quoted:
            found.append("\n".join(lines).strip())
            lines = []
    found.append("\n".join(lines).strip())
    return [each for each in found if each]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
