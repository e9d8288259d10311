"""``fencepost guard``: prepare a database for guards, watch a rollout, raise a mark."""

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from fencepost.cli import exits
from fencepost.cli.database import connected
from fencepost.cli.options import Duration, Json
from fencepost.cli.text import say
from fencepost.errors import ConfigError
from fencepost.events import Event, Hook
from fencepost.rule import Stamp

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def guard() -> None:
    """Prepare a database for guards, watch their rollout, and raise a mark by hand."""


@app.command()
def report(
    log: Annotated[Path, typer.Argument(help="The audit log of the guards: JSON lines.")],
    since: Annotated[
        float | None, Duration(help="Look only at the last so many hours, such as 24h; default: all.")
    ] = None,
    decisions: Annotated[int, typer.Option(help="How many decisions are enough to judge by.")] = 1000,
    stale: Annotated[float, typer.Option(help="Largest share of stale accesses to go on with, in percent.")] = 0.1,
    as_json: Json = False,
) -> None:
    """Say how each guard fared in the mode it is in, and whether it is safe to go one step further.

    Ends with 1 if something speaks against it for any guard.
    """
    from fencepost.guards.rollout import fared
    from fencepost.hooks import audit

    try:
        found = fared(audit.read(log), since=0.0 if since is None else time.time() - since)
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
                "overrides": each.overrides,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            for line in _told(row):
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
    lines += [f"  not yet: {obstacle}" for obstacle in row["obstacles"]]
    if row["safe"]:
        lines.append(f"  safe to go on to {row['next']}" if row["next"] else "  at the top; nothing speaks against it")
    return lines


@app.command()
def install(
    url: Annotated[str, typer.Argument(help="The database: postgresql://... or sqlite:///path.")],
    table: Annotated[str | None, typer.Argument(help="A table to set a trigger on.")] = None,
    resource: Annotated[
        str | None, typer.Option(help="What a row is called, such as 'account/{id}' (Postgres only).")
    ] = None,
    column: Annotated[str | None, typer.Option(help="The column that holds a row's epoch, such as lock_epoch.")] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the statements for a migration, and run nothing.")
    ] = False,
) -> None:
    """Create the table of marks; with TABLE, a trigger that refuses updates which are not fenced, psql included."""
    if url.startswith(("postgres://", "postgresql://")):
        from fencepost.guards import postgres

        statements = postgres.ddl(table, resource=resource, column=column)
    elif url.startswith("sqlite:"):
        from fencepost.guards import sqlite

        if resource is not None:
            raise ConfigError("SQLite has no transaction-wide memory for a trigger to ask; use --column")
        statements = sqlite.ddl(table, column=column, key=_primary_key(url, table) if table else ())
    else:
        raise ConfigError(f"guards are installed in postgresql:// and sqlite:, not in {url.partition(':')[0]!r}")
    if show:
        print(";\n\n".join(statement.strip().rstrip(";") for statement in statements) + ";")
        return
    _run(url, statements)
    print(f"installed{f', with a trigger on {table}' if table else ''}")


@app.command("raise")
def raise_mark(
    url: Annotated[
        str,
        typer.Argument(
            help="Where the marks are: postgresql://, sqlite:, redis://, etcd://, s3://bucket/prefix or file:///folder."
        ),
    ],
    resource: Annotated[str, typer.Argument(help="The resource.")],
    to: Annotated[int, typer.Option(help="Every token up to this one is refused from now on.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")],
    audit: Annotated[Path, typer.Option(envvar="FENCEPOST_AUDIT", help="The audit log; default: $FENCEPOST_AUDIT.")],
    as_json: Json = False,
) -> None:
    """Raise a resource's mark by hand, never lower it: for marks that were restored from a backup."""
    from fencepost.hooks.audit import Audit

    if not reason.strip():
        raise ConfigError("raising a mark needs a reason, for the readers of the audit log")
    log, seen = Audit(audit, sync="always"), list[Event]()

    def tell(event: Event) -> None:
        seen.append(event)
        log(replace(event, detail=reason))

    mark = _raise(url, resource, to, [tell])
    before = seen[-1].seen if seen else None
    if as_json:
        print(json.dumps({"resource": resource, "before": before, "mark": str(mark.token)}))
    else:
        raised = (
            f"raised from {before} to {mark.token}" if mark.token != before else f"stays at {before}: never lowered"
        )
        say(f"{resource}  {raised}")


def _primary_key(url: str, table: str) -> list[str]:
    with connected(url) as conn:
        columns = conn.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY pk", (table,)).fetchall()
    if not columns:
        raise ConfigError(f"there is no table {table!r}; a trigger is set on one that is there")
    return [name for name, place in columns if place]


def _run(url: str, statements: list[str]) -> None:
    with connected(url) as conn:
        for statement in statements:
            conn.execute(statement)


def _raise(url: str, resource: str, to: int, hooks: Iterable[Hook]) -> Stamp:
    """Raise a mark in the store behind ``url``; the mark now."""
    mark: Stamp
    if url.startswith(("postgres://", "postgresql://")):
        from fencepost.guards import postgres

        with connected(url) as conn:
            mark = postgres.raise_mark(conn, resource, to=to, hooks=hooks)
    elif url.startswith("sqlite:"):
        from fencepost.guards import sqlite

        with connected(url) as conn:
            mark = sqlite.raise_mark(conn, resource, to=to, hooks=hooks)
    else:
        mark = _guard(url, hooks).raise_mark(resource, to=to)
    return mark


def _guard(url: str, hooks: Iterable[Hook]) -> Any:
    """The guard whose marks are behind ``url``."""
    place = urlsplit(url)
    if place.scheme in ("redis", "rediss"):
        import redis as client

        from fencepost.guards import RedisGuard

        return RedisGuard(client.from_url(url), hooks=hooks)
    if place.scheme == "etcd":
        from fencepost.guards import EtcdGuard

        return EtcdGuard(*(f"http://{host}" for host in place.netloc.split(",")), hooks=hooks)
    if place.scheme == "s3":
        import boto3

        from fencepost.guards import S3Guard

        return S3Guard(boto3.client("s3"), place.netloc, prefix=place.path.removeprefix("/"), hooks=hooks)
    if place.scheme == "file":
        from fencepost.guards import FileGuard

        return FileGuard(place.path, hooks=hooks)
    raise ConfigError(f"no marks in {place.scheme!r}; there are postgresql, sqlite, redis, etcd, s3 and file")
