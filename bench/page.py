"""The page on speed: the ratios of one run, as Markdown; and whether another run got worse."""

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.harness import Result
from bench.profile import RATE, Profile

PEERS = ("redis", "python-redis-lock", "pottery", "aetcd", "etcd3gw", "kazoo", "py-consul", "tooz")

COMMITTED = Path(__file__).parents[1] / "docs" / "speed.json"
WORSE = 1.1
"""How many times as large a figure may be as the committed one."""
Figures = dict[str, float]
"""By bench and side: "bench: side", or the name of what was counted."""

HEAD = """\
# What it costs

Written by `{command}`; do not edit. Each table is one bench: its sides ran interleaved in one run, after a
warm-up, and **times** is the median over the rounds of a side's time to that of the last side, with the 10th and 90th
percentile: at 0.5 it is twice as fast. **client** and **servers** are how many cores the measuring process, and all
that it has started, kept busy meanwhile: of {cores}, and a client of one event loop or thread has one. Where both are
far from that, the side waits for wake-ups and the network. An aim that was missed says so.
[bench/README.md](../bench/README.md) tells how it is measured.

Measured on {cores} cores with Python {python}; {peers}.
"""

PROFILED = f"""\
After its rounds, each of these sides ran again while [py-spy](https://github.com/benfred/py-spy) looked up to {RATE}
times a second at the measuring process and at the Python processes that it has started. These are the functions that
most samples were in, not counting what they call. What a function asks the kernel for, such as to send, is counted as
its own. Where the process waited, there is no sample; **client** above tells how much that was. A sample is lost if
Python went on while py-spy read it; the percentages are of all samples, also the lost ones.
"""
UNKNOWN = "not known"


def write(path: Path, command: str, results: Sequence[Result], facts: Sequence[dict[str, Any]]) -> None:
    """Write the page."""
    head = HEAD.format(command=command, cores=os.cpu_count(), python=platform.python_version(), peers=_peers())
    parts = [head, _missed(results, facts), *_profiles(results, facts)]
    for name, sides in groupby(results, key=lambda result: result.bench):
        parts.append(_table(name, ("side", "times", "10th .. 90th", "client", "servers", "aim"), map(_row, sides)))
    if counted := [_counted(fact) for fact in facts]:
        parts.append(_table("Counted", ("what", "found", "aim"), counted))
    path.write_text("\n".join(parts), encoding="utf-8")
    figures = {_name(asdict(result)): round(result.ratio, 4) for result in results}
    figures |= {_name(fact): float(f"{fact['value']:.4g}") for fact in facts}
    path.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def unmeasured(path: Path, names: Iterable[str]) -> list[str]:
    """The figures of a page that a run of these benches would take off it."""
    figures = path.with_suffix(".json")
    measured = tuple(names)
    known: Figures = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else {}
    return [key for key in known if not any(key == name or key.startswith(f"{name}: ") for name in measured)]


def _missed(results: Sequence[Result], facts: Sequence[Mapping[str, Any]]) -> str:
    """Aims that were missed, and where the other side is ahead: what a reader should see first."""
    rows = [
        [f"{each.bench}: {each.side}", f"{each.ratio:.2f}", f"{each.aim:.3g}", _cores(each), each.bound or UNKNOWN]
        for each in results
        if each.met is False
    ]
    rows += [
        [str(fact["bench"]), f"{fact['value']:.3g}", f"{fact['aim']:g}", "", str(fact["bound"] or UNKNOWN)]
        for fact in facts
        if not fact["met"]
    ]
    if not rows:
        return "Every aim was met.\n"
    return _table("Missed aims", ("what", "found", "aim, at most", "client and servers", "what bounds it"), rows)


def _profiles(results: Sequence[Result], facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the time of each side that missed its aim went."""
    found = [(f"{each.bench}: {each.side}", each.profile) for each in results if each.met is False]
    found += [(str(fact["bench"]), fact.get("profile")) for fact in facts if not fact["met"]]
    rows = [[name, profile.size, profile.text] for name, given in found for profile in [given or Profile()]]
    columns = ("what", "samples", "the functions on top")
    return [_table("Where the client's time goes", columns, rows, note=PROFILED)] if rows else []


def read(path: Path, refuse: Callable[[str], object]) -> Figures:
    """The figures of an earlier run; ``refuse`` is told if there are none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): float(value) for name, value in found.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        refuse(f"no figures to compare with in {path}: {error}; --page FILE.md writes them")
        raise


def worse(before: Figures, now: Iterable[Mapping[str, Any]]) -> list[str]:
    """What got worse by more than a tenth, each as a sentence. A baseline is compared with itself, and says nothing."""
    found = []
    for each in now:
        name, value = _name(each), each["ratio"] if "ratio" in each else each["value"]
        if (old := before.get(name)) is not None and value > old * WORSE:
            found.append(f"worse: {name} is {value:.3g}, and was {old:.3g}")
    return found


def _name(figure: Mapping[str, Any]) -> str:
    return f"{figure['bench']}: {figure['side']}" if "side" in figure else str(figure["bench"])


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join([f"## {title}", "", *([note] if note else []), *(f"| {' | '.join(line)} |" for line in lines), ""])


def _row(side: Result) -> list[str]:
    aim = "" if side.aim is None else f"at most {side.aim:.3g}: {_verdict(side.met)}"
    spread = f"{side.low:.2f} .. {side.high:.2f}"
    return [side.side, f"{side.ratio:.2f}", spread, f"{side.client:.2f}", f"{side.servers:.2f}", aim]


def _cores(side: Result) -> str:
    return f"{side.client:.2f} and {side.servers:.2f}"


def _counted(fact: Mapping[str, Any]) -> list[str]:
    return [str(fact["bench"]), f"{fact['value']:.3g}", f"at most {fact['aim']:g}: {_verdict(fact['met'])}"]


def _verdict(met: object) -> str:
    return "met" if met else "**missed**"


def _peers() -> str:
    found = []
    for name in PEERS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
