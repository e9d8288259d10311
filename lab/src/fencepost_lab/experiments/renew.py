"""Renewing against acquiring again against neither: how long two hold at once after a pause."""

import asyncio
from typing import TYPE_CHECKING, Any

from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import processes
from fencepost_lab.stage.processes import Processes, Unexpected, open_processes, together
from fencepost_lab.stage.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAYS = {"once": "one lease", "again": "acquired again", "renewed": "renewed"}


def run(settings: Settings, context: Context) -> Outcome:
    """Run each pause in each way; the three ways of one pause run at the same time."""
    outcome = Outcome()
    for backend in settings["backends"]:
        store = context.store(backend)
        ttl = max(settings["ttl"], store.min_ttl)
        by_way: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for pause in settings["pauses"]:
            context.say(f"{store.name}: pauses of {pause:g} ttl")
            for way, (record, seen) in zip(WAYS, processes.run(_ways(store, ttl, pause, settings)), strict=True):
                by_way[way].append(seen)
                context.keep(f"renew-{store.name}-{way}-{pause:g}", record.history())
        outcome.figures[store.name] = {"ttl": ttl, **by_way}
        _add_claims(outcome, store.name, ttl, by_way)
        outcome.tables.append(_table(store.name, ttl, by_way))
        outcome.plots.append(_plot(store.name, ttl, by_way))
    return outcome


def _add_claims(outcome: Outcome, name: str, ttl: float, by_way: dict[str, list[dict[str, Any]]]) -> None:
    once, renewed = by_way["once"], by_way["renewed"]
    outcome.claim(
        f"{name}: without renewal, work longer than the ttl lets a second holder in, pause or no pause",
        all(seen["window"] > 0 for seen in once),
        f"{sum(seen['window'] > 0 for seen in once)} of {len(once)} runs, {once[0]['window']:.2f} s without a pause",
    )
    outcome.claim(
        f"{name}: renewal narrows the window",
        renewed[0]["window"] == 0
        and all(less["window"] < more["window"] for less, more in zip(renewed, once, strict=True)),
        ", ".join(
            f"pause {less['pause']:g} ttl: {less['window']:.2f} s instead of {more['window']:.2f} s"
            for less, more in zip(renewed, once, strict=True)
        ),
    )
    for way in ("renewed", "again"):
        beyond = [seen for seen in by_way[way] if seen["pause"] > 1]
        outcome.claim(
            f"{name}: {WAYS[way]}, a pause longer than the ttl still puts two holders side by side",
            bool(beyond) and all(seen["window"] > 0 for seen in beyond),
            f"{sum(seen['window'] > 0 for seen in beyond)} of {len(beyond)} such pauses",
        )
    every = [seen for runs in by_way.values() for seen in runs]
    late = [seen for seen in every if seen["window"] > 0]
    outcome.claim(
        f"{name}: the guard refuses every write inside the window and none outside it",
        all(seen["refused"] == (seen["window"] > 0) for seen in every)
        and not any(seen["violations"] for seen in every),
        f"{sum(seen['refused'] for seen in late)} of {len(late)} refused, "
        f"{sum(seen['refused'] for seen in every) - sum(seen['refused'] for seen in late)} of {len(every) - len(late)} "
        f"others, {sum(seen['violations'] for seen in every)} violations",
    )


def _table(name: str, ttl: float, by_way: dict[str, list[dict[str, Any]]]) -> Table:
    rows = [
        (f"{each[0]['pause']:g}", *(text for seen in each for text in (f"{seen['window']:.2f} s", _answer(seen))))
        for each in zip(*by_way.values(), strict=True)
    ]
    columns = ("pause / ttl", *(text for title in WAYS.values() for text in (f"{title}: window", "A's write")))
    note = f"{name}, ttl {ttl:g} s. The window is how long B had held the lock when A, still believing, wrote."
    return Table("How long two hold at once", columns, rows, note)


def _answer(seen: dict[str, Any]) -> str:
    return "refused" if seen["refused"] else "accepted"


async def _ways(store: Store, ttl: float, pause: float, settings: Settings) -> list[tuple[Record, dict[str, Any]]]:
    async with open_processes() as built:
        url = await built.resource(fence=True)
        return await together(
            _run_once(built, store, url, ttl, pause, settings["work"] * ttl, renew=False, pieces=1),
            _run_once(built, store, url, ttl, pause, settings["work"] * ttl, renew=False, pieces=settings["pieces"]),
            _run_once(built, store, url, ttl, pause, settings["work"] * ttl, renew=True, pieces=1),
        )


async def _run_once(
    built: Processes, store: Store, url: str, ttl: float, pause: float, work: float, *, renew: bool, pieces: int
) -> tuple[Record, dict[str, Any]]:
    """Let A work, piece by piece, be stopped in the last one, and write; the window that this opened."""
    record = Record(f"lab renew {store.name}")
    options = ["--resource", url, "--key", record.key, "--ttl", f"{ttl}s", "--edit", "append"]
    slow, successor = await together(
        built.worker(
            "A",
            record.hear,
            *options,
            *("--iterations", str(pieces), "--renew" if renew else "--no-renew"),
            backend=store.url,
        ),
        built.worker("B", record.hear, *options, backend=store.url),
    )
    for piece in range(1, pieces + 1):
        await slow.acquire()
        await slow.read()
        await slow.prepared()
        if piece == pieces:
            # B asks only now: it is to be let in by the pause alone, not between two pieces.
            await successor.go("acquire")
        await asyncio.sleep(work / pieces)
        if piece < pieces:
            await slow.write()
            await slow.go("release")
            await slow.until("released")
    await slow.stop()
    await asyncio.sleep(pause * ttl)
    acquired = bool(record.of("acquired", worker="B"))
    if acquired:
        await successor.read()
    slow.resume()
    answer = await slow.write()
    await slow.finish()
    if not acquired:
        await successor.until("acquired")
        await successor.go("read")
    await successor.write()
    await successor.finish()
    [granted] = record.of("acquired", worker="B")
    if not granted["token"] > record.of("acquired", worker="A")[-1]["token"]:
        raise Unexpected("B was to be granted the lock after A")
    return record, {
        "pause": pause,
        "window": round(answer["at"] - granted["at"], 3) if acquired else 0.0,
        "refused": answer["event"] == "refused",
        "violations": len(record.check().violations),
    }


def _plot(name: str, ttl: float, by_way: dict[str, list[dict[str, Any]]]) -> Plot:
    def paint(axes: "Axes") -> None:
        for way, runs in by_way.items():
            axes.plot([seen["pause"] for seen in runs], [seen["window"] / ttl for seen in runs], label=WAYS[way])
        axes.set_xlabel("pause / ttl")
        axes.set_ylabel("two hold at once / ttl")
        axes.legend()

    caption = (
        f"How long two held the lock of {name} at once, against A's pause: renewal shifts the line, not its slope."
    )
    return plots.draw(f"window-{name}", caption, paint)
