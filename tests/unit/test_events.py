"""Events are facts, and hooks never disturb what they watch."""

import dataclasses
import logging

import pytest

from fencepost.events import Event, Hooks


def event() -> Event:
    return Event(kind="attempt", name="lock", source="memory")


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        event().name = "other"  # type: ignore[misc]


def test_every_hook_is_told_in_order() -> None:
    told: list[str] = []
    hooks = Hooks([lambda e: told.append("first"), lambda e: told.append("second")])
    hooks(event())
    assert told == ["first", "second"]
    assert hooks
    assert not Hooks()


def test_a_hook_that_raises_is_logged_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("the pager is down")

    with caplog.at_level(logging.ERROR, "fencepost"):
        Hooks([broken, told.append])(event())
    assert len(told) == 1
    assert "the pager is down" in caplog.text
