"""What the page is made of: its files, and the data it asks for, live or exported."""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fencepost.errors import ConfigError
from fencepost_lab.history.format import lines, load
from fencepost_lab.sim import about, runtime
from fencepost_lab.sim.answers import answer
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

STATIC = files("fencepost_lab.sim") / "static"


def options(*, engine: str, play: bool, python: Mapping[str, int] | None = None) -> dict[str, Any]:
    """What the page can offer, every setting and action there is, and where new scenarios are run.

    ``engine`` is ``server``, ``page`` (Python in the page, made of the files ``python``, with their sizes) or ``none``.
    """
    return {
        "engine": engine,
        "python": dict(python or {}),
        "play": play,
        "backends": {name: about.STORES[name] for name in BACKENDS},
        "fencings": {name: about.FENCINGS[name] for name in FENCINGS},
        "meanings": about.SETTINGS,
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


def data(path: str, *, play: Path | None) -> str:
    """The text of one of the page's data files; ConfigError if there is none at ``path``."""
    folder, _, name = path.rpartition("/")
    if path == "options.json":
        return json.dumps(options(engine="server", play=play is not None))
    if path == "scenarios.json":
        return json.dumps(stories())
    if path == "history.jsonl" and play is not None:
        return played(play)
    if folder == "traces" and name.endswith(".jsonl"):
        return trace(name.removesuffix(".jsonl"))
    if folder == "seeds" and name.endswith(".json"):
        return answer("seed", name.removesuffix(".json"))
    raise ConfigError(f"there is no data/{path}")


def export(folder: Path, play: Path | None = None, *, recorded: bool = False) -> list[Path]:
    """Write the page for any file server, with Python inside that runs new scenarios; the files written.

    With ``recorded`` it only plays what was recorded. ConfigError if Pyodide is neither here nor can be downloaded.
    """
    python = {} if recorded else runtime.files()
    written = []
    for path, content in _exported(play, python):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        written.append(target)
    return written


def _exported(play: Path | None, python: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    def walk(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
        for path in folder.iterdir():
            if path.is_dir():
                yield from walk(path, f"{prefix}{path.name}/")
            else:
                yield prefix + path.name, path.read_bytes()

    yield from walk(STATIC, "")
    for name, content in python.items():
        yield f"python/{name}", content
    sizes = {name: len(content) for name, content in python.items() if not name.endswith(".txt")}
    offered = options(engine="page" if python else "none", play=play is not None, python=sizes)
    yield "data/options.json", json.dumps(offered).encode()
    names = ["scenarios.json", *(["history.jsonl"] if play else [])]
    names += [each["trace"].removeprefix("data/") for story in stories() for each in story["variants"]]
    for name in names:
        yield f"data/{name}", data(name, play=play).encode()
