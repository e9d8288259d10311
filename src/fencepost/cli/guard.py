"""``fencepost guard``: prepare a database for guards, watch a rollout, raise or lower a mark."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from fencepost import check
from fencepost.address import TLS, Address, masked, parse, seconds, secure, tls_context
from fencepost.cli import exits
from fencepost.cli.database import connected
from fencepost.cli.options import Ceiling, Duration, Json, Switch
from fencepost.cli.text import complain, say
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Event, Hook
from fencepost.rule import Stamp

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def guard() -> None:
    """Prepare a database for guards, watch their rollout, and raise or lower a mark by hand."""


@app.command()
def report(
    log: Annotated[Path, typer.Argument(help="The audit log of the guards: JSON lines.")],
    since: Annotated[
        float | None, Duration(help="Look only at the last so many hours, such as 24h; default: all.")
    ] = None,
    decisions: Annotated[int, typer.Option(help="How many decisions are enough to judge by.")] = 1000,
    stale: Annotated[float, typer.Option(help="Most stale accesses to go on with, in percent of all.")] = 0.1,
    as_json: Json = False,
) -> None:
    """Say how each guard fared in the mode it is in, and whether it is safe to go one step further.

    Ends with 1 if something speaks against it for any guard. In every mode it names the resources that are written
    without a token: that does not speak against shadow, but strict refuses those writes. Of locks that write to the
    same log, fencepost's own and those of fencepost.compat, it says how often their holders lost them.
    """
    from fencepost.guards.rollout import fared
    from fencepost.hooks import audit
    from fencepost.hooks.losses import losses

    start = 0.0 if since is None else time.time() - since
    try:
        found = fared(audit.read(log), since=start)
        lost = losses(audit.read(log), since=start)
    except OSError as error:
        raise ConfigError(f"the audit log {str(log)!r} cannot be read: {error.strerror}") from error
    rows: list[dict[str, Any]] = []
    for each in found:
        obstacles = each.obstacles(decisions=decisions, stale=stale / 100)
        rows.append(
            {
                "guard": each.guard,
                "mode": each.mode,
                "next": each.next(),
                "safe": not obstacles,
                "obstacles": obstacles,
                "decisions": each.decisions,
                "hours": round((each.last - each.first) / 3600, 2),
                "refused": dict(each.refused),
                "would_have_refused": dict(each.would),
                "without_token": each.missing,
                "without_token_resources": dict(each.without.most_common(5)),
                "overrides": each.overrides,
            }
        )
    holds = [
        {
            "locks": each.source,
            "acquired": each.acquired,
            "hours": round((each.last - each.first) / 3600, 2),
            "expired_while_executing": each.expired,
            "released_or_taken_by_another": each.taken,
            "released_too_late": each.too_late,
        }
        for each in lost
    ]
    if as_json:
        print(json.dumps(rows + holds, indent=2))
    else:
        for line in [line for row in rows for line in _told(row)] + [line for row in holds for line in _held(row)]:
            say(line)
        if not rows:
            print(f"{log} has no decision of a guard yet; give the guards hooks=[Audit({str(log)!r})]")
    if not rows or not all(row["safe"] for row in rows):
        raise typer.Exit(exits.FAILED)


def _told(row: dict[str, Any]) -> list[str]:
    lines = [f"{row['guard']}: {row['mode']}, {row['decisions']} decisions in {row['hours']:g} h"]
    for key in ("refused", "would_have_refused"):
        if row[key]:
            counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(row[key].items()))
            lines.append(f"  {key.replace('_', ' ')}: {counts}")
    if row["without_token"]:
        told = ", ".join(f"{count} to {name}" for name, count in row["without_token_resources"].items())
        rest = row["without_token"] - sum(row["without_token_resources"].values())
        lines.append(f"  writes without a token: {told}{f', {rest} to others' if rest else ''}")
    lines += [f"  not yet: {obstacle}" for obstacle in row["obstacles"]]
    if row["safe"]:
        lines.append(f"  safe to go on to {row['next']}" if row["next"] else "  at the top; nothing speaks against it")
    return lines


def _held(row: dict[str, Any]) -> list[str]:
    lines = [f"locks of {row['locks']}: {row['acquired']} acquired in {row['hours']:g} h"]
    counted = [key for key in row if key not in ("locks", "acquired", "hours") and row[key]]
    lines += [f"  {key.replace('_', ' ')}: {row[key]}" for key in counted]
    return lines if counted else [*lines, "  none was lost"]


@app.command()
def install(
    url: Annotated[
        str, typer.Argument(help="The database: postgresql://... or sqlite:///path; - means $FENCEPOST_DATABASE.")
    ],
    table: Annotated[str | None, typer.Argument(help="A table to set a trigger on.")] = None,
    resource: Annotated[
        str | None, typer.Option(help="What a row is called, such as 'account/{id}' (Postgres only).")
    ] = None,
    column: Annotated[str | None, typer.Option(help="The column that holds a row's epoch, such as lock_epoch.")] = None,
    ceiling: Ceiling = Switch.ON,
    show: Annotated[
        bool, typer.Option("--print", help="Print the statements for a migration, and run nothing.")
    ] = False,
) -> None:
    """Create the table of marks; with TABLE, a trigger that refuses updates which are not fenced, psql included."""
    url = _given(url)
    if table and (resource is None) == (column is None) and not url.startswith("sqlite:"):
        raise ConfigError("a trigger needs either --resource, such as 'account/{id}', or --column, such as lock_epoch")
    if table and column is None and resource is None and url.startswith("sqlite:"):
        raise ConfigError("a trigger needs --column, such as lock_epoch")
    if url.startswith(("postgres://", "postgresql://")):
        from fencepost.guards import postgres

        statements = postgres.ddl(table, resource=resource, column=column, ceiling=ceiling.value)
    elif url.startswith("sqlite:"):
        from fencepost.guards import sqlite

        if resource is not None:
            raise ConfigError("SQLite has no transaction-wide memory for a trigger to ask; use --column")
        key = _primary_key(url, table) if table else ()
        statements = sqlite.ddl(table, column=column, key=key, ceiling=ceiling.value)
    else:
        raise ConfigError(f"guards are installed in postgresql:// and sqlite:, not in {url.partition(':')[0]!r}")
    if show:
        print(";\n\n".join(statement.strip().rstrip(";") for statement in statements) + ";")
        return
    _run(url, statements)
    print(f"installed{f', with a trigger on {table}' if table else ''}")


@app.command()
def uninstall(
    url: Annotated[
        str, typer.Argument(help="The database: postgresql://... or sqlite:///path; - means $FENCEPOST_DATABASE.")
    ],
    table: Annotated[
        str | None, typer.Argument(help="Remove only the triggers on this table; default: marks and all triggers.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    show: Annotated[
        bool, typer.Option("--print", help="Print the statements for a migration, and run nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what install left: with TABLE its triggers, else the marks and every trigger and function too.

    First stop the guarded programs, or set their policy to off. A database whose marks are gone has forgotten who was
    replaced: it admits every token once more. Columns of yours, such as lock_epoch, stay. So do fencepost_run and
    fencepost_saga, the memory of once() and of sagas, unless they are empty.
    """
    from fencepost.cli.uninstall import look

    url = _given(url)
    with connected(url) as conn:
        found = look(conn, table)
    if show:
        print(
            "".join(f"{each};\n" for each in found.statements) or "-- nothing of fencepost's guards is here\n", end=""
        )
        return
    if found.statements and not yes:
        if not _at_a_terminal():
            raise ConfigError("uninstall asks before it removes anything, and this is no terminal; give --yes")
        complain(f"this removes {found.words() or 'functions of fencepost'}")
        if found.marks:
            complain("without its marks the database admits holders that were replaced")
        typer.confirm("Remove it?", abort=True, err=True)
    with connected(url) as conn:
        if url.startswith("sqlite:"):
            conn.execute("BEGIN IMMEDIATE")  # sqlite3 would commit each statement by itself
        found = look(conn, table)
        for statement in found.statements:
            conn.execute(statement)
    if as_json:
        print(json.dumps(found.facts()))
        return
    say(f"removed {found.words() or 'functions of fencepost'}" if found.statements else "nothing was there to remove")
    for name, rows in found.kept.items():
        say(f"kept {name}, which has {rows} row{'' if rows == 1 else 's'}")


