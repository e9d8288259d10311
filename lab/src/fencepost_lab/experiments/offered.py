"""The open model of experiment 4: a rate of arrivals is offered, whatever the lock can do; and its knee.

In the closed model of ``contention`` a contender comes again when it was served, so a slow lock is asked less often.
Here arrivals come at random at a given rate, from a tenth of the lock's capacity to twice as much.
"""

from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fencepost_lab.contend.bench import OURS, measure
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.report.units import span
from fencepost_lab.servers.stores import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Loads: TypeAlias = list[dict[str, Any]]
"""What was measured at each offered rate, in their order; ``of`` is the rate as a fraction of the capacity."""

ENOUGH = 0.95
"""Where this fraction of the most there ever was is reached, more contenders buy nothing."""


class Capacity(NamedTuple):
    """What a lock serves in a second, in the closed model.

    Many locks are slower with a long queue than with a short one. A load that is below ``crowded`` is served whatever
    the queue is; one that is above ``most`` never is. Between them it depends on how long the queue happens to be.
    """

    crowded: float
    most: float
    contenders: int


def capacity(curve: dict[int, dict[str, Any]], crowd: int) -> Capacity:
    """The rate of the measured crowd next to ``crowd``, which is 100 %, and the most of two contenders or more.

    One contender alone never hands over, which takes another commit to the disk of some stores.
    """
    several = {size: float(each["throughput"]) for size, each in curve.items() if size > 1}
    size = min(several, key=lambda size: abs(size - crowd))
    return Capacity(several[size], max(several.values()), size)


def offer(store: Store, capacity: Capacity, settings: Settings, context: Context) -> Loads:
    """Offer each rate to one lock."""
    found = []
    for of in settings["rates"]:
        context.say(f"{store.name}: {100 * of:.0f} % of its capacity of {capacity.crowded:.0f}/s is offered")
        result, seen = measure(
            store,
            OURS,
            contenders=settings["crowd"],
            rate=of * capacity.crowded,
            random=True,
            ttl=max(settings["ttl"], store.min_ttl),
            work=settings["work"],
            warmup=settings["offer_warmup"],
            duration=settings["offer_duration"],
        )
        keep = ("rate", "elapsed", "throughput", "wait", "waiting_at_end", "failures")
        found.append({"of": of, **{name: seen[name] for name in keep}, "backlog": result.backlog})
    return found


def add_claims(outcome: Outcome, name: str, capacity: Capacity, loads: Loads) -> None:
    """Below its capacity a lock keeps up; above all that it ever serves, it never does."""
    below = [each for each in loads if each["of"] <= 0.8]
    above = [each for each in loads if each["rate"] >= 1.2 * capacity.most]
    if below:
        kept = min(each["throughput"] / each["rate"] for each in below)
        left = max(each["waiting_at_end"]["count"] / max(1.0, each["rate"] * each["elapsed"]) for each in below)
        outcome.claim(
            f"{name}: offered 80 % of its capacity or less, the lock keeps up, and no backlog builds up",
            kept > 0.85 and left < 0.15,
            f"served at {100 * kept:.0f} % of the offered rate or more; at most {100 * left:.0f} % wait at the end",
        )
    if above:
        share = min(
            each["waiting_at_end"]["count"] / ((each["rate"] - each["throughput"]) * each["elapsed"]) for each in above
        )
        grown = [_slope(each) / each["rate"] for each in above]
        outcome.claim(
            f"{name}: offered 120 % of the most that it ever served, the backlog grows as long as the load lasts",
            min(grown) > 0.05 and share > 0.5,
            f"at {', '.join(_percent(each['of']) for each in above)} of the capacity by "
            f"{', '.join(_percent(each) for each in grown)} of what arrives, to "
            f"{', '.join(str(each['waiting_at_end']['count']) for each in above)} at the end",
        )
    low, high = min(loads, key=lambda each: each["of"]), max(loads, key=lambda each: each["of"])
    ratio = high["wait"]["p50"] / low["wait"]["p50"]
    outcome.claim(
        f"{name}: waits are short until the capacity is reached, and bounded by nothing above it",
        high["of"] <= 1 or ratio > 10,
        f"the median wait is {span(low['wait']['p50'])} at {100 * low['of']:.0f} % and {span(high['wait']['p50'])} at "
        f"{100 * high['of']:.0f} %: {ratio:.0f} times as long",
    )


def _slope(each: dict[str, Any]) -> float:
    """By how many the backlog grows in a second, from the first half of the run to its second."""
    points: list[tuple[float, int]] = each["backlog"]
    half = len(points) // 2
    if not half:
        return 0.0
    (t1, count1), (t2, count2) = (map(fmean, zip(*part, strict=True)) for part in (points[:half], points[half:]))
    return (count2 - count1) / (t2 - t1)


def knee(curve: dict[int, dict[str, Any]]) -> int:
    """The fewest contenders with which the lock reaches what it ever reaches."""
    most = max(each["throughput"] for each in curve.values())
    return min(size for size, each in curve.items() if each["throughput"] >= ENOUGH * most)


