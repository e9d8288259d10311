"""Renewing against acquiring again against neither: how long two hold at once after a pause."""

import asyncio
from typing import TYPE_CHECKING, Any

from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Room
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import actors
from fencepost_lab.stage.actors import Stage, Unexpected, stage, together
from fencepost_lab.stage.record import Testimony

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAYS = {"once": "one lease", "again": "acquired again", "renewed": "renewed"}


def run(settings: Settings, room: Room) -> Outcome:
    """Play each pause in each way; the three ways of one pause run at the same time."""
    outcome = Outcome()
    for backend in settings["backends"]:
        store = room.store(backend)
        ttl = max(settings["ttl"], store.min_ttl)
        played: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for pause in settings["pauses"]:
            room.say(f"{store.name}: pauses of {pause:g} ttl")
            for way, (testimony, seen) in zip(WAYS, actors.run(_ways(store, ttl, pause, settings)), strict=True):
                played[way].append(seen)
                room.keep(f"renew-{store.name}-{way}-{pause:g}.jsonl", testimony.history())
        outcome.figures[store.name] = {"ttl": ttl, **played}
        _judge(outcome, store.name, ttl, played)
        outcome.tables.append(_table(store.name, ttl, played))
        outcome.plots.append(_plot(store.name, ttl, played))
    return outcome


def _judge(outcome: Outcome, name: str, ttl: float, played: dict[str, list[dict[str, Any]]]) -> None:
    once, renewed = played["once"], played["renewed"]
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
        beyond = [seen for seen in played[way] if seen["pause"] > 1]
        outcome.claim(
            f"{name}: {WAYS[way]}, a pause longer than the ttl still puts two holders side by side",
            bool(beyond) and all(seen["window"] > 0 for seen in beyond),
            f"{sum(seen['window'] > 0 for seen in beyond)} of {len(beyond)} such pauses",
        )
    every = [seen for runs in played.values() for seen in runs]
    late = [seen for seen in every if seen["window"] > 0]
    outcome.claim(
        f"{name}: the guard refuses every write inside the window and none outside it",
        all(seen["refused"] == (seen["window"] > 0) for seen in every)
        and not any(seen["violations"] for seen in every),
        f"{sum(seen['refused'] for seen in late)} of {len(late)} refused, "
        f"{sum(seen['refused'] for seen in every) - sum(seen['refused'] for seen in late)} of {len(every) - len(late)} "
        f"others, {sum(seen['violations'] for seen in every)} violations",
    )


def _table(name: str, ttl: float, played: dict[str, list[dict[str, Any]]]) -> Table:
    rows = [
        (f"{each[0]['pause']:g}", *(text for seen in each for text in (f"{seen['window']:.2f} s", _answer(seen))))
        for each in zip(*played.values(), strict=True)
    ]
    columns = ("pause / ttl", *(text for title in WAYS.values() for text in (f"{title}: window", "A's write")))
    note = f"{name}, ttl {ttl:g} s. The window is how long B had held the lock when A, still believing, wrote."
    return Table("How long two hold at once", columns, rows, note)


def _answer(seen: dict[str, Any]) -> str:
    return "refused" if seen["refused"] else "accepted"


async def _ways(store: Store, ttl: float, pause: float, settings: Settings) -> list[tuple[Testimony, dict[str, Any]]]:
    async with stage() as built:
        url = await built.resource(fence=True)
        return await together(
            _play(built, store, url, ttl, pause, settings["work"] * ttl, renew=False, pieces=1),
            _play(built, store, url, ttl, pause, settings["work"] * ttl, renew=False, pieces=settings["pieces"]),
            _play(built, store, url, ttl, pause, settings["work"] * ttl, renew=True, pieces=1),
        )


async def _play(
    built: Stage, store: Store, url: str, ttl: float, pause: float, work: float, *, renew: bool, pieces: int
) -> tuple[Testimony, dict[str, Any]]:
    """Let A work, piece by piece, be stopped in the last one, and write; the window that this opened."""
    testimony = Testimony(f"lab renew {store.name}")
    options = ["--resource", url, "--key", testimony.key, "--ttl", f"{ttl}s", "--edit", "append"]
    slow, heir = await together(
        built.actor(
            "A",
            testimony.hear,
            *options,
            *("--iterations", str(pieces), "--renew" if renew else "--no-renew"),
            backend=store.url,
        ),
        built.actor("B", testimony.hear, *options, backend=store.url),
    )
    for piece in range(1, pieces + 1):
        await slow.go("acquire")
        await slow.until("acquired")
        await slow.go("read")
        await slow.until("read")
        await slow.prepared()
        if piece == pieces:
            # B asks only now: it is to be let in by the pause alone, not between two pieces.
            await heir.go("acquire")
        await asyncio.sleep(work / pieces)
        if piece < pieces:
            await slow.write()
            await slow.go("release")
            await slow.until("released")
    await slow.stop()
    await asyncio.sleep(pause * ttl)
    entered = bool(testimony.of("acquired", worker="B"))
    if entered:
        await heir.go("read")
        await heir.until("read")
    slow.resume()
    answer = await slow.write()
    await slow.finish()
    if not entered:
        await heir.until("acquired")
        await heir.go("read")
    await heir.write()
    await heir.finish()
    [granted] = testimony.of("acquired", worker="B")
    if not granted["token"] > testimony.of("acquired", worker="A")[-1]["token"]:
        raise Unexpected("B was to be granted the lock after A")
    return testimony, {
        "pause": pause,
        "window": round(answer["at"] - granted["at"], 3) if entered else 0.0,
        "refused": answer["event"] == "refused",
        "violations": len(testimony.check().violations),
    }


def _plot(name: str, ttl: float, played: dict[str, list[dict[str, Any]]]) -> Plot:
    def paint(axes: "Axes") -> None:
        for way, runs in played.items():
            axes.plot([seen["pause"] for seen in runs], [seen["window"] / ttl for seen in runs], label=WAYS[way])
        axes.set_xlabel("pause / ttl")
        axes.set_ylabel("two hold at once / ttl")
        axes.legend()

    caption = (
        f"How long two held the lock of {name} at once, against A's pause: renewal shifts the line, not its slope."
    )
    return plots.draw(f"window-{name}", caption, paint)