Marks = Annotated[
    str,
    typer.Argument(
        help="Where the marks are: postgresql://, sqlite:, redis://, etcd://, s3://bucket/prefix or "
        "file:///folder; - means $FENCEPOST_DATABASE.",
        metavar="URL",
    ),
]
Resource = Annotated[str, typer.Argument(help="The resource.")]
Reason = Annotated[str, typer.Option(help="Why, for the audit log.")]
AuditLog = Annotated[Path, typer.Option(envvar="FENCEPOST_AUDIT", help="The audit log; default: $FENCEPOST_AUDIT.")]


@app.command("raise")
def raise_mark(
    url: Marks,
    resource: Resource,
    to: Annotated[int, typer.Option(help="Every token up to this one is refused from now on.")],
    reason: Reason,
    audit: AuditLog,
    as_json: Json = False,
) -> None:
    """Raise a resource's mark by hand, never lower it: for marks that were restored from a backup."""
    told = list[Event]()
    mark = _by_hand(_given(url), "raise_mark", resource, [told.append, _audited(audit, reason)], to=to)
    before = told[-1].seen if told else None
    if before is None:
        complain(f"{resource!r} had no mark there: make sure that URL and name are those that the programs use")
    if as_json:
        print(_as_json(resource, before, mark.token))
    else:
        raised = f"raised from {before or 'no mark'} to {mark.token}"
        say(f"{resource}  {raised if mark.token != before else f'stays at {before}: never lowered'}")