def works(store: Store, settings: Settings, context: Context) -> list[dict[str, Any]]:
    """A few contenders who work longer and longer under the lock."""
    found = []
    for work in settings["works"]:
        context.say(f"{store.name}: {span(work)} of work under the lock")
        sections = max(5, min(60, round(settings["work_time"] / work)))
        seen = measure(
            store,
            OURS,
            contenders=5,
            ttl=max(settings["ttl"], store.min_ttl),
            work=work,
            warmup=0.0,
            duration=60.0 + 4 * sections * work,
            sections=sections,
        )[1]
        found.append(seen | {"share": seen["throughput"] * seen["alone"]["work"]})
    return found


def add_works(outcome: Outcome, name: str, found: list[dict[str, Any]]) -> None:
    """The longer the work, the less the lock matters."""
    if not found:
        return
    rows = [
        (
            span(each["work"]),
            each["sections"],
            f"{each['throughput']:.3g}",
            f"{1 / each['alone']['work']:.3g}",
            _percent(each["share"]),
        )
        for each in found
    ]
    outcome.tables.append(
        Table(
            f"Work under one lock on {name}",
            ("work", "sections", "sections/s", "1 / work", "of it"),
            rows,
            note="Five contenders, tasks in two processes. What is missing to 100 % is what the hand-over costs.",
        )
    )
    first, last = found[0], found[-1]
    outcome.claim(
        f"{name}: the longer the work under the lock, the less the lock costs",
        last["share"] > 0.9 and last["share"] >= first["share"] - 0.02,
        f"{_percent(first['share'])} of the time is work at {span(first['work'])}, {_percent(last['share'])} at "
        f"{span(last['work'])}",
    )


def apart(store: Store, settings: Settings, context: Context) -> dict[int, dict[str, Any]]:
    """Contenders that are processes, each with connections of its own.

    They have no ceiling: while one acquires and releases alone, the others are still being started.
    """
    found = {}
    for size in settings["processes"].get(store.name, ()):
        context.say(f"{store.name}: {size} processes")
        seen = measure(
            store,
            OURS,
            contenders=size,
            processes=size,
            ttl=max(settings["ttl"], store.min_ttl),
            work=settings["work"],
            warmup=settings["warmup"],
            duration=settings["duration"],
        )[1]
        found[size] = seen | {"ceiling": None}
    return found


def table(name: str, capacity: Capacity, loads: Loads) -> Table:
    """What each offered rate came to."""
    rows: list[tuple[Any, ...]] = []
    for each in loads:
        waits = (span(each["wait"][point]) for point in ("p50", "p90", "p99"))
        rates = (_percent(each["of"]), f"{each['rate']:.0f}", f"{each['throughput']:.0f}")
        rows.append((*rates, *waits, each["waiting_at_end"]["count"]))
    columns = ("offered", "arrivals/s", "served/s", "p50", "p90", "p99", "waiting at the end")
    note = (
        f"Arrivals come at random. 100 % is the capacity: {capacity.crowded:.0f} sections/s, what "
        f"{capacity.contenders} contenders came to in the closed model; the most of any two or more was "
        f"{capacity.most:.0f}. A wait begins when the arrival is due; those who still wait at the end count with the "
        "wait that they have had."
    )
    return Table(f"An open load on {name}", columns, rows, note=note)


def hockey_stick(found: dict[str, Loads]) -> Plot:
    """Waits against the offered load, for every store."""

    def panel(point: str) -> Any:
        def paint(axes: "Axes") -> None:
            for name, loads in found.items():
                axes.plot([100 * each["of"] for each in loads], [each["wait"][point] for each in loads], label=name)
            axes.axvline(100, color="gray", lw=1, ls="--")
            plots.in_seconds(axes)
            axes.set_xlabel("offered, % of the capacity")
            axes.set_ylabel("wait for the lock")

        return paint

    caption = (
        "An open load: waits are short until arrivals come as fast as the lock can serve, and then grow without end."
    )
    return plots.beside("load", caption, {"median": panel("p50"), "99th percentile": panel("p99")})


def backlog(name: str, loads: Loads) -> Plot:
    """Who waits over time, at each offered rate that is worth a line."""
    shown = [each for each in loads if each["of"] >= 0.5] or loads

    def paint(axes: "Axes") -> None:
        for each in shown[-7:]:
            points = each["backlog"]
            axes.plot([t for t, _ in points], [count for _, count in points], label=_percent(each["of"]), markevery=4)
        axes.set_xlabel("seconds since the load began")
        axes.set_ylabel("arrivals that wait for the lock")
        axes.set_ylim(bottom=0)
        axes.legend(title="offered, of the capacity", fontsize=plots.LEGEND, title_fontsize=plots.LEGEND, ncols=2)

    return plots.draw(f"backlog-{name}", f"{name}: the backlog over time, for each offered rate.", paint)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"
