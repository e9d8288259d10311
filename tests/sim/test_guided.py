"""Every guided scenario ends as its story says."""

from typing import Any

import pytest

from fencepost_lab.sim import parse, run
from fencepost_lab.sim.guided import guided, outcome, variant

STORIES = [(story["name"], number) for story in guided() for number in range(len(story["variants"]))]
PROMISED = {
    "gc-pause",
    "delayed-packet",
    "partition",
    "redlock-clock-jump",
    "redlock-pause",
    "redlock-restart",
    "get-then-delete",
    "failover-counter",
    "write-only",
    "short-ttl",
    "renewal",
    "all-is-well",
}


def story(name: str) -> dict[str, Any]:
    return next(each for each in guided() if each["name"] == name)


def test_every_story_is_told() -> None:
    assert {each["name"] for each in guided()} == PROMISED


@pytest.mark.parametrize(("name", "number"), STORIES)
def test_a_story_ends_as_it_says(name: str, number: int) -> None:
    told = story(name)
    scenario = variant(told, number)
    trace = run(scenario)
    expected = told["variants"][number]["expect"]
    assert expected
    assert {key: outcome(trace)[key] for key in expected} == expected
    assert len([line for line in trace if line["ev"] == "note"]) >= 2
    assert parse(scenario.data()) == scenario


@pytest.mark.parametrize(("fencing", "accepted", "refused"), [("off", 2, 0), ("enter", 1, 1)])
def test_the_first_scenario_of_the_seed_exactly(fencing: str, accepted: int, refused: int) -> None:
    number = next(n for n, each in enumerate(story("gc-pause")["variants"]) if each["settings"]["fencing"] == fencing)
    scenario = variant(story("gc-pause"), number)
    trace = run(scenario)
    end = trace[-1]
    assert scenario.settings.ttl == 5
    assert [line["for"] for line in trace if line["ev"] == "fault" and line["do"] == "pause"] == [8]
    acquired = {line["who"]: (line["token"], round(line["t"])) for line in trace if line["ev"] == "acquired"}
    assert acquired == {"A": (1, 0), "B": (2, 5)}
    assert (end["accepted"], end["refused"]) == (accepted, refused)
    assert (end["corrupted"] > 0) is (fencing == "off")
    if refused:
        late = next(line for line in trace if line["ev"] == "access" and line["verdict"] == "stale")
        assert (late["who"], late["token"], late["mark"]) == ("A", 1, 2)
