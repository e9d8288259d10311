"""The logging hook: a sentence for people, facts for programs, and a level that fits."""

import logging

import pytest

from fencepost.events import Event, Kind
from fencepost.hooks.log import Log
from fencepost.rule import Verdict
from tests.harness.logs import logged


def test_a_record_carries_the_facts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fencepost.events"):
        Log()(Event(kind="acquired", name="thing", source="redis", token=7, holder="ann", seconds=0.5))
    (record,) = logged(caplog)
    assert record.getMessage() == "acquired 'thing' source=redis token=7 holder=ann seconds=0.5"
    facts = vars(record)["fencepost"]
    assert (facts["kind"], facts["name"], facts["token"]) == ("acquired", "thing", 7)


@pytest.mark.parametrize(
    ("kind", "verdict", "enforced", "level"),
    [
        ("decision", Verdict.ADMIT, None, logging.DEBUG),
        ("decision", Verdict.STALE, True, logging.WARNING),
        ("decision", Verdict.MISSING, False, logging.WARNING),
        ("decision", Verdict.CLASH, True, logging.ERROR),
        ("lost", None, None, logging.WARNING),
        ("override", None, None, logging.WARNING),
        ("timeout", None, None, logging.INFO),
        ("renewed", None, None, logging.DEBUG),
    ],
)
def test_what_goes_wrong_is_louder(
    caplog: pytest.LogCaptureFixture, kind: Kind, verdict: Verdict | None, enforced: bool | None, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, "fencepost.events"):
        Log()(Event(kind=kind, name="thing", source="redis", verdict=verdict, enforced=enforced))
    assert [record.levelno for record in logged(caplog)] == [level]


def test_a_holder_cannot_forge_a_field_or_a_line(caplog: pytest.LogCaptureFixture) -> None:
    holder = "ann verdict=admit\u2028\u202e\nacquired"
    with caplog.at_level(logging.DEBUG, "fencepost.events"):
        Log()(Event(kind="decision", name="a\u2028b", source="http", token=7, holder=holder, verdict=Verdict.STALE))
    (record,) = logged(caplog)
    assert record.getMessage() == (
        "decision 'a\\u2028b' source=http token=7 holder='ann verdict=admit\\u2028\\u202e\\nacquired' verdict=stale"
    )
