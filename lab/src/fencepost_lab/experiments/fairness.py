"""The order of service against the order of arrival, queues against spinning; and what a queue costs the store."""

from typing import TYPE_CHECKING, Any

from fencepost_lab.contend.bench import OURS, able, longest, measure, versions
from fencepost_lab.contend.order import Turn
from fencepost_lab.contend.run import Result
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.watching import watching
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.report.units import span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPIN = "redis-spin"
_SHOWN = 400


def run(settings: Settings, context: Context) -> Outcome:
    """Let each client meet the same crowd, and compare the orders."""
    outcome = Outcome()
    found: dict[str, dict[str, Any]] = {}
    results: dict[str, Result] = {}
    for backend in settings["backends"]:
        store = context.store(backend)
        for client in able(store, settings["peers"]):
            context.say(f"{store.name}: {client}")
            name = f"{client} on {store.name}"
            results[name], found[name] = measure(
                store,
                client,
                contenders=settings["contenders"],
                ttl=max(settings["ttl"], store.min_ttl),
                work=settings["work"],
                warmup=settings["warmup"],
                duration=settings["duration"],
            )
    outcome.figures |= found
    outcome.figures["peers"] = versions({name.partition(" on ")[0] for name in found})
    _add_claims(outcome, found)
    outcome.tables.append(_table(found))
    outcome.plots.append(_order(results))
    outcome.plots.append(_tail(results))
    watching(outcome, settings, context)
    return outcome


def _add_claims(outcome: Outcome, found: dict[str, dict[str, Any]]) -> None:
    for name, seen in found.items():
        if name.partition(" on ")[0] == OURS:
            turn = seen["order"]
            outcome.claim(
                f"{name}: first come, first served, and nobody is left out",
                turn["overtakes"] <= turn["turns"] / 100 and seen["never_served"] == 0,
                f"{turn['inversions']} inversions and {turn['overtakes']} overtakes in {turn['turns']} turns, "
                f"tau {turn['tau']:.4f}, {seen['never_served']} never served",
            )
    spin, ours = found.get(f"{SPIN} on redis"), found.get(f"{OURS} on redis")
    if spin is None or ours is None:
        return
    outcome.claim(
        "spin-retry on Redis: contenders are overtaken, and their turns are shared out by luck",
        spin["order"]["overtakes"] > 100 * (1 + ours["order"]["overtakes"])
        and spin["order"]["tau"] < ours["order"]["tau"]
        and spin["share"]["jain"] < ours["share"]["jain"],
        f"{spin['order']['overtakes']} overtakes, tau {spin['order']['tau']:.4f}; "
        f"from {spin['share']['least']} to {spin['share']['most']} turns each",
    )
    tails = [longest(each) / each["wait"]["mean"] for each in (spin, ours)]
    outcome.claim(
        "the longest wait is near the mean with the queue, and far from it with spin-retry",
        tails[0] > 3 * tails[1],
        f"{tails[1]:.1f} times the mean with the queue, {tails[0]:.0f} times with spin-retry",
    )
    outcome.slo["fairness"] = (
        f"queue: {ours['order']['overtakes']} overtakes, tau {ours['order']['tau']:.4f}, longest wait "
        f"{span(longest(ours))}; spin-retry: {spin['order']['overtakes']} overtakes, tau {spin['order']['tau']:.4f}, "
        f"longest wait {span(longest(spin))}, {spin['never_served']} never served"
    )


_COLUMNS = (
    "client",
    "turns",
    "tau",
    "inversions",
    "overtakes",
    "p50",
    "p99",
    "longest",
    "turns of one: least .. most",
    "never served",
)


def _table(found: dict[str, dict[str, Any]]) -> Table:
    rows: list[tuple[Any, ...]] = []
    for name, seen in found.items():
        turn, wait, served = seen["order"], seen["wait"], seen["share"]
        order = (turn["turns"], f"{turn['tau']:.4f}", turn["inversions"], turn["overtakes"])
        waits = (span(wait["p50"]), span(wait["p99"]), span(longest(seen)))
        rows.append((name, *order, *waits, f"{served['least']} .. {served['most']}", seen["never_served"]))
    note = "Overtakes: inversions of pairs who asked more than 10 ms apart. The longest wait may not have ended yet."
    return Table("Order and tail", _COLUMNS, rows, note=note)


def _ranks(turns: list[Turn]) -> list[int]:
    """For each turn in the order of arrival, its place in the order of service."""
    shown = sorted(turns, key=lambda turn: turn[1])[:_SHOWN]
    places = {id(turn): place for place, turn in enumerate(sorted(shown, key=lambda turn: turn[2]))}
    return [places[id(turn)] for turn in shown]


def _order(results: dict[str, Result]) -> Plot:
    def paint(axes: "Axes") -> None:
        for name, colour in ((f"{SPIN} on redis", plots.ORANGE), (f"{OURS} on redis", plots.BLUE)):
            if name in results:
                ranks = _ranks(results[name].turns)
                axes.scatter(range(len(ranks)), ranks, s=9, color=colour, label=name)
        axes.set_xlabel("place in the order of arrival")
        axes.set_ylabel("place in the order of service")
        axes.legend()

    return plots.draw("order", f"The first {_SHOWN} turns: on the diagonal, who came first was served first.", paint)


def _tail(results: dict[str, Result]) -> Plot:
    percents = [50, 75, 90, 95, 99, 99.5, 99.9, 100]

    def paint(axes: "Axes") -> None:
        for name, result in results.items():
            axes.plot(range(len(percents)), [result.waits.percentile(each) or 0 for each in percents], label=name)
        axes.set_xticks(range(len(percents)), [f"{each:g}" for each in percents])
        plots.in_seconds(axes)
        axes.set_xlabel("percentile of the waits")
        axes.set_ylabel("wait for the lock")

    return plots.beside("tail", "How far the tail of the waits is from their middle.", {"": paint})
