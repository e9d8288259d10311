"""``fencepost advise``: asks about a job, and says how little coordination it needs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, get_args
from urllib.error import URLError

import typer

from fencepost import address, registry
from fencepost.cli.options import Duration, Json, duration
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.advise import RUNGS, Advice, Answers, Resource, Store, Twice, advise, soonest
from fencepost_lab.advise.measured import Measured, measured

app = typer.Typer(add_completion=False)


def _choice(what: Any, help: str) -> Any:
    return typer.Option(help=help, metavar="|".join(get_args(what)))


@app.command()
def ask(
    twice: Annotated[str | None, _choice(Twice, "What breaks if it runs twice.")] = None,
    resource: Annotated[str | None, _choice(Resource, "Where its effect is; other: what is not yours.")] = None,
    checks: Annotated[
        bool | None, typer.Option("--checks/--no-checks", help="Whether the resource can check a token.")
    ] = None,
    together: Annotated[
        bool | None, typer.Option("--together/--apart", help="Whether lock and data can share a database.")
    ] = None,
    run_id: Annotated[
        bool | None, typer.Option("--run-id/--no-run-id", help="Whether each run has a name, like billing/42/2026-11.")
    ] = None,
    work: Annotated[float | None, Duration(help="How long the work takes, at the longest.")] = None,
    free: Annotated[float | None, Duration(help="How soon a dead holder's lock must be free.")] = None,
    survive: Annotated[
        bool | None,
        typer.Option("--survive/--no-survive", help="Whether locks must go on when a server of their store dies."),
    ] = None,
    store: Annotated[str | None, _choice(Store, "Where locks are to live; default: what suits.")] = None,
    data: Annotated[str | None, typer.Option(help="Where the data is, for the code: a URL, file or bucket.")] = None,
    backend: Annotated[str | None, typer.Option(help="The URL of the locks, for the code.")] = None,
    from_metrics: Annotated[
        str | None, typer.Option(metavar="URL", help="Take --work and the shortest ttl from a /metrics page of yours.")
    ] = None,
    ttl_now: Annotated[float, Duration(help="The ttl under which those metrics were measured.")] = 15.0,
    as_json: Json = False,
) -> None:
    """Say which rung of the ladder a job needs, what that guarantees, which ttl it takes, and print code that runs.

    Asks at a terminal what no option answers; elsewhere only --twice is needed, and what is left out is taken as no.
    """
    if backend is not None:
        store = _behind(backend, store)
    found = measured(_page(from_metrics)) if from_metrics else None
    if found is not None and work is None and found.work is not None:
        work = found.work.high if found.work.high < float("inf") else found.work.low
    if sys.stdin.isatty() and not as_json:
        answers = _asked(twice, resource, checks, together, run_id, work, free, survive, store)
    elif twice is None:
        raise ConfigError("say --twice nothing, waste or harm: what breaks if it runs twice is the first question")
    else:
        given = {"twice": twice, "resource": resource, "work": work, "free": free, "store": store}
        known: Any = {name: value for name, value in given.items() if value is not None}  # advise() looks at them
        answers = Answers(checks=checks, together=bool(together), run_id=bool(run_id), survive=bool(survive), **known)
    advice = advise(answers, data=data, locks=backend, measured=found, now=ttl_now)
    if as_json:
        print(json.dumps({**asdict(advice), "answers": asdict(answers), "measured": _told(found)}, indent=2))
    else:
        _print(advice, found)


def _behind(where: str, store: str | None) -> str | None:
    """The store that a URL of locks leads to; ``store`` itself for one of a third party."""
    scheme = address.parse(where).scheme
    if scheme not in registry.SCHEMES:
        registry.find(scheme)
        return store
    found = registry.SCHEMES[scheme].store
    if found not in get_args(Store):
        raise ConfigError(f"locks in {scheme}:// exclude nobody outside their process; name a store that others reach")
    if store not in (None, found):
        raise ConfigError(f"locks cannot live in {store}, for {scheme}:// is {found}; leave one of the two out")
    return found


def _asked(
    twice: str | None,
    resource: str | None,
    checks: bool | None,
    together: bool | None,
    run_id: bool | None,
    work: float | None,
    free: float | None,
    survive: bool | None,
    store: str | None,
) -> Answers:
    """The answers, asking only what is not known and still matters."""
    from rich.prompt import Confirm, Prompt

    def choose(text: str, options: Sequence[str], default: str) -> Any:
        return Prompt.ask(text, choices=list(options), default=default)

    def sure(known: bool | None, text: str, default: bool = False) -> bool:
        return Confirm.ask(text, default=default) if known is None else known

    def seconds(text: str, default: str) -> float:
        while True:
            try:
                return duration(Prompt.ask(text, default=default))
            except typer.BadParameter as error:
                print(error)

    twice = twice or choose("What breaks if it runs twice, or in two places at once?", get_args(Twice), "harm")
    resource = resource or choose("Where is its effect? (other: not yours)", get_args(Resource), "postgres")
    answers: Any = {"twice": twice, "resource": resource, "checks": checks, "store": store}
    if twice == "nothing":
        return Answers(**answers)
    if checks is None and resource in ("http", "s3", "file"):
        answers["checks"] = sure(None, "Can it check a token, that is, can you put a guard in front?", True)
    answers["run_id"] = sure(run_id, "Has each run a name of its own, such as billing/42/2026-11?")
    if resource in ("sqlite", "postgres") and not answers["run_id"] and twice == "harm":
        answers["together"] = sure(together, "Can lock and data share that database?", True)
    answers["work"] = seconds("How long does the work take, at the longest?", "10s") if work is None else work
    soon = f"{max(15.0, soonest(store) if store else 0.0):g}s"
    answers["free"] = seconds("How soon must a dead holder's lock be free?", soon) if free is None else free
    if not answers.get("together") and not answers["run_id"]:
        answers["survive"] = sure(survive, "Must locks go on when a server of their store dies?")
    return Answers(**answers)


def _page(url: str) -> str:
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode("utf-8", "replace")
            return text
    except ValueError as error:
        raise ConfigError(f"{url!r} is not the URL of a page: {error}") from error
    except (URLError, OSError) as error:
        raise BackendError(
            f"the metrics at {url} cannot be read: {error}", backend="metrics", ambiguous=False
        ) from error


def _told(found: Measured | None) -> dict[str, Any] | None:
    if found is None:
        return None
    # JSON knows no infinity: an open end is null.
    return {
        name: bounds and {key: value if abs(value) < float("inf") else None for key, value in bounds._asdict().items()}
        for name, bounds in found._asdict().items()
    }


def _print(advice: Advice, found: Measured | None) -> None:
    ladder = list(RUNGS)
    fencing = " with fencing" if advice.fenced else ""
    print(f"{RUNGS[advice.rung]}{fencing}  (rung {ladder.index(advice.rung) + 1} of {len(ladder)}: {advice.rung})")
    print(f"  guarantee: {advice.guarantee}")
    for reason in advice.why:
        print(f"  because: {reason}")
    if advice.ttl is not None:
        print(f"  ttl {advice.ttl:g} s, renewed every {advice.renew:g} s; locks in {advice.store}")
        print(f"  if nobody renews it (renew=False, a lock of another library): {_by_work(advice, advice.ttl)}")
        print(f"  a holder that hangs is not dead: lock(..., max_hold={advice.max_hold:g}) ends its renewal too")
    if found is not None:
        for name, line in _measurements(found):
            print(f"  measured: {name} {line}")
    print(f"\n{advice.code}", end="")


def _by_work(advice: Advice, ttl: float) -> str:
    """The ttl of a lease that nobody renews, in words."""
    if advice.unrenewed is None:
        return "no ttl can be told, for some work took longer than was measured: say --work"
    long = "" if advice.unrenewed <= ttl else "; a dead holder keeps the lock for as long"
    return f"ttl {advice.unrenewed:g} s, the work and {advice.margin:g} s for pauses{long}"


def _measurements(found: Measured) -> list[tuple[str, str]]:
    def line(bounds: Any, which: str, enough: int = 100) -> str:
        if bounds is None:
            return "not seen yet"
        above = f"above {max(bounds.low, 0):g}" if bounds.high == float("inf") else f"at most {bounds.high:g}"
        few = "; too few to tell" if bounds.seen < enough else ""
        return f"{above}, {which} of {bounds.seen}{few}"

    told = [
        ("held for", line(found.work, "99.9 %", 1000)),
        ("store answers within", line(found.trip, "the quickest 10 %")),
    ]
    if found.slack:
        told.append(("slack", f"at least {max(found.slack.low, 0):g} of the ttl, 99 % of {found.slack.seen}"))
    return told
