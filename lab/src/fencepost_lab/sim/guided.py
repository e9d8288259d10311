"""The guided scenarios: data with a story, a few variants each, and what each of them must end in."""

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from fencepost_lab.history.format import Line
from fencepost_lab.sim.scenario import Scenario, parse


@cache
def guided() -> tuple[dict[str, Any], ...]:
    """Every guided scenario, in the order they are told."""
    folder = files("fencepost_lab.sim") / "scenarios"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return tuple(json.loads(file.read_text("utf-8")) for file in found)


def variant(story: dict[str, Any], number: int) -> Scenario:
    """One variant of a guided scenario, its notes among its actions."""
    chosen = story["variants"][number]
    notes = [{**note, "do": "note"} for note in (*story["notes"], *chosen["notes"])]
    return parse(
        {
            "seed": story["seed"],
            "settings": {**story["settings"], **chosen["settings"]},
            "actions": sorted([*notes, *story["actions"]], key=lambda action: action["at"]),
            "until": story["until"],
        }
    )


def outcome(trace: Iterable[Line]) -> dict[str, Any]:
    """How a run ended, in the words that the scenarios' ``expect`` uses."""
    trace = list(trace)
    end = trace[-1]
    accesses = [line for line in trace if line["ev"] == "access"]
    applied = {(line["token"], line["seq"], line["holder"]) for line in accesses if "version" in line}
    refused = [line for line in accesses if line["verdict"] not in ("admit", "replay")]
    told = [line for line in trace if line["ev"] == "wrote" and line["outcome"] == "done"]
    acquired = {(line["token"], line["holder"]) for line in trace if line["ev"] == "acquired"}
    return {
        **{name: end[name] for name in ("accepted", "refused", "corrupted", "lost_updates", "value", "mark")},
        "writers": len({line["holder"] for line in accesses if "version" in line}),
        "refusals": [{name: line[name] for name in ("token", "verdict", "mark")} for line in refused],
        "clashes": sum(line["verdict"] == "clash" for line in refused),
        "unkept": sum((line["token"], line["seq"], line["holder"]) not in applied for line in told),
        "repeated": len(acquired) - len({token for token, _ in acquired}),
        "taken": sum(line["ev"] == "freed" and line["how"] == "taken" for line in trace),
        "finished": not end["unfinished"],
    }