def _as_json(resource: str, before: int | None, mark: int) -> str:
    seen = None if before is None else check.json_number(before)
    return json.dumps({"resource": resource, "before": seen, "mark": check.json_number(mark)})


def _given(url: str) -> str:
    """The URL, or for - that of the environment: other users can see a command's arguments, and passwords in them."""
    if url != "-":
        return url
    if not (found := os.environ.get("FENCEPOST_DATABASE")):
        raise ConfigError("- means $FENCEPOST_DATABASE, which is not set")
    return found


@app.command("lower")
def lower_mark(
    url: Marks,
    resource: Resource,
    to: Annotated[int, typer.Option(help="Every token above this one may write again.")],
    seen: Annotated[int, typer.Option(help="The mark's token, as a refusal names it; nothing is done if it moved.")],
    reason: Reason,
    audit: AuditLog,
    as_json: Json = False,
) -> None:
    """Lower a resource's mark by hand: for one that was raised by a token which no issuer gave out.

    Until then every honest holder is refused. Afterwards every token above --to may write again, older ones of holders
    that were replaced too: make sure that none of those is left.
    """
    mark = _by_hand(_given(url), "lower_mark", resource, [_audited(audit, reason)], to=to, seen=seen)
    if as_json:
        print(_as_json(resource, seen, mark.token))
    else:
        say(f"{resource}  lowered from {seen} to {mark.token}")


def _at_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _audited(path: Path, reason: str) -> Hook:
    from fencepost.hooks.audit import Audit

    if not reason.strip():
        raise ConfigError("changing a mark by hand needs a reason, for the readers of the audit log")
    log = Audit(path, sync="always")
    return lambda event: log(replace(event, detail=reason))


def _primary_key(url: str, table: str) -> list[str]:
    with connected(url) as conn:
        columns = conn.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY pk", (table,)).fetchall()
    if not columns:
        raise ConfigError(f"there is no table {table!r}; a trigger is set on one that is there")
    return [name for name, rank in columns if rank]


def _run(url: str, statements: list[str]) -> None:
    with connected(url) as conn:
        for statement in statements:
            conn.execute(statement)


def _by_hand(url: str, call: str, resource: str, hooks: Iterable[Hook], **options: int) -> Stamp:
    """Change a mark in the store behind ``url`` by hand; the mark now."""
    mark: Stamp
    if url.startswith(("postgres://", "postgresql://")):
        from fencepost.guards import postgres

        with connected(url) as conn:
            mark = getattr(postgres, call)(conn, resource, hooks=hooks, **options)
    elif url.startswith("sqlite:"):
        from fencepost.guards import sqlite

        with connected(url) as conn:
            mark = getattr(sqlite, call)(conn, resource, hooks=hooks, **options)
    else:
        with _guard(url, hooks) as guard:
            mark = getattr(guard, call)(resource, **options)
    return mark


