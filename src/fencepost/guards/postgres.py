"""A guard for Postgres: the mark lives in the caller's database and moves in the caller's transaction.

    with conn.transaction():
        postgres.admit(conn, "account/42", lease)
        conn.execute("UPDATE account SET balance = %s WHERE id = 42", (balance,))

``conn`` is a connection of psycopg or Django, or a Connection or Session of SQLAlchemy; `fencepost.guards.aio.postgres`
is for asyncio ones, which are refused here. The database is prepared once, by ``fencepost guard install`` or
``install``: no statement here creates anything inside the caller's transaction. Errors of the driver are raised
unchanged: the caller owns the transaction, and decides whether to run it again.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from importlib import resources
from typing import Any, TypeAlias, TypeVar, cast

from fencepost import check
from fencepost.errors import ConfigError, NotAcquired
from fencepost.events import Event, Hook, Hooks
from fencepost.guards.judgement import Judgement, lowering, moved
from fencepost.guards.policy import Ceiling, Policy, has_ceiling
from fencepost.lease import AMBIENT, Fence, FenceOrAmbient
from fencepost.rule import Stamp, Verdict
from fencepost.sql import BlockingConnection
from fencepost.sql.connections import Fenced, require_blocking
from fencepost.sql.postgres import alone, ask, on, state

__all__ = ["admit", "admit_all", "ddl", "enter", "fenced", "install", "locked", "lower_mark", "mark", "raise_mark"]

C = TypeVar("C", bound=BlockingConnection)
T = TypeVar("T")
Job: TypeAlias = Callable[[Any], Coroutine[Any, Any, T]]
"""A job for a connection, blocking or asyncio."""

_THERE = "guards.aio.postgres"

# The fast path: a write that raises an existing mark takes this one statement. If it changes no row, _JUDGE decides.
_RAISE = """UPDATE fencepost_mark
    SET before = token, token = %s, seq = %s, holder = %s, digest = %s, writer = pg_current_xact_id()
    WHERE resource = %s AND (token < %s OR (token = %s AND holder = %s AND seq < %s)) RETURNING before"""
_JUDGE = "SELECT * FROM fencepost_judge(%s, %s, %s, %s, %s, %s, %s, %s)"
_MARK = "SELECT token, seq, holder FROM fencepost_mark WHERE resource = %s"
_RAISE_TO = """INSERT INTO fencepost_mark VALUES (%s, %s, 1, '') ON CONFLICT (resource)
    DO UPDATE SET token = excluded.token, seq = 1, holder = '', digest = NULL, writer = NULL
    WHERE fencepost_mark.token <= excluded.token"""
_LOWER = """UPDATE fencepost_mark SET token = %s, seq = 1, holder = '', digest = NULL, writer = NULL
    WHERE resource = %s AND token = %s RETURNING token"""
_ISOLATION = "current_setting('transaction_isolation')"
_LOCK = f"SELECT {_ISOLATION}, pg_advisory_xact_lock(hashtextextended(%s, 7378434))"
_TRY_LOCK = f"SELECT {_ISOLATION}, pg_try_advisory_xact_lock(hashtextextended(%s, 7378434))"
_FRESH = {"read committed", "read uncommitted"}  # each statement sees what was committed before it began
_PATIENCE = "SELECT set_config('lock_timeout', %s, true)"


def admit(
    conn: BlockingConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> bool:
    """Return once the write that follows in this transaction may be made; the mark commits with it.

    One round trip, two on first use and on refusal; it locks the mark's row until the transaction ends.
    Without a lease, the lease of the enclosing ``with lock:`` is used. Without a payload every repeated
    stamp is refused, so code that gets past this line may write. With the write's payload, a retry of the same
    write is recognised: True means write, False means that it is in the database already, and must not be
    made again.

    Raises the Refused of the verdict: then nothing was changed, and the transaction can go on; ConfigError
    outside a transaction, in a database that was not prepared, or for an asyncio connection.
    """
    require_blocking(conn, _THERE)
    return on(conn, admitting(resource, lease, payload, hooks, policy))  # type: ignore[no-any-return]


def admit_all(
    conn: BlockingConnection,
    leases: Mapping[str, Fence],
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Admit one write to each of several resources, always in the same order, so that callers do not deadlock.

    Raises as ``admit`` does: then roll back.

        postgres.admit_all(conn, {"account/1": lease, "account/2": other})
    """
    require_blocking(conn, _THERE)
    on(conn, admitting_all(leases, hooks, policy))


