"""The report: everything the runs of a folder found, as Markdown and as one self-contained page."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from fencepost.errors import ConfigError
from fencepost_lab.experiments import slo
from fencepost_lab.experiments.runs import FOLDER, Result
from fencepost_lab.report.page import page
from fencepost_lab.report.plots import is_drawing

TITLE = "fencepost: what the lab shows"
LEAD = (
    "A lock is a hint; the resource is the guarantee. Every experiment below ran on real servers and real processes of "
    "one machine, with real pauses and kills, and can be run again by its command. Absolute times are that machine's; "
    "the claims are about counts, orders and ratios."
)
_NAME = re.compile(r"\w[\w-]*", re.ASCII)
_HISTORY = re.compile(r"\w[\w.-]*\.jsonl\.gz", re.ASCII)
NOTES = {"redlock": "redlock-note.md"}
"""Experiment -> the note that follows it."""


def load(folder: Path) -> list[Result]:
    """The results kept in a folder, by number; ConfigError if there are none."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            result = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {str(file)!r}: {error}") from error
        if isinstance(result, dict) and "experiment" in result and "claims" in result:
            for name in (result["experiment"], *(plot["name"] for plot in result["plots"])):
                # Names become those of files: one that leads out of the folder is no experiment's.
                if not isinstance(name, str) or not _NAME.fullmatch(name):
                    raise ConfigError(f"{str(file)!r} names an experiment or a plot {name!r}; it is none of the lab's")
            for each in result.setdefault("histories", []):
                name = each.get("file") if isinstance(each, dict) else each
                if not isinstance(each, dict) or not _HISTORY.fullmatch(str(name)):
                    raise ConfigError(
                        f"{str(file)!r} names a history {name!r}, which is none of this lab's; run the experiment again"
                    )
            found.append(result)
    if not found:
        raise ConfigError(f"there are no results in {str(folder)!r}; run 'fencepost lab run all --out {folder}' first")
    return sorted(found, key=lambda each: int(each["number"]))


def write(source: Path = FOLDER, out: Path | None = None) -> list[Path]:
    """Write report.md and report.html into ``out``, with the results and plots they are made of beside them."""
    results = load(source)
    out = source if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for result in results:
        for plot in result["plots"]:
            name = picture(result, plot)
            try:
                pictures[name] = (source / name).read_text("utf-8")
            except OSError as error:
                raise ConfigError(f"cannot read {str(source / name)!r}: run '{result['command']}' again") from error
            if not is_drawing(pictures[name]):
                raise ConfigError(f"{str(source / name)!r} is no drawing of the lab's; run '{result['command']}' again")
    if out.resolve() != source.resolve():
        kept = [each["file"] for result in results for each in result["histories"]]
        for name in [*pictures, *(f"{result['experiment']}.json" for result in results), *kept]:
            try:
                shutil.copyfile(source / name, out / name)
            except OSError as error:
                raise ConfigError(f"cannot copy {str(source / name)!r}: {error.strerror}") from error
    text = markdown(results)
    written = [out / "report.md", out / "report.html"]
    written[0].write_text(text, "utf-8")
    written[1].write_text(page(TITLE, text, pictures), "utf-8")
    return written


def picture(result: Result, plot: dict[str, str]) -> str:
    """The file of a plot."""
    return f"{result['experiment']}-{plot['name']}.svg"


def markdown(results: Iterable[Result]) -> str:
    """The report's text."""
    results = list(results)
    held = sum(claim["held"] for result in results for claim in result["claims"])
    claims = sum(len(result["claims"]) for result in results)
    parts = [f"# {TITLE}", LEAD, f"**{held} of {claims} claims held, in {len(results)} experiments.**"]
    overview = [
        (
            result["number"],
            f"[{result['experiment']}](#{anchor(result)})",
            result["question"],
            result["claim"],
            _held(result["ok"]),
        )
        for result in results
    ]
    parts.append(table(("", "experiment", "question", "what it claims", ""), overview))
    parts += ["## Service levels", table(("metric", "target", "measured", "command"), slo.rows(results))]
    for result in results:
        parts += _section(result)
    return "\n\n".join(parts) + "\n"


def _section(result: Result) -> Iterator[str]:
    yield f"## {result['number']}. {result['experiment']}: {result['question']}"
    yield f"**{'As claimed' if result['ok'] else 'NOT as claimed'}.** {result['claim']}"
    yield f"**Set-up.** {result['setup']}"
    for each in result["plots"]:
        yield f"![{each['caption']}]({picture(result, each)})"
        yield f"*{each['caption']}*"
    for each in result["tables"]:
        yield f"**{each['title']}**"
        yield table(each["columns"], each["rows"])
        if each["note"]:
            yield f"*{each['note']}*"
    claims = [(_held(each["held"]), each["text"], each["evidence"]) for each in result["claims"]]
    yield table(("", "claim", "what was seen"), claims)
    yield f"**What it means.** {result['meaning']}"
    name, machine = result["experiment"], result["machine"]
    versions = ", ".join(f"{each} {version}" for each, version in result["versions"].items())
    yield f"Run it again:\n\n```text\n{result['command']}\n```"
    stores = "; ".join(result.get("stores", {}).values())
    commit = f"commit {result['commit']}, " if result.get("commit") else ""
    yield (
        f"It took {result['seconds']:g} s on {result['started'][:10]}, {commit}on {machine['cpus']} cores of "
        f"{machine['system']} {machine['arch']}: {versions}. "
        f"{f'Stores: {stores}. ' if stores else ''}All figures: [{name}.json]({name}.json)."
        f"{_histories(result)}"
    )
    note = files("fencepost_lab.experiments") / NOTES.get(name, "-")
    if note.is_file():
        yield note.read_text("utf-8").strip()


def _histories(result: Result) -> str:
    """How many histories are kept, and what was found in them."""
    kept = result["histories"]
    if not kept:
        return ""
    counts = Counter(each["verdict"] for each in kept)
    found = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    return f" {len(kept)} histories are kept beside it: {found}; 'fencepost check' on this folder looks again."


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    head = list(columns)
    lines = [_line(head), _line("---" for _ in head), *(_line(row) for row in rows)]
    return "\n".join(lines)


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(_cell(each) for each in cells) + " |"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:.4g}"
    text = " ".join(str(value).replace("|", "\\|").split())
    return re.sub(r"(\d) (s|ms|us|MB|GB)\b", "\\1\N{NO-BREAK SPACE}\\2", text)


def _held(held: bool) -> str:
    return "as claimed" if held else "NOT as claimed"


def anchor(result: Result) -> str:
    """The section's anchor, as GitHub makes it from its heading."""
    heading = f"{result['number']}. {result['experiment']}: {result['question']}".lower()
    return "".join(each for each in heading.replace(" ", "-") if each.isalnum() or each in "-_")
