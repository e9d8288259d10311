"""``python -m fencepost_lab.torture.page FOLDER...``: docs/torture.md and its plot, from the summaries of runs.

A folder is one that ``fencepost torture --out`` wrote, or a ``.json`` file that this command kept of it (``--keep``).
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import cycle
from pathlib import Path
from typing import Any

from fencepost_lab.torture.campaign import kept, summarise
from fencepost_lab.torture.faults import CATALOGUE

_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"
_WANTED = {
    "operations": 1_000_000,
    "pauses": 10_000,
    "client kills": 2_000,
    "server kills": 500,
    "partitions": 500,
    "clock jumps": 200,
    "losses of state": 100,
    "migrations": 50,
    "overlapping beliefs": 1_000,
    "stale refused": 1_000,
}
"""The size that the release figures are to have."""
_LEAST = {"consul": 20_000}
_EACH = 100_000
_SOAK = 300  # seconds


def slim(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results without what only one who looks for a fault needs, so that they are small enough to be kept."""
    wanted: tuple[str, ...] = (
        "plan",
        "ok",
        "operations",
        "seconds",
        "promises",
        "violations",
        "examples",
        "wrong",
        "counts",
        "faults",
    )
    wanted += ("without", "lost_updates", "overlapping_beliefs", "stale_refused", "served", "left", "memory")
    found = [
        {name: each[name] for name in wanted} | {name: each[name] for name in ("unchecked",) if name in each}
        for each in results
    ]
    # Of what a worker said when it broke, not its traceback: that names folders of the machine.
    return [
        each | {"wrong": [re.split(r" ended with \d+:", text)[0].splitlines()[0][:120] for text in each["wrong"]]}
        for each in found
    ]


def results(path: Path) -> list[dict[str, Any]]:
    """The slices of a run's folder, or of a file that was kept of it."""
    return kept(path) if path.is_dir() else json.loads(path.read_text())["slices"]


def figures(found: list[dict[str, Any]]) -> str:
    """The tables of the page."""
    summary = summarise(found)
    stores, total = summary["stores"], summary["total"]
    lines = [
        _BEGIN,
        "",
        f"Written on {summary['when']} by `python -m fencepost_lab.torture.page`, from {total['slices']}",
    ]
    lines[-1] += f" slices that took {total['seconds'] / 3600:.1f} hours on a shared machine with two cores."
    lines += ["", "| in all | done | release size |", "|---|---|---|"]
    for name, wanted in _WANTED.items():
        lines.append(f"| {name} | {total[name]:,} | {wanted:,}{'' if total[name] >= wanted else ' (not reached)'} |")
    share = total["pauses that outlived the lease"] / max(1, total["pauses"])
    lines += [
        f"| pauses that outlived the lease | {share:.1%} | 95% |",
        f"| **violations** | **{total['violations']}** | 0 |",
    ]
    head: tuple[str, ...] = (
        "store",
        "operations",
        "pauses",
        "kills",
        "faults of the store",
        "overlapping beliefs",
        "stale refused",
    )
    head += ("slowest grant after the faults", "violations")
    lines += ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, each in stores.items():
        short = "" if each["operations"] >= _LEAST.get(name, _EACH) else " (short)"
        row = [
            name,
            f"{each['operations']:,}{short}",
            each["pauses"],
            each["client kills"],
            sum(each["faults"].values()),
        ]
        row += [each["overlapping beliefs"], each["stale refused"], f"{each['longest until served']:.2f} s"]
        lines.append(f"| {' | '.join(map(str, row))} | {each['violations']} |")
    lines += ["", "## Controls", "", "| store | control | operations | violations | lost updates | seeds |"]
    lines.append("|---|---|---|---|---|---|")
    for name, each in stores.items():
        for control, shown in each["controls"].items():
            seeds = ", ".join(map(str, shown["seeds"]))
            row = [name, control, shown["operations"], shown["violations"], shown["lost updates"], seeds]
            lines.append(f"| {' | '.join(map(str, row))} |")
    without: dict[tuple[str, str], list[str]] = {}
    for name, each in stores.items():
        for control, why in each["without controls"].items():
            without.setdefault((control, why), []).append(name)
    lines += ["", *(f"- No `{control}` on {', '.join(names)}: {why}." for (control, why), names in without.items())]
    lines += [
        "",
        "## Faults that happened",
        "",
        f"| fault | what | {' | '.join(stores)} |",
        f"|---|---|{'---|' * len(stores)}",
    ]
    for fault in CATALOGUE.values():
        cells = [_times(fault.name, each) for each in stores.values()]
        lines.append(f"| {fault.name} | {fault.about} | {' | '.join(cells)} |")
    lines += ["", "A dash is a fault that the store cannot meet:", ""]
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, each in stores.items():
        for fault_name, why in each["without"].items():
            reasons.setdefault((why, name), []).append(fault_name)
    for (why, name), names in reasons.items():
        lines.append(f"- {name}: {', '.join(names)}: {why}")
    lines += ["", "## Seeds", ""]
    for name, each in stores.items():
        lines.append(f"- {name}: {_ranges(each['seeds'])}; promised in slices: {_counted(each['promised in slices'])}")
    lines += ["", *_memory(found), "", _END]
    return "\n".join(lines)


