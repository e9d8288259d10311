"""The page on speed: the ratios of one run, as Markdown."""

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path

from bench.harness import Result

PEERS = ("redis", "python-redis-lock", "aetcd", "etcd3gw", "kazoo", "py-consul", "tooz")

HEAD = """\
# What it costs

Written by `{command}`; do not edit. Each table is one bench: its sides ran interleaved in one run, after a
warm-up, and **times** is the median over the rounds of a side's time to that of the last side, with the 10th and 90th
percentile: at 0.5 it is twice as fast. An aim is for the first side; one that was missed says so.
[bench/README.md](../bench/README.md) tells how it is measured.

Measured on {cores} cores with Python {python}; {peers}.
"""


def write(path: Path, command: str, results: Sequence[Result], facts: Iterable[dict[str, object]]) -> None:
    """Write the page."""
    head = HEAD.format(command=command, cores=os.cpu_count(), python=platform.python_version(), peers=_peers())
    parts = [head]
    for name, sides in groupby(results, key=lambda result: result.bench):
        parts.append(_table(name, ("side", "times", "10th .. 90th", "aim"), map(_row, sides)))
    if counted := [_counted(fact) for fact in facts]:
        parts.append(_table("Counted", ("what", "found", "aim"), counted))
    path.write_text("\n".join(parts), encoding="utf-8")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _row(side: Result) -> list[str]:
    aim = "" if side.aim is None else f"at most {side.aim:.3g}: {_verdict(side.met)}"
    return [side.side, f"{side.ratio:.2f}", f"{side.low:.2f} .. {side.high:.2f}", aim]


def _counted(fact: dict[str, object]) -> list[str]:
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
