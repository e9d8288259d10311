"""What the settings of a Postgres server mean for the locks in it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from fencepost.backend import Finding
from fencepost.backends.exposure import is_remote
from fencepost.backends.postgres.connection import contents
from fencepost.backends.postgres.pool import Links

_FACTS = """SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication),
    current_setting('default_transaction_isolation'), current_setting('max_connections')::int,
    extract(epoch FROM clock_timestamp())::float8,
    (SELECT count(*) FROM {schema}.lock), (SELECT count(*) FROM {schema}.lock WHERE holder IS NOT NULL),
    (SELECT max(greatest(token, floor)) FROM {schema}.lock) > {schema}.us(clock_timestamp()),
    pg_table_size('{schema}.lock')"""

_LACKING = """SELECT current_user::text, what, array_agg(name) FROM (
        SELECT 'EXECUTE ON ALL FUNCTIONS', proname::text FROM pg_proc
        WHERE pronamespace = %s::regnamespace AND proname = ANY(%s) AND NOT has_function_privilege(oid, 'EXECUTE')
    UNION
        SELECT 'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES', relname::text
        FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS each
        WHERE relnamespace = %s::regnamespace AND relname = ANY(%s) AND NOT has_table_privilege(oid, each)
    ORDER BY 1, 2) AS lacking (what, name) GROUP BY what ORDER BY what"""


async def examine(links: Links, schema: str, wall: Callable[[], float] = time.time) -> list[Finding]:
    """All findings about the server. ``wall`` is this host's clock."""
    lacking = await links.rows(_LACKING, schema, contents("FUNCTION"), schema, contents("TABLE"))
    if lacking:
        return [_ungranted(schema, *each) for each in lacking]  # the server would refuse the other queries
    before = wall()
    ((facts),) = await links.rows(_FACTS.format(schema=schema))
    return [*_findings(facts, links.pooled, (before, wall())), *_route(*await links.route())]


def _ungranted(schema: str, user: str, what: str, names: list[str]) -> Finding:
    kind = what.rpartition(" ")[2].lower()
    some = ", ".join(names) if len(names) < 6 else f"{', '.join(names[:5])} and others"
    return Finding(
        "risk",
        f"{user} may not use {kind} of schema {schema}: {some}",
        f"what needs them is refused; let their owner run: GRANT {what} IN SCHEMA {schema} TO {user}",
    )


def _route(host: str, mode: str, encrypted: bool) -> Iterator[Finding]:
    """Whether the connection is safe. Only libpq knows the result of the URL, the environment and its files."""
    if not is_remote(host) or mode == "verify-full":
        return
    yield Finding(
        "risk",
        f"sslmode={mode} to {host}: {'nothing proves that it is the server' if encrypted else 'nothing is encrypted'}",
        "who is on the way can read the password or ask for it, and take and break every lock; use "
        "sslmode=verify-full and sslrootcert=",
    )


def _findings(facts: tuple[Any, ...], pooled: bool, asked: tuple[float, float]) -> Iterator[Finding]:
    """What the facts mean; ``asked`` is when the server was asked for them, and when it had answered."""
    version, standby, fsync, pages, commit, names, replicas, isolation, connections, clock, rows, held, ahead, size = (
        facts
    )
    before, after = asked
    skew = max(before - clock, clock - after, 0.0)  # at least: the answer may have been on its way all that time
    yield Finding("ok", f"PostgreSQL {version}", f"{rows} locks known, {held} held, {size // 1024} kB")
    if standby:
        yield Finding("risk", "this is a standby in recovery", "it takes no locks; name the primary, or several hosts")
    if fsync != "on" or pages != "on":
        yield Finding(
            "risk",
            f"fsync={fsync}, full_page_writes={pages}",
            "a power loss may corrupt the database; locks are the least of it",
        )
    elif commit == "off":
        yield Finding(
            "warn",
            "synchronous_commit=off",
            "a crash may forget the last grants: their holders go on until their deadlines, while others get the lock",
        )
    else:
        yield Finding(
            "ok", f"fsync=on, synchronous_commit={commit}", "a grant is on disk before its holder hears of it"
        )
    if replicas and not names:
        yield Finding(
            "warn",
            f"{replicas} asynchronous standby(s)",
            "a failover may forget the last grants; tokens still grow, as they follow the clock, and a guard refuses "
            "the older holder",
        )
    elif replicas:
        yield Finding("ok", f"{replicas} standby(s), synchronous: {names}", "a grant survives the loss of the primary")
    else:
        yield Finding("ok", "no standby is connected", "locks wait for this server to come back when it fails")
    yield Finding(
        "warn" if skew > 1 else "ok",
        f"the server's clock differs from this host's by {skew:.3f} s",
        "leases expire by the server's clock alone, and deadlines are counted here: only jumps matter"
        + ("; yet one of the two clocks is wrong" if skew > 1 else ""),
    )
    yield Finding(
        "warn" if ahead else "ok",
        "some tokens are ahead of the clock" if ahead else "no token is ahead of the clock",
        "the clock was set back, or tokens were bumped: do not prune these locks, for only their rows remember"
        if ahead
        else "after a restore from a backup, later tokens are still larger than those given out before",
    )
    if isolation != "read committed":
        yield Finding("warn", f"default_transaction_isolation={isolation}", "contended locks are retried, and slower")
    if pooled:
        yield Finding(
            "warn",
            "a connection pooler stands in between",
            "waiters cannot listen through it, so they ask again and again; give ?listen= a direct URL",
        )
    else:
        yield Finding(
            "ok",
            f"a direct connection; the server takes {connections}",
            "each process uses up to pool= of them, and one more to listen while it waits",
        )
