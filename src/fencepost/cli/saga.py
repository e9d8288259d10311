"""``fencepost saga``: see where sagas stand, and drive one by hand."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, get_args

import typer

from fencepost.cli.database import Database, connected, connected_async
from fencepost.cli.options import Backend, Json, store
from fencepost.cli.text import say
from fencepost.errors import ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True)

App = Annotated[str, typer.Argument(help="Your Saga, as module:attribute.", metavar="MODULE:SAGA")]
Id = Annotated[str, typer.Argument(help="The saga's id.")]


@app.callback()
def saga() -> None:
    """See where sagas stand, and drive one by hand."""


@app.command()
def ls(
    database: Database,
    state: Annotated[str | None, typer.Option(help="Only those in this state, such as stuck.")] = None,
    as_json: Json = False,
) -> None:
    """List sagas: how far each is, for how long it has not moved, and why it was turned back or is stuck."""
    from fencepost.saga import State

    if state is not None and state not in get_args(State):
        raise ConfigError(f"the state of a saga is one of {', '.join(get_args(State))}, not {state!r}")
    facts = [each for each in _all(database) if state in (None, each["state"])]
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for each in facts:
        say(_line(each))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="What the Saga is called.")],
    id: Id,
    database: Database,
    as_json: Json = False,
) -> None:
    """Show one saga: its args, and every step with its result, done, undone or to come."""
    found = next((each for each in _all(database) if (each["saga"], each["id"]) == (name, id)), None)
    if found is None:
        raise ConfigError(f"there is no saga {name} {id} in this database; see 'fencepost saga ls'")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    say(_line(found))
    say(f"  args {json.dumps(found['args'], ensure_ascii=False)}")
    for step in found["steps"]:
        result = "" if step["result"] is None else f"  {json.dumps(step['result'], ensure_ascii=False)}"
        say(f"  {step['state']:<9} {step['name']}{result}")


@app.command()
def resume(saga: App, database: Database, backend: Backend = None, as_json: Json = False) -> None:
    """Go on with every saga of this name that was interrupted and that nobody is at work on."""
    stands = _drive(saga, database, backend, lambda saga, locks, conn: saga.resume(locks, conn))
    if as_json:
        print(json.dumps(stands, indent=2))
    else:
        for id, state in stands.items():
            say(f"{id}  {state}")


@app.command()
def retry(saga: App, id: Id, database: Database, backend: Backend = None, as_json: Json = False) -> None:
    """Try a stuck saga's undo again, or go on with an interrupted one. Ends with 1 if it is compensated or stuck."""
    _drive(saga, database, backend, lambda saga, locks, conn: saga.retry(locks, conn, id))
    _tell(id, "done", as_json)


@app.command()
def compensate(saga: App, id: Id, database: Database, backend: Backend = None, as_json: Json = False) -> None:
    """Undo a saga instead of going on with it. Ends with 1 if it is stuck."""
    from fencepost.saga import Compensated

    try:
        _drive(saga, database, backend, lambda saga, locks, conn: saga.compensate(locks, conn, id))
    except Compensated:
        _tell(id, "compensated", as_json)


@app.command()
def skip(
    saga: App,
    id: Id,
    step: Annotated[str, typer.Argument(help="The step that somebody has undone by hand.")],
    database: Database,
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Take a stuck step as undone by hand, and go on undoing the others. Ends with 1 if it is stuck."""
    from fencepost.saga import Compensated

    try:
        _drive(saga, database, backend, lambda saga, locks, conn: saga.skip(locks, conn, id, step))
    except Compensated:
        _tell(id, "compensated", as_json)


def _tell(id: str, state: str, as_json: bool) -> None:
    print(json.dumps({id: state}) if as_json else state)


def _drive(path: str, database: str, backend: str | None, call: Callable[[Any, Any, Any], Any]) -> Any:
    import fencepost
    from fencepost.saga import Saga, aio

    module, _, attribute = path.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # whatever their module raises
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path!r} cannot be loaded as module:attribute: {what}") from error
    if isinstance(found, aio.Saga):
        return asyncio.run(_drive_async(found, database, backend, call))
    if not isinstance(found, Saga):
        raise ConfigError(f"{path!r} is a {type(found).__name__}, not a Saga")
    with fencepost.connect(store(backend)) as locks, connected(database) as conn:
        return call(found, locks, conn)


async def _drive_async(saga: Any, database: str, backend: str | None, call: Callable[[Any, Any, Any], Any]) -> Any:
    import fencepost

    async with fencepost.aio.connect(store(backend)) as locks, connected_async(database) as conn:
        return await call(saga, locks, conn)


def _all(database: str) -> list[dict[str, Any]]:
    import sqlite3

    from fencepost.saga import ledger
    from fencepost.sql.postgres import unprepared

    with connected(database) as conn:
        try:
            rows = conn.execute(ledger.LIST).fetchall()
        except Exception as error:
            if lacking := unprepared(error):
                raise lacking from error
            if not isinstance(error, sqlite3.OperationalError) or not ledger.SAGAS.missing(error):
                raise
            rows = []  # in SQLite, the first saga creates the table
    return [_fact(ledger.Record.read(row[0], row[1], row[2:])) for row in rows]


def _fact(record: Any) -> dict[str, Any]:
    def state(step: str) -> str:
        if step in record.undone:
            return "undone"
        if step in record.results:
            return "done"
        return "in doubt" if step == record.begun else ""

    steps = [{"name": step, "state": state(step), "result": record.results.get(step)} for step in record.steps]
    why = record.trouble or record.error
    facts = {"saga": record.saga, "id": record.id, "state": record.state, "next": record.step, "error": why}
    return {**facts, "since": record.at, "args": record.args, "steps": steps}


def _line(fact: dict[str, Any]) -> str:
    at = f" at {fact['next']}" if fact["next"] else ""
    why = f": {fact['error']}" if fact["error"] else ""
    return f"{fact['saga']} {fact['id']}  {fact['state']}{at}, {_age(time.time() - fact['since'])}{why}"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
