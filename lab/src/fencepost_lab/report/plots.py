"""Plots as SVG: plain, safe for the colour-blind, readable on light and dark, the same bytes for the same figures."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencepost_lab.report.outcome import Plot
from fencepost_lab.report.units import span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
)
"""The palette of Okabe and Ito."""
VIOLET, BROWN, GRAY = "#6A3D9A", "#8C564B", "#7F7F7F"
"""For more lines than the palette has colours that can be seen on white."""
MARKERS = "osD^vPX*h<"
"""So that a line can be told from another without its colour."""
LEGEND = 10
"""The size of a legend's text: it can still be read at half the size."""

_ELEMENTS = {*("svg", "defs", "style", "g", "path", "use", "clipPath", "rect", "pattern", "text", "tspan")}
_INK = "#010203"  # stands for the reader's own colour of text, until the SVG is written
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _INK,
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "grid.alpha": 0.25,
    "grid.color": _INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fencepost",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_DARK = "<style>.plot{color:#1b1f24}@media(prefers-color-scheme:dark){.plot{color:#e6e6e6}}</style>"


def draw(name: str, caption: str, paint: Callable[["Axes"], None], *, height: float = 3.6) -> Plot:
    """A plot of what ``paint`` draws on the axes it is given; ``name`` is its file's, without the ending."""

    def whole(figure: "Figure") -> None:
        paint(figure.subplots())

    return _draw(name, caption, whole, height)


def in_seconds(axes: "Axes") -> None:
    """Durations on a log scale, each tick at the unit that suits it."""
    logarithmic(axes, span)


def logarithmic(axes: "Axes", written: Callable[[float], str]) -> None:
    """A log scale whose ticks are written out."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter(lambda value, _: written(value))
    axes.yaxis.set_minor_formatter(NullFormatter())


def counts(
    name: str, caption: str, places: Sequence[str], bars: Mapping[str, Sequence[int]], *, across: str, up: str
) -> Plot:
    """Numbers as bars: a group at each place, with a bar for each name in ``bars``, and its number above it."""

    def paint(axes: "Axes") -> None:
        width = 0.8 / len(bars)
        looks = zip(bars.items(), (BLUE, ORANGE, GREEN), ("", "//", "xx"), strict=False)
        for number, ((label, values), colour, hatch) in enumerate(looks):
            spots = [at + (number - (len(bars) - 1) / 2) * width for at in range(len(places))]
            drawn = axes.bar(spots, values, width * 0.9, color=colour, edgecolor=_INK, hatch=hatch, label=label)
            axes.bar_label(drawn, fontsize=LEGEND)
        axes.set_xticks(range(len(places)), places)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.grid(visible=False, axis="x")

    return beside(name, caption, {"": paint}, height=3.6)


def beside(
    name: str,
    caption: str,
    paints: Mapping[str, Callable[["Axes"], None]],
    *,
    height: float = 4.2,
    shared: bool = True,
) -> Plot:
    """Plots of the same things beside each other, each under its title, with one legend above them.

    They have one scale, unless it is not ``shared``.
    """

    def whole(figure: "Figure") -> None:
        every = figure.subplots(1, len(paints), sharey=shared, squeeze=False)[0]
        for axes, (title, paint) in zip(every, paints.items(), strict=True):
            paint(axes)
            axes.set_title(title, fontsize=11)
        handles, labels = every[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=LEGEND)
        for axes in every[1:] if shared else ():
            axes.set_ylabel("")

    return _draw(name, caption, whole, height)


def _draw(name: str, caption: str, paint: Callable[["Figure"], None], height: float) -> Plot:
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    colours = [BLUE, ORANGE, GREEN, PURPLE, SKY, RED, VIOLET, BROWN, GRAY, YELLOW]
    cycle = cycler(color=colours) + cycler(marker=list(MARKERS))
    with matplotlib.rc_context(_STYLE | {"axes.prop_cycle": cycle}):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        paint(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Plot(name, caption, _plain(out.getvalue()))


def is_drawing(svg: str) -> bool:
    """Whether an SVG is what ``draw`` makes: shapes and text, nothing that runs or that is fetched from elsewhere."""
    elements = re.findall(r"<\s*/?\s*([^\s/>]*)", re.sub(r"<!--[^<>]*-->", "", svg))
    alien = re.search(r"""[\s"'/]on\w+\s*=|href\s*=\s*(?!"#)|@import|url\((?!#)""", svg, re.IGNORECASE)
    return alien is None and _ELEMENTS.issuperset(elements)


def own(svg: str, name: str) -> str:
    """The SVG with ids of its own, so that many fit into one page."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)


def _plain(svg: str) -> str:
    """The drawing alone, as wide as its page, in its ink."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'^<svg ([^>]*?)width="[^"]*"', r'<svg class="plot" \1', svg)
    svg = re.sub(r'^(<svg [^>]*?)height="[^"]*"', r"\1", svg)
    svg = svg.replace(_INK, "currentColor")
    return svg.replace(">", f' role="img">{_DARK}', 1)
