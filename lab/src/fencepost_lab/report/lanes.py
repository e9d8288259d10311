"""A run as a picture: one lane per worker, with its leases, its pauses and the answers that it got."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Plot
from fencepost_lab.stage.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 0.5
_FAULTS = {
    "pause": (plots.PURPLE, "////", "stopped"),
    "cut": (plots.BLUE, "....", "cut off from the lock service"),
    "delay": (plots.ORANGE, "\\\\\\\\", "its write is in flight"),
}
"""How what befell a worker is drawn, from then until the next fault ends it."""


def lanes(name: str, caption: str, runs: Sequence[tuple[str, Record]]) -> Plot:
    """The runs below each other, each under its title, each on its own clock."""
    rows = [(title, record, worker) for title, record in runs for worker in ("A", "B")]

    def paint(axes: "Axes") -> None:
        for row, (_, record, worker) in enumerate(rows):
            _lane(axes, -row, record, worker)
        axes.set_yticks([-row for row in range(len(rows))], [f"{title}: {worker}" for title, _, worker in rows])
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.set_xlabel("seconds")
        axes.grid(axis="y", visible=False)
        handles, labels = axes.get_legend_handles_labels()
        first = dict(zip(labels, handles, strict=True))
        columns = len(first) if len(first) < 5 else 3
        axes.legend(
            first.values(), first.keys(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, fontsize=9
        )

    return plots.draw(name, caption, paint, height=1.3 + 0.45 * len(rows))


def _lane(axes: "Axes", y: float, record: Record, worker: str) -> None:
    start = min(fact["at"] for fact in record.of("acquired"))
    end = max(fact["at"] for fact in record.facts) - start
    for fact in record.of("acquired", worker=worker):
        over = [each["at"] for each in record.of("released", "lost", worker=worker)]
        until = (min(over) if over else end + start) - start
        begin = fact["at"] - start
        axes.barh(y, until - begin, _HEIGHT, left=begin, color=plots.SKY, alpha=0.6, label="believes that it holds")
    faults = record.of("fault", worker=worker)
    for stop, wake in zip(faults[::2], faults[1::2], strict=False):
        begin, until = stop["at"] - start, wake["at"] - start
        colour, hatch, label = _FAULTS[stop["do"]]
        axes.barh(y, until - begin, _HEIGHT, left=begin, color="none", edgecolor=colour, hatch=hatch, label=label)
    for event, mark, colour, label in (
        ("accepted", "o", plots.GREEN, "write accepted"),
        ("refused", "X", plots.RED, "write refused"),
        ("heeded", "s", plots.ORANGE, "stops by itself"),
    ):
        at = [fact["at"] - start for fact in record.of(event, worker=worker)]
        if at:
            axes.plot(at, [y] * len(at), mark, color=colour, markersize=8, markeredgecolor="white", label=label)