def enter(
    conn: BlockingConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does.

    For example::

        postgres.enter(conn, "account/42", lease)
        (balance,) = conn.execute("SELECT balance FROM account WHERE id = 42").fetchone()
    """
    require_blocking(conn, _THERE)
    on(conn, entering(resource, lease, hooks, policy))


def fenced(
    conn: C, resource: str, lease: FenceOrAmbient = AMBIENT, *, hooks: Iterable[Hook] = (), policy: Policy | None = None
) -> Fenced[C]:
    """A whole transaction for reading, changing and writing: admitted before it can read, committed at the end.

    For example::

        with postgres.fenced(conn, "account/42", lease):
            conn.execute("UPDATE account SET balance = balance - 10 WHERE id = 42")
    """
    require_blocking(conn, _THERE)
    return Fenced(conn, lambda conn: admit(conn, resource, lease, hooks=hooks, policy=policy))


def locked(conn: BlockingConnection, name: str, *, timeout: float | timedelta | None = None) -> None:
    """Return once this transaction alone holds the lock called ``name``; the lock is free when the transaction ends.

    Use it for data in this same database: lock and data are then in one transaction, so there is no lease to lose, no
    token to check, and nothing to clean up after a crash. It excludes other transactions that call ``locked``, not
    leases of a backend. It is for work that is short enough for one transaction.

    Raises NotAcquired after ``timeout`` seconds: with 0 the transaction can go on, else it must be rolled back.
    ConfigError outside a transaction, and in a REPEATABLE READ or SERIALIZABLE one: it would see the database as it was
    before the wait, without what the previous holder wrote.

        with conn.transaction():
            postgres.locked(conn, "account/42", timeout=5)
            conn.execute("UPDATE account SET balance = balance - 10 WHERE id = 42")
    """
    require_blocking(conn, _THERE)
    on(conn, locking(name, timeout))


def mark(conn: BlockingConnection, resource: str) -> Stamp | None:
    """The largest stamp admitted so far, as this connection sees it; None if there is none.

    For example::

        seen = postgres.mark(conn, "account/42")
        print(seen.token if seen else "no write yet")
    """
    require_blocking(conn, _THERE)
    return cast(Stamp | None, on(conn, looking(resource)))


def raise_mark(conn: BlockingConnection, resource: str, *, to: int, hooks: Iterable[Hook] = ()) -> Stamp:
    """Refuse every token up to ``to`` from the commit on, and return the mark. A higher mark stays.

    For example::

        postgres.raise_mark(conn, "account/42", to=4711)
    """
    require_blocking(conn, _THERE)
    return cast(Stamp, on(conn, raising(resource, to, hooks)))


def lower_mark(conn: BlockingConnection, resource: str, *, to: int, seen: int, hooks: Iterable[Hook] = ()) -> Stamp:
    """Lower the mark to ``to`` if its token is still ``seen``, and return it. ConfigError if the mark has changed.

    Use it when a token that no issuer gave out has raised the mark. Every token above ``to`` may write again from the
    commit on: make sure that no replaced holder is still running.

        postgres.lower_mark(conn, "account/42", to=4711, seen=9223372036854775807)
    """
    require_blocking(conn, _THERE)
    return cast(Stamp, on(conn, lowering_to(resource, to, seen, hooks)))


def install(
    conn: BlockingConnection,
    table: str | None = None,
    *,
    resource: str | None = None,
    column: str | None = None,
    ceiling: Ceiling = "on",
) -> None:
    """Prepare the database in this transaction, and set a trigger on ``table`` if one is named; see ``ddl``.

    For example::

        with conn.transaction():
            postgres.install(conn, "account", resource="account/{id}")
    """
    require_blocking(conn, _THERE)
    on(conn, installing(ddl(table, resource=resource, column=column, ceiling=ceiling)))


def ddl(
    table: str | None = None, *, resource: str | None = None, column: str | None = None, ceiling: Ceiling = "on"
) -> list[str]:
    """The statements that prepare a database, for a migration; run them in one transaction.

    A trigger on ``table`` refuses updates that are not fenced, from any client, psql included: with
    ``resource``, such as "account/{id}", every UPDATE and DELETE of a row whose resource was not admitted in the
    same transaction; with ``column``, every UPDATE that does not raise that column, the row's epoch, or raises it to
    what no issuer can have come to, and every DELETE of a row that has one. Either way the trigger refuses TRUNCATE.

    ``ceiling="off"`` lets the trigger of a column accept any epoch, however high, as in a `Policy`; the statements
    that ran last decide.

        for statement in postgres.ddl("account", resource="account/{id}"):
            conn.execute(statement)
    """
    capped = has_ceiling(ceiling)
    if not capped and not (table and column):
        raise ConfigError("ceiling='off' is for the trigger of column=; who admits a resource has a Policy(ceiling=)")
    statements = [resources.files("fencepost.guards").joinpath("postgres.sql").read_text("utf-8")]
    if table is None:
        return statements
    if (resource is None) == (column is None):
        raise ConfigError("a trigger needs either resource=, such as 'account/{id}', or column=, such as 'lock_epoch'")
    name = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
    function, argument = ("fencepost_fenced", resource) if resource else ("fencepost_epoch", column)
    literal = "'" + (argument or "").replace("'", "''") + "'" + ("" if capped else ", 'ceiling off'")
    return [
        *statements,
        f"CREATE OR REPLACE TRIGGER {function} BEFORE UPDATE OR DELETE ON {name} FOR EACH ROW EXECUTE FUNCTION "
        f"{function}({literal})",
        f"CREATE OR REPLACE TRIGGER fencepost_truncate BEFORE TRUNCATE ON {name} FOR EACH STATEMENT EXECUTE FUNCTION "
        f"fencepost_truncate()",
    ]


# Jobs for a connection, which the blocking functions above and those of `guards.aio.postgres` share.


def admitting(
    resource: str, lease: FenceOrAmbient, payload: bytes | None, hooks: Iterable[Hook], policy: Policy | None
) -> Job[bool]:
    digest = None if payload is None else sha256(payload).digest()
    judgement = Judgement("postgres", resource, lease, "write", hooks, policy)
    return lambda conn: _pass(conn, resource, judgement, digest)


def admitting_all(leases: Mapping[str, Fence], hooks: Iterable[Hook], policy: Policy | None) -> Job[None]:
    judgements = [(each, Judgement("postgres", each, leases[each], "write", hooks, policy)) for each in sorted(leases)]

    async def all(conn: Any) -> None:
        for resource, judgement in judgements:
            await _pass(conn, resource, judgement, None)

    return all


def entering(resource: str, lease: FenceOrAmbient, hooks: Iterable[Hook], policy: Policy | None) -> Job[None]:
    judgement = Judgement("postgres", resource, lease, "enter", hooks, policy)

    async def enter(conn: Any) -> None:
        await _pass(conn, resource, judgement, None)

    return enter


def locking(name: str, timeout: float | timedelta | None) -> Job[None]:
    check.name(name)
    patience = None if timeout is None else check.seconds(timeout, "timeout")

    async def lock(conn: Any) -> None:
        if alone(conn):
            raise ConfigError(
                f"lock {name!r} would be free again at once, for this connection is in no transaction; open one around "
                f"locked() and what it protects"
            )
        if not await _lock(conn, name, patience):
            raise NotAcquired(
                name,
                patience or 0.0,
                f"could not acquire lock {name!r} in time: another transaction holds it; try again",
            )

    return lock


def looking(resource: str) -> Job[Stamp | None]:
    async def look(conn: Any) -> Stamp | None:
        row = await ask(conn, _MARK, (resource,))
        return Stamp(*row) if row else None

    return look


def raising(resource: str, to: int, hooks: Iterable[Hook]) -> Job[Stamp]:
    check.token(to)
    check.name(resource, "resource")

    async def lift(conn: Any) -> Stamp:
        before = await ask(conn, _MARK, (resource,))
        await ask(conn, _RAISE_TO, (resource, to), answers=False)
        seen = before[0] if before else None
        Hooks(hooks)(Event(kind="raise_mark", name=resource, source="postgres", token=to, seen=seen))
        return Stamp(*cast(tuple[int, int, str], await ask(conn, _MARK, (resource,))))

    return lift


def lowering_to(resource: str, to: int, seen: int, hooks: Iterable[Hook]) -> Job[Stamp]:
    after = lowering(resource, to, seen)

    async def lower(conn: Any) -> Stamp:
        if not await ask(conn, _LOWER, (to, resource, seen)):
            row = await ask(conn, _MARK, (resource,))
            raise moved(resource, seen, Stamp(*row) if row else None)
        Hooks(hooks)(Event(kind="lower_mark", name=resource, source="postgres", token=to, seen=seen))
        return after

    return lower


def installing(statements: Sequence[str]) -> Job[None]:
    async def install(conn: Any) -> None:
        for statement in statements:
            await ask(conn, statement, None, answers=False)

    return install


async def _lock(conn: Any, name: str, patience: float | None) -> bool:
    async def take(statement: str) -> Any:
        isolation, taken = cast(tuple[Any, ...], await ask(conn, statement, (name,)))
        if isolation not in _FRESH:
            raise ConfigError(
                f"a transaction of isolation {isolation!r} sees the database as it was before it waited for lock "
                f"{name!r}, without what the holder before it wrote; take READ COMMITTED for it"
            )
        return taken

    if patience == 0:
        return bool(await take(_TRY_LOCK))
    if patience is None:
        await take(_LOCK)
        return True
    before = cast(tuple[Any, ...], await ask(conn, "SELECT current_setting('lock_timeout')", ()))[0]
    await ask(conn, _PATIENCE, (f"{max(1, round(patience * 1000))}ms",))
    try:
        await take(_LOCK)
    except Exception as error:
        if state(error) == "55P03":  # lock not available
            return False
        raise
    await ask(conn, _PATIENCE, (before,))
    return True


async def _pass(conn: Any, resource: str, access: Judgement, digest: bytes | None) -> bool:
    if not access.judged:
        return True
    _require_transaction(conn)
    enters, retry = access.action == "enter", access.leased
    while True:
        offer = access.take()
        token, seq, holder = offer
        max_jump, max_first = access.limits(offer)
        if not enters and max_jump is None and max_first is None:
            row = await ask(conn, _RAISE, (token, seq, holder, digest, resource, token, token, holder, seq))
            if row:
                return access.conclude(Stamp(row[0]), offer, Verdict.ADMIT)
        row = await ask(conn, _JUDGE, (resource, token, seq, holder, digest, max_jump, max_first, enters))
        verdict, done, *mark = cast(tuple[Any, ...], row)
        if verdict == Verdict.LATE and retry:
            # Another thread that shares the lease overtook this one. The row is locked now, so the next stamp is newer.
            retry = False
            continue
        before = None if mark[0] is None else Stamp(*mark)
        return access.conclude(before, offer, Verdict(verdict), done=bool(done))


def _require_transaction(conn: Any) -> None:
    if alone(conn):
        raise ConfigError(
            "a mark outside the transaction of its write guards nothing, and this connection is in no transaction; "
            "open one around admit() and the write"
        )
