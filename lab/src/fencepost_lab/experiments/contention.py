"""Waits and throughput of one hot lock against the number of contenders, on every store, with peers beside us."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from fencepost.driver.threads import Blocking
from fencepost.registry import connect
from fencepost_lab.contend.bench import OURS, able, longest, measure, versions
from fencepost_lab.contend.clients import find
from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.run import contend
from fencepost_lab.experiments import Settings, offered
from fencepost_lab.experiments.context import Context
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import load
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.report.units import span
from fencepost_lab.servers.stores import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves: TypeAlias = dict[str, dict[int, dict[str, Any]]]
"""The summaries of runs, by client and number of contenders."""


def run(settings: Settings, context: Context) -> Outcome:
    """Measure each store with each client at each size."""
    outcome = Outcome()
    peers: set[str] = set()
    loads: dict[str, offered.Loads] = {}
    for backend in settings["backends"]:
        store = context.store(backend)
        alone = _alone(store, settings, context)
        curves: Curves = {}
        for client in able(store, settings["peers"]):
            peers.add(client)
            curves[client] = _curve(store, client, settings, context, curves.get(OURS))
        apart = offered.apart(store, settings, context)
        outcome.figures[store.name] = {"alone": alone, **{name: list(curve.values()) for name, curve in curves.items()}}
        outcome.figures[store.name]["processes"] = list(apart.values())
        fair = connect(store.url, Blocking()).promises.fair
        _add_claims(outcome, store.name, fair, curves, sorted(settings["contenders"]))
        _add_knee(outcome, store.name, curves[OURS])
        _add_apart(outcome, store.name, fair, curves[OURS], apart)
        _add_safety(outcome, store, settings, context)
        outcome.tables.append(_table(store, curves, apart))
        outcome.plots += [_waits(store.name, curves), _throughput(store.name, curves)]
        if backend in settings["open"] or len(settings["backends"]) == 1:
            loads[store.name] = _open(outcome, store, curves[OURS], settings, context)
        if store.name == "redis":
            _levels(outcome, alone, curves[OURS])
    if loads:
        outcome.plots.insert(0, offered.hockey_stick(loads))
    outcome.figures["peers"] = versions(peers)
    return outcome


def _open(
    outcome: Outcome, store: Store, ours: dict[int, dict[str, Any]], settings: Settings, context: Context
) -> offered.Loads:
    """Offer rates around the capacity, and work of several lengths."""
    capacity = offered.capacity(ours, settings["crowd"])
    loads = offered.offer(store, capacity, settings, context)
    works = offered.works(store, settings, context)
    outcome.figures[store.name] |= {"capacity": capacity._asdict(), "offered": loads, "works": works}
    offered.add_claims(outcome, store.name, capacity, loads)
    outcome.tables.append(offered.table(store.name, capacity, loads))
    offered.add_works(outcome, store.name, works)
    outcome.plots.append(offered.backlog(store.name, loads))
    return loads


def _alone(store: Store, settings: Settings, context: Context) -> dict[str, Any]:
    """One contender by itself: what a lock costs that nobody else wants."""
    context.say(f"{store.name}: nobody else")
    sections = settings["alone"] if store.name in ("redis", "sqlite") else max(100, settings["alone"] // 10)
    options = {"contenders": 1, "processes": 1, "work": 0.0, "warmup": 0.0, "sections": sections, "duration": 30.0}
    return measure(store, OURS, ttl=max(settings["ttl"], store.min_ttl), **options)[1]


def _add_safety(outcome: Outcome, store: Store, settings: Settings, context: Context) -> None:
    """One more, short run of the smallest crowd, each lease recorded and checked: measuring must not pay for that."""
    size = min(settings["contenders"])
    context.say(f"{store.name}: {OURS}, {size} contenders, checked")
    path = context.folder / f"contention-{len(outcome.claims)}.jsonl"
    plan = Plan(
        backend=store.url,
        contenders=size,
        ttl=max(settings["ttl"], store.min_ttl),
        work=settings["work"],
        warmup=0.0,
        duration=settings["duration"],
        sections=settings["checked"],
        history=True,
    )
    if contend(plan, history=path).interrupted:
        raise KeyboardInterrupt  # what was cut short says nothing about a claim
    report = check(load(path))
    context.keep(f"contention-{store.name}", load(path))
    outcome.figures[store.name]["checked"] = report.data()["counts"] | {"violations": len(report.violations)}
    outcome.claim(
        f"{store.name}: at most one holds the lock at a time, and every token is larger than those before it",
        report.verdict == "kept",
        f"{report.counts['acquired']} leases of {size} contenders, {len(report.violations)} violations"
        + "".join(f", {name} not checked: {why}" for name, why in report.unchecked.items()),
    )


def _curve(
    store: Store, client: str, settings: Settings, context: Context, ours: dict[int, dict[str, Any]] | None
) -> dict[int, dict[str, Any]]:
    """Every size; long enough that everybody could have had two turns at the rate of our smallest run.

    The few contenders below the crowds, for the knee, are ours alone.
    """
    curve: dict[int, dict[str, Any]] = {}
    sizes = sorted(settings["contenders"] if ours else {*settings["few"], *settings["contenders"]})
    for size in sizes:
        context.say(f"{store.name}: {client}, {size} contenders")
        first = next(iter((ours or curve).values()), None)
        turn = size / max(1.0, first["throughput"]) if first else 0.0
        curve[size] = measure(
            store,
            client,
            contenders=size,
            processes=min(2, size),
            ttl=max(settings["ttl"], store.min_ttl),
            work=settings["work"],
            warmup=min(settings["longest"] / 2, max(settings["warmup"], 1.3 * turn)),
            duration=min(settings["longest"], max(settings["duration"], 2 * turn)),
        )[1]
    return curve


def _add_claims(outcome: Outcome, name: str, fair: bool, curves: Curves, crowds: list[int]) -> None:
    ours = curves[OURS]
    small, large = crowds[0], crowds[-1]
    more = large / small
    grown = ours[large]["wait"]["p50"] / ours[small]["wait"]["p50"]
    gained = ours[large]["throughput"] / ours[small]["throughput"]
    outcome.claim(
        f"{name}: with {more:g} times the contenders the wait grows in step, and throughput does not",
        grown > more / 3 and gained < 2,
        f"p50 x {grown:.1f}, throughput x {gained:.2f}",
    )
    # A slow store gives fewer turns than there are contenders: then nobody can say who would have been left out.
    enough = [each for each in ours.values() if each["acquired"] >= 1.5 * each["contenders"]]
    if enough and fair:
        starved = sum(each["never_served"] for each in enough)
        sizes = ", ".join(str(each["contenders"]) for each in enough)
        outcome.claim(f"{name}: nobody is left out, of {sizes} contenders", starved == 0, f"{starved} never served")


def _add_knee(outcome: Outcome, name: str, ours: dict[int, dict[str, Any]]) -> None:
    if min(ours) > 1:
        return
    found, large = offered.knee(ours), max(ours)
    outcome.figures[name]["knee"] = found
    outcome.claim(
        f"{name}: a few contenders reach all that the lock can do; more buy nothing",
        found <= large / 4,
        f"{found} contenders reach {100 * offered.ENOUGH:.0f} % of the most; 1: {ours[1]['throughput']:.0f}/s, "
        f"{found}: {ours[found]['throughput']:.0f}/s, {large}: {ours[large]['throughput']:.0f}/s",
    )


def _add_apart(
    outcome: Outcome, name: str, fair: bool, ours: dict[int, dict[str, Any]], apart: dict[int, dict[str, Any]]
) -> None:
    """The same where each contender is a process."""
    enough = [each for each in apart.values() if each["acquired"] >= 1.5 * each["contenders"]]
    if not fair or not enough:
        return
    starved = sum(each["never_served"] for each in enough)
    rates = ", ".join(f"{each['contenders']}: {each['throughput']:.0f}/s" for each in apart.values())
    sizes = ", ".join(str(each["contenders"]) for each in enough)
    outcome.claim(
        f"{name}: contenders that are processes are served as those that are tasks: nobody is left out, of {sizes}",
        starved == 0,
        f"{starved} never served; {rates}, and {max(each['throughput'] for each in ours.values()):.0f}/s as tasks",
    )


_COLUMNS = (
    "client",
    "contenders",
    "which are",
    "p50",
    "p99",
    "p999",
    "longest",
    "sections/s",
    "ceiling",
    "of it",
    "never served",
    "failed",
)


def _table(store: Store, curves: Curves, apart: dict[int, dict[str, Any]]) -> Table:
    rows: list[tuple[Any, ...]] = []
    for client, curve in [*curves.items(), (OURS, apart)]:
        kind = "tasks" if find(client, store.url).tasks else "threads"
        for size, found in curve.items():
            count = found["processes"]
            made_of = "processes" if count == size > 1 else f"{kind} in {count} process{'es' if count > 1 else ''}"
            waits = (span(found["wait"][point]) for point in ("p50", "p99", "p999"))
            ceiling = found["ceiling"]
            most = (f"{ceiling:.0f}", f"{100 * found['throughput'] / ceiling:.0f} %") if ceiling else ("", "")
            rate = (f"{found['throughput']:.0f}", *most)
            failed = sum(found["failures"].values())
            rows.append((client, size, made_of, *waits, span(longest(found)), *rate, found["never_served"], failed))
    note = (
        "Waits for the lock, counted alike for every client. Where a lock is free for the one that asks next, "
        "the median is short, because the last holder asks first: look at p99, the longest wait and those who were "
        "never served. Each client's ceiling is 1 / (work + its own acquire + its own release). A crowd of processes "
        "has none: while one acquires alone, the others are still being started."
    )
    return Table(f"One hot lock on {store.name}", _COLUMNS, rows, note=note)


_TICKS = (1, 5, 50, 200, 1000)
"""The sizes that have room below three plots beside each other."""


def _waits(name: str, curves: Curves) -> Plot:
    """The median and the tail of each client, of the same crowds."""
    sizes = sorted(set.intersection(*(set(curve) for curve in curves.values())))

    def panel(point: str) -> Callable[["Axes"], None]:
        def paint(axes: "Axes") -> None:
            for client, curve in curves.items():
                axes.plot(sizes, [curve[size]["wait"][point] for size in sizes], label=client)
            _dress(axes, [each for each in sizes if each in _TICKS] or sizes, "wait for the lock")
            plots.in_seconds(axes)

        return paint

    who = "every client" if len(curves) > 1 else OURS
    caption = f"{name}: waits for one hot lock, the median, the 99th and the 99.9th percentile of {who}."
    panels = {"median": panel("p50"), "99th percentile": panel("p99"), "99.9th percentile": panel("p999")}
    return plots.beside(f"waits-{name}", caption, panels)


def _throughput(name: str, curves: Curves) -> Plot:
    def paint(axes: "Axes") -> None:
        for client, curve in curves.items():
            axes.plot(list(curve), [each["throughput"] for each in curve.values()], label=client)
        ours = curves[OURS]
        ceiling = [each["ceiling"] for each in ours.values()]
        axes.plot(list(ours), ceiling, "--", color=plots.RED, marker="", label=f"{OURS}'s ceiling")
        if knee:
            axes.axvline(knee, color="gray", lw=1.5, ls=":", marker="", label=f"the knee: {knee}")
        _dress(axes, list(ours), "sections per second")
        axes.set_ylim(bottom=0)

    knee = offered.knee(curves[OURS]) if 1 in curves[OURS] else None
    caption = f"{name}: sections per second, and the ceiling 1 / (work + acquire + release)."
    if knee:
        caption += f" {knee} contenders reach {100 * offered.ENOUGH:.0f} % of the most."
    return plots.beside(f"throughput-{name}", caption, {"": paint})


def _dress(axes: "Axes", sizes: list[int], label: str) -> None:
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("contenders for one lock")
    axes.set_ylabel(label)


def _levels(outcome: Outcome, alone: dict[str, Any], ours: dict[int, dict[str, Any]]) -> None:
    p99 = alone["wait"]["p99"]
    met = "met" if p99 < 0.003 else "NOT met"
    outcome.slo["uncontended-p99"] = f"{span(p99)} over {alone['wait']['count']} acquires: {met}"
    if 200 in ours:
        found = ours[200]
        section, work = 1 / found["throughput"], found["alone"]["work"]
        busy = found["server"]["per_section"]["cpu_seconds"] / section
        outcome.slo["hot-p99-200"] = (
            f"{span(found['wait']['p99'])}: everybody waits for 199 sections of {span(section)}, of which {span(work)} "
            f"are work and {span(section - work)} the hand-over; Redis itself is busy {100 * busy:.0f} % of the time"
        )
    found = ours[max(ours)]
    fraction = found["throughput"] / found["ceiling"]
    outcome.slo["throughput"] = (
        f"{found['throughput']:.0f} sections/s with {max(ours)} contenders: {100 * fraction:.0f} % of the bound of "
        f"{found['ceiling']:.0f}/s"
    )