def _etcd(address: Address, hooks: Iterable[Hook]) -> Any:
    """etcd's guard for a URL like that of the locks: several hosts, user and password, ca=, cert=, key= or tls=1.

    prefix= and marks= are the guard's own.
    """
    from fencepost.guards import EtcdGuard

    options = address.options(**TLS, timeout=seconds, prefix=str, marks=str)
    if not address.hosts or not all(host for host, _ in address.hosts) or address.path.strip("/"):
        raise ConfigError("an etcd URL is etcd://host:2379, or etcd://host1,host2,host3:2379; it has no path")
    context = tls_context("etcd", options) if secure(options) else None
    scheme = "http" if context is None else "https"
    endpoints = [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port or 2379}" for host, port in address.hosts]
    timeout = options.get("timeout", 10.0)
    headers = {} if address.user is None else {"Authorization": _login(endpoints, address, context, timeout)}
    own = {key: options[key] for key in ("prefix", "marks") if key in options}
    return EtcdGuard(*endpoints, **own, context=context, headers=headers, timeout=timeout, hooks=hooks)


def _login(endpoints: list[str], address: Address, context: Any, timeout: float) -> str:
    """A token for etcd's user, from the first member that answers."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    body = json.dumps({"name": address.user, "password": address.password or ""}).encode()
    why = ""
    for endpoint in endpoints:
        try:
            with urlopen(Request(f"{endpoint}/v3/auth/authenticate", body), timeout=timeout, context=context) as answer:
                return str(json.load(answer)["token"])
        except HTTPError as error:
            error.close()
            if 400 <= error.code < 500:
                raise ConfigError("etcd rejected the credentials; check user and password in the URL") from None
            why = f"HTTP {error.code}"
        except (OSError, ValueError, KeyError) as error:
            why = type(error).__name__
    raise BackendError(f"etcd did not answer: {why}", backend="etcd", ambiguous=False)


@contextmanager
def _guard(url: str, hooks: Iterable[Hook]) -> Iterator[Any]:
    """The guard whose marks are behind ``url``."""
    address = parse(url)
    if address.scheme in ("redis", "rediss"):
        from fencepost.guards import RedisGuard

        own: dict[str, Any] = {key: value for key, value in address.params.items() if key == "prefix"}
        with _redis(url, address) as client:
            yield RedisGuard(client, **own, hooks=hooks)
    elif address.scheme == "etcd":
        with closing(_etcd(address, hooks)) as guard:
            yield guard
    elif address.scheme == "s3":
        import boto3

        from fencepost.guards import S3Guard

        if address.user is not None or [port for _, port in address.hosts] != [None]:
            raise ConfigError("an S3 URL is s3://bucket/prefix; boto3 finds the credentials by itself")
        with closing(boto3.client("s3")) as client:
            yield S3Guard(client, address.hosts[0][0], prefix=address.path.removeprefix("/"), hooks=hooks)
    elif address.scheme == "file":
        from fencepost.guards import FileGuard

        # The guard would create a missing folder, and the marks that the programs use would not change.
        if address.hosts or not address.path or not Path(address.path).is_dir():
            raise ConfigError("name the folder that the programs' FileGuard has, as file:///path/to/folder")
        yield FileGuard(address.path, hooks=hooks)
    else:
        raise ConfigError(f"no marks in {address.scheme!r}; there are postgresql, sqlite, redis, etcd, s3 and file")


_REDIS_PY = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
"""What redis-py calls the options of a lock's URL."""


def _redis(url: str, address: Address) -> Any:
    """redis-py's client for a URL. It gets the login apart, since its errors repeat a URL that it cannot parse."""
    try:
        from redis import RedisError, from_url
    except ModuleNotFoundError as error:
        raise ConfigError(f"marks in Redis need {error.name!r}: pip install 'fencepost[redis-py]'") from error

    if len(address.hosts) != 1 or address.hosts[0][0] == "":
        raise ConfigError("a Redis URL with marks names one server: redis://host:6379/0")
    ((host, port),) = address.hosts
    params = {
        _REDIS_PY.get(key, key): value for key, value in address.params.items() if key not in ("prefix", "verify")
    }
    if address.params.get("verify") == "0":
        params |= {"ssl_cert_reqs": "none", "ssl_check_hostname": "False"}
    options = urlencode(params)
    server = f"{address.scheme}://{f'[{host}]' if ':' in host else host}:{port or 6379}{address.path}?{options}"
    given: dict[str, Any] = {"username": address.user, "password": address.password}
    if address.scheme == "rediss" and params.get("ssl_cert_reqs") != "none":
        given["ssl_check_hostname"] = True  # redis-py before 6.0 does not; an option in the URL has the last word
    try:
        client = from_url(server, **given)
        client.connection_pool.make_connection()  # redis-py checks most options only here
        return client
    except (ValueError, TypeError, RedisError):
        raise ConfigError(f"{masked(url)!r}: redis-py cannot use an option of this URL") from None
