"""What the page is made of: its files, and the data it asks for, live or exported."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from fencepost.errors import ConfigError
from fencepost_lab.history.format import lines, load
from fencepost_lab.sim.chaos import chaos
from fencepost_lab.sim.guided import guided, variant
from fencepost_lab.sim.run import run
from fencepost_lab.sim.scenario import (
    ACTIONS,
    BACKENDS,
    CLIENT_ACTIONS,
    FENCINGS,
    MACHINES,
    SERVICE_ACTIONS,
    Scenario,
    parse,
)
from fencepost_lab.sim.seeds import told

_NUMBER = re.compile(r"[0-9]{1,19}")
STATIC = files("fencepost_lab.sim") / "static"


def options(*, live: bool, play: bool) -> dict[str, Any]:
    """What the page can offer: whether it can run anything new, and every setting and action there is."""
    return {
        "live": live,
        "play": play,
        "backends": list(BACKENDS),
        "fencings": list(FENCINGS),
        "machines": {name: list(machines) for name, machines in MACHINES.items()},
        "settings": Scenario().data()["settings"],
        "actions": ACTIONS,
        "client_actions": sorted(CLIENT_ACTIONS),
        "service_actions": sorted(SERVICE_ACTIONS),
    }


def stories() -> list[dict[str, Any]]:
    """The guided scenarios, each variant with its complete scenario and the name of its trace."""
    return [
        {
            **story,
            "variants": [
                {
                    **each,
                    "scenario": variant(story, number).data(),
                    "trace": f"data/traces/{story['name']}-{number}.jsonl",
                }
                for number, each in enumerate(story["variants"])
            ],
        }
        for story in guided()
    ]


def trace(name: str) -> str:
    """A recorded variant, by the name ``scenario-variant``; ConfigError if there is none."""
    story, _, number = name.rpartition("-")
    for each in guided():
        if each["name"] == story and number in map(str, range(len(each["variants"]))):
            return lines(run(variant(each, int(number))))
    raise ConfigError(f"there is no recorded trace {name!r}")


def played(path: Path) -> str:
    """The history in a file, or the run of the scenario in it, as of a kept seed; ConfigError if it holds neither."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"there is no history {str(path)!r} to play: {error}") from error
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "ev" not in whole:
        return lines(whole["history"] if "history" in whole else told(parse(whole)))
    return lines(load(path))


def data(path: str, *, play: Path | None, live: bool = True) -> str:
    """The text of one of the page's data files; ConfigError if there is none at ``path``."""
    folder, _, name = path.rpartition("/")
    if path == "options.json":
        return json.dumps(options(live=live, play=play is not None))
    if path == "scenarios.json":
        return json.dumps(stories())
    if path == "history.jsonl" and play is not None:
        return played(play)
    if folder == "traces" and name.endswith(".jsonl"):
        return trace(name.removesuffix(".jsonl"))
    seed = name.removesuffix(".json")
    if folder == "seeds" and live and _NUMBER.fullmatch(seed) and int(seed) < 2**63:
        return json.dumps(chaos(int(seed)).data())
    raise ConfigError(f"there is no data/{path}")


def export(folder: Path, play: Path | None = None) -> list[Path]:
    """Write the page with its recorded traces, for any file server; the files written."""
    written = []
    for path, content in _exported(play):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        written.append(target)
    return written


def _exported(play: Path | None) -> Iterator[tuple[str, bytes]]:
    def walk(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
        for path in folder.iterdir():
            if path.is_dir():
                yield from walk(path, f"{prefix}{path.name}/")
            else:
                yield prefix + path.name, path.read_bytes()

    yield from walk(STATIC, "")
    names = ["options.json", "scenarios.json", *(["history.jsonl"] if play else [])]
    names += [each["trace"].removeprefix("data/") for story in stories() for each in story["variants"]]
    for name in names:
        yield f"data/{name}", data(name, play=play, live=False).encode()
