"""Waits and throughput of one hot lock against the number of contenders, on every store, with peers beside us."""

from typing import TYPE_CHECKING, Any, TypeAlias

from fencepost.driver.threads import Blocking
from fencepost.registry import connect
from fencepost_lab.contend.bench import OURS, able, longest, measure, versions
from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.report import span
from fencepost_lab.contend.run import contend
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import load
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers.stores import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves: TypeAlias = dict[str, dict[int, dict[str, Any]]]
"""The summaries of runs, by client and number of contenders."""


def run(settings: Settings, context: Context) -> Outcome:
    """Measure each store with each client at each size."""
    outcome = Outcome()
    peers: set[str] = set()
    for backend in settings["backends"]:
        store = context.store(backend)
        alone = _alone(store, settings, context)
        curves: Curves = {}
        for client in able(store, settings["peers"]):
            peers.add(client)
            curves[client] = _curve(store, client, settings, context, curves.get(OURS))
        outcome.figures[store.name] = {"alone": alone, **{name: list(curve.values()) for name, curve in curves.items()}}
        _add_claims(outcome, store.name, connect(store.url, Blocking()).promises.fair, curves)
        _add_safety(outcome, store, settings, context)
        outcome.tables.append(_table(store.name, curves))
        outcome.plots += [_waits(store.name, curves), _throughput(store.name, curves)]
        if store.name == "redis":
            _levels(outcome, alone, curves[OURS])
    outcome.figures["peers"] = versions(peers)
    return outcome


def _alone(store: Store, settings: Settings, context: Context) -> dict[str, Any]:
    """One contender by itself: what a lock costs that nobody else wants."""
    context.say(f"{store.name}: nobody else")
    sections = settings["alone"] if store.name in ("redis", "sqlite") else max(100, settings["alone"] // 10)
    options = {"contenders": 1, "processes": 1, "work": 0.0, "warmup": 0.0, "sections": sections, "duration": 30.0}
    return measure(store, OURS, ttl=max(settings["ttl"], store.min_ttl), **options)[1]


def _add_safety(outcome: Outcome, store: Store, settings: Settings, context: Context) -> None:
    """One more run of the smallest crowd, every lease of it recorded and checked: measuring must not pay for that."""
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
        history=True,
    )
    if contend(plan, history=path).interrupted:
        raise KeyboardInterrupt  # what was cut short says nothing about a claim
    report = check(load(path))
    context.keep(f"contention-{store.name}.jsonl", load(path))
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
    """Every size; long enough that everybody could have had two turns at the rate of our smallest run."""
    curve: dict[int, dict[str, Any]] = {}
    sizes = sorted(settings["contenders"])
    for size in sizes:
        context.say(f"{store.name}: {client}, {size} contenders")
        first = (ours or curve).get(sizes[0])
        turn = size / max(1.0, first["throughput"]) if first else 0.0
        curve[size] = measure(
            store,
            client,
            contenders=size,
            ttl=max(settings["ttl"], store.min_ttl),
            work=settings["work"],
            warmup=min(settings["longest"] / 2, max(settings["warmup"], 1.3 * turn)),
            duration=min(settings["longest"], max(settings["duration"], 2 * turn)),
        )[1]
    return curve


def _add_claims(outcome: Outcome, name: str, fair: bool, curves: Curves) -> None:
    ours = curves[OURS]
    small, large = min(ours), max(ours)
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


_COLUMNS = (
    "client",
    "contenders",
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


def _table(name: str, curves: Curves) -> Table:
    rows: list[tuple[Any, ...]] = []
    for client, curve in curves.items():
        for size, found in curve.items():
            waits = (span(found["wait"][point]) for point in ("p50", "p99", "p999"))
            fraction = found["throughput"] / found["ceiling"]
            rate = (f"{found['throughput']:.0f}", f"{found['ceiling']:.0f}", f"{100 * fraction:.0f} %")
            failed = sum(found["failures"].values())
            rows.append((client, size, *waits, span(longest(found)), *rate, found["never_served"], failed))
    note = "Waits for the lock. Each client's ceiling is 1 / (work + its own acquire + its own release)."
    return Table(f"One hot lock on {name}", _COLUMNS, rows, note=note)


def _waits(name: str, curves: Curves) -> Plot:
    def paint(axes: "Axes") -> None:
        for point, style in (("p50", "-"), ("p99", "--"), ("p999", ":")):
            ours = curves[OURS]
            axes.plot(list(ours), [each["wait"][point] for each in ours.values()], style, label=f"{OURS} {point}")
        for client, curve in curves.items():
            if client != OURS:
                axes.plot(
                    list(curve), [longest(each) for each in curve.values()], "-", lw=1, label=f"{client}, longest"
                )
        _dress(axes, curves, "seconds waited")
        axes.set_yscale("log")

    caption = f"{name}: waits for one hot lock{', and the longest wait of each peer' if len(curves) > 1 else ''}."
    return plots.draw(f"waits-{name}", caption, paint)


def _throughput(name: str, curves: Curves) -> Plot:
    def paint(axes: "Axes") -> None:
        for client, curve in curves.items():
            axes.plot(list(curve), [each["throughput"] for each in curve.values()], label=client)
        ours = curves[OURS]
        ceiling = [each["ceiling"] for each in ours.values()]
        axes.plot(list(ours), ceiling, "--", color=plots.RED, marker="", label=f"{OURS}'s ceiling")
        _dress(axes, curves, "sections per second")
        axes.set_ylim(bottom=0)

    caption = f"{name}: sections per second, and the ceiling 1 / (work + acquire + release)."
    return plots.draw(f"throughput-{name}", caption, paint)


def _dress(axes: "Axes", curves: Curves, label: str) -> None:
    sizes = list(curves[OURS])
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("contenders")
    axes.set_ylabel(label)
    axes.legend(fontsize=8, ncols=2)


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
