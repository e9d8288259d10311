"""A run as a picture: one lane per worker, with its leases, its pauses and the answers that it got."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Plot
from fencepost_lab.stage.record import Record
from fencepost_lab.stage.worker import Fact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 0.5
_FAULTS = {
    "pause": ("resume", plots.PURPLE, "////", "stopped"),
    "cut": ("heal", plots.BLUE, "....", "cut off from its store"),
    "delay": ("deliver", plots.ORANGE, "xxxx", "its write is in flight"),
}
"""What befell a worker: the fault that ends it, and how it is drawn."""
_ANSWERS = {
    "accepted": ("o", plots.GREEN, "write accepted"),
    "refused": ("X", plots.RED, "write refused"),
    "heeded": ("s", plots.ORANGE, "stops by itself"),
}


def lanes(name: str, caption: str, runs: Sequence[tuple[str, Record]]) -> Plot:
    """The runs below each other, each under its title, each on its own clock."""
    rows = [(title, record, worker) for title, record in runs for worker in ("A", "B")]

    def paint(axes: "Axes") -> None:
        for row, (_, record, worker) in enumerate(rows):
            _lane(axes, -row, record, worker)
        axes.set_yticks([-row for row in range(len(rows))], [f"{title}: {worker}" for title, _, worker in rows])
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.set_xlabel("seconds since A acquired the lock")
        axes.grid(axis="y", visible=False)
        handles, labels = axes.get_legend_handles_labels()
        first = dict(zip(labels, handles, strict=True))
        columns = len(first) if len(first) < 5 else 3
        axes.legend(
            first.values(),
            first.keys(),
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=columns,
            fontsize=plots.LEGEND,
        )

    return plots.draw(name, caption, paint, height=1.3 + 0.45 * len(rows))


def _lane(axes: "Axes", y: float, record: Record, worker: str) -> None:
    start = min(fact["at"] for fact in record.of("acquired"))
    end = max(fact["at"] for fact in record.facts)
    faults = record.of("fault", worker=worker)
    for fact in record.of("acquired", worker=worker):
        over = [each["at"] for each in record.of("released", "lost", "heeded", worker=worker)]
        over += [each["at"] for each in faults if each["do"] == "kill"]
        begin, until = fact["at"] - start, min([*over, end]) - start
        axes.barh(y, until - begin, _HEIGHT, left=begin, color=plots.SKY, alpha=0.6, label="believes that it holds")
    for fault in faults:
        if fault["do"] in _FAULTS:
            ends, colour, hatch, label = _FAULTS[fault["do"]]
            until = min((each["at"] for each in faults if each["do"] == ends), default=end) - start
            begin = fault["at"] - start
            axes.barh(y, until - begin, _HEIGHT, left=begin, color="none", edgecolor=colour, hatch=hatch, label=label)
    for event, (mark, colour, label) in _ANSWERS.items():
        at = [fact["at"] - start for fact in record.facts if fact["worker"] == worker and _answer(fact) == event]
        if at:
            axes.plot(at, [y] * len(at), mark, color=colour, markersize=8, markeredgecolor="white", label=label)


def _answer(fact: Fact) -> str:
    """What a fact says of a write, also of one whose writer never heard of it."""
    if fact["event"] == "arrived":
        return "accepted" if fact["verdict"] == "admit" else "refused"
    return str(fact["event"])
