"""Histories that are kept beside the results of the lab: each still shows what its result says was found in it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fencepost.errors import ConfigError
from fencepost_lab.history.checks import Report, check
from fencepost_lab.history.format import ENDINGS, load


class Checked(NamedTuple):
    """One history, what was found in it, and what the result beside it says of it; None if no result names it."""

    path: Path
    report: Report | None
    """None if the file is missing."""
    said: dict[str, Any] | None

    @property
    def differs(self) -> bool:
        """Whether it does not show what its result says."""
        return self.said is not None and (self.report is None or found(self.report) != _plain(self.said))

    @property
    def verdict(self) -> str:
        """as reported, if its result says the same; else missing, not as reported, or its own verdict."""
        if self.said is not None:
            return "missing" if self.report is None else "not as reported" if self.differs else "as reported"
        return "missing" if self.report is None else self.report.verdict


def found(report: Report) -> dict[str, Any]:
    """What a result says of a history."""
    return {
        "verdict": report.verdict,
        "promises": report.states(),
        "violations": len(report.violations),
        "events": report.counts["events"],
    }


def _plain(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name != "file"}


def paths(given: Sequence[Path]) -> list[tuple[Path, dict[str, Any] | None]]:
    """The histories among files and folders, each with what the results of its folder say of it.

    A file that is named stands for itself. ConfigError if a folder has none.
    """
    whole: list[tuple[Path, dict[str, Any] | None]] = []
    for path in given:
        if not path.is_dir():
            whole.append((path, None))
            continue
        said = dict(_said(path))
        there = {each.name for each in path.iterdir() if each.name.endswith(ENDINGS)}
        if not there | set(said):
            raise ConfigError(f"there are no histories in {str(path)!r}; they are called *.jsonl or *.jsonl.gz")
        whole += [(path / name, said.get(name)) for name in sorted(there | set(said))]
    return whole


def verify(given: Sequence[Path], promises: Sequence[str] | None = None) -> Iterator[Checked]:
    """Check each; ConfigError for a file that is no history."""
    for path, said in paths(given):
        if said is not None and not path.exists():
            yield Checked(path, None, said)
            continue
        try:
            report = check(load(path), promises or None)
        except ConfigError as error:
            named = str(error) if str(path) in str(error) else f"{path}: {error}"
            raise ConfigError(named) from error
        yield Checked(path, report, None if promises else said)


def _said(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the lab's results in a folder say of their histories."""
    for file in sorted(folder.glob("*.json")):
        try:
            result = json.loads(file.read_text("utf-8"))
            histories = result["histories"] if isinstance(result, dict) and "experiment" in result else []
            for each in histories:
                # A name that leads out of the folder is none of the lab's.
                if Path(each["file"]).name != each["file"]:
                    raise ValueError(f"{each['file']!r} is no name of a file")
                yield each["file"], each
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot read {str(file)!r} as a result of the lab: {error!r}") from error