def _times(name: str, store: dict[str, Any]) -> str:
    if name in store["without"]:
        return "-"
    clients = {"pause": "pauses", "kill": "client kills", "fork": "forks"}
    return str(store[clients[name]] if name in clients else store["faults"].get(name, 0))


def _ranges(seeds: list[int]) -> str:
    """Seeds as text: 5 to 9, 12."""
    found: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if found and seed == found[-1][1] + 1:
            found[-1][1] = seed
        else:
            found.append([seed, seed])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _memory(found: list[dict[str, Any]]) -> list[str]:
    product = [each for each in found if not each["plan"]["control"] and each["memory"]["samples"]]
    if not product:
        return []
    grown = max(each["memory"]["growth"] for each in product)
    lines = [
        "## What is left",
        "",
        f"After {len(product)} slices: {sum(each['left'].get('threads', 0) for each in product)} threads, "
        f"{sum(each['left'].get('sockets', 0) for each in product)} sockets and "
        f"{sum(each['left'].get('locks', 0) for each in product)} held locks were left. The resident memory of a "
        f"worker grew by at most {grown / 1e6:.1f} MB between the second and the last quarter of its life; the longest "
        f"life that was watched is {max(_life(each) for each in product):.0f} s.",
    ]
    soaks = [each for each in product if _soak(each)]
    if not soaks:
        return lines
    lines += [
        "",
        f"A soak is slices of {_SOAK / 60:.0f} minutes or more in which no worker is killed, so that each process "
        "lives as long as its slice:",
        "",
        "| store | minutes | operations | pauses | faults of the store | memory grew by | descriptors | threads |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(each["plan"]["store"] for each in soaks):
        mine = [each for each in soaks if each["plan"]["store"] == name]
        most = {what: max(each["memory"][what] for each in mine) for what in ("growth", "descriptors", "threads")}
        faults = sum(sum(each["faults"].values()) for each in mine)
        minutes = sum(each["seconds"] for each in mine) / 60
        lines.append(
            f"| {name} | {minutes:.1f} | {sum(each['operations'] for each in mine):,} "
            f"| {sum(each['counts'].get('pauses', 0) for each in mine)} | {faults} "
            f"| {most['growth'] / 1e6:.1f} MB | {most['descriptors']} | {most['threads']} |"
        )
    minutes = sum(each["seconds"] for each in soaks) / 60
    return [
        *lines,
        "",
        f"Together {minutes:.0f} minutes (release size: 120). What grew is the median of the last quarter of a "
        "worker's life less that of its second quarter; the worst worker of each store is shown.",
    ]


def _soak(each: dict[str, Any]) -> bool:
    faults = each["plan"]["faults"]
    return bool(faults) and "kill" not in faults and each["seconds"] >= _SOAK and "descriptors" in each["memory"]


def _life(each: dict[str, Any]) -> float:
    samples = each["memory"]["samples"]
    return float(samples[-1][0] - samples[0][0]) if samples else 0.0


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """The resident memory, descriptors and threads of the longest-lived worker of each store over time."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = "fencepost"
    lives: dict[str, dict[str, Any]] = {}
    for each in found:
        name = each["plan"]["store"]
        if not each["plan"]["control"] and _life(each) > _life(lives.get(name, {"memory": {"samples": []}})):
            lives[name] = each
    figure, panels = pyplot.subplots(3, 1, figsize=(7, 7), sharex=True)
    shown = (("resident MB", 1e6), ("descriptors", 1), ("threads", 1))
    for which, (axes, (label, unit)) in enumerate(zip(panels, shown, strict=True), 1):
        for (name, each), marker in zip(lives.items(), cycle("os^vDPX*<>"), strict=False):
            samples = [sample for sample in each["memory"]["samples"] if len(sample) > which]
            times, sizes = [sample[0] for sample in samples], [sample[which] / unit for sample in samples]
            axes.plot(times, sizes, marker=marker, markevery=10, markersize=4, linewidth=1, label=name)
        axes.set(ylabel=f"{label} of a worker", ylim=(0, None))
    panels[0].set_title("What a worker uses while its store is harmed")
    panels[0].legend(fontsize=7, ncols=3)
    panels[-1].set_xlabel("seconds since the slice began")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fencepost_lab.torture.page", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--page", type=Path, default=Path("docs/torture.md"))
    parser.add_argument("--keep", type=Path, help="also write the slices into this file, without what is not shown")
    given = parser.parse_args()
    found = [each for path in given.runs for each in results(path)]
    if given.keep is not None:
        given.keep.parent.mkdir(parents=True, exist_ok=True)
        text = ",\n".join(json.dumps(each, separators=(",", ":")) for each in slim(found))
        given.keep.write_text(f'{{"slices":[\n{text}\n]}}\n')
    page = given.page.read_text("utf-8")
    whole = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    given.page.write_text(whole.sub(lambda _: figures(found), page), "utf-8")
    plot(found, given.page.with_name("torture-memory.svg"))


if __name__ == "__main__":
    main()
