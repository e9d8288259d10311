"""Names, durations, tokens and stamps: what is accepted, and what is refused with a reason."""

import threading
from datetime import timedelta
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import check
from fencepost.errors import ConfigError
from fencepost.rule import MAX_TOKEN, Stamp


@pytest.mark.parametrize("name", ["a", "account/42", "../x", "{a}", "ünï", "a b", "🔒", "%00", "x" * 512, "é" * 256])
def test_a_name_is_kept_as_it_is(name: str) -> None:
    assert check.name(name) == name


@pytest.mark.parametrize(
    "name", ["", "\0", "a\nb", "a\tb", "\x7f", "\x85", "\ud800", "x" * 513, "é" * 257, None, b"a", 5]
)
def test_a_name_that_some_backend_could_not_keep_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError):
        check.name(name)


@given(st.text(max_size=600))
def test_a_name_is_unchanged_or_refused(name: str) -> None:
    try:
        assert check.name(name) is name
    except ConfigError:
        return
    assert 0 < len(name.encode()) <= 512


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2), ("500ms", 0.5), ("2s", 2), ("1.5s", 1.5), (".5s", 0.5), ("5m", 300), ("1h", 3600), (" 2 s ", 2)],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert check.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s 2", "1e3", "inf", "nan", "2 weeks", "٢s", "1,5s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="duration"):
        check.duration(text)


def test_seconds_take_a_timedelta() -> None:
    assert check.seconds(timedelta(minutes=2), "ttl") == 120.0


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "5", None])
def test_seconds_that_cannot_be_meant(value: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        check.seconds(value, "timeout")


@pytest.mark.parametrize("value", [None, float("inf"), threading.TIMEOUT_MAX, 1e9, 10**400, timedelta.max])
def test_a_wait_without_end(value: Any) -> None:
    assert check.wait(value, "timeout") == inf


@pytest.mark.parametrize("value", [-1, float("-inf"), float("nan"), True, "5"])
def test_a_wait_that_cannot_be_meant(value: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        check.wait(value, "timeout")


def test_no_lease_is_for_ever_and_none_is_for_no_time() -> None:
    for value in (0, -1, float("inf")):
        with pytest.raises(ConfigError):
            check.ttl(value)


@pytest.mark.parametrize("token", [1, 2**53 + 1, MAX_TOKEN])
def test_a_token(token: int) -> None:
    assert check.token(token) == token


@pytest.mark.parametrize("token", [0, -1, MAX_TOKEN + 1, True, 1.0, "1", None])
def test_what_is_no_token(token: Any) -> None:
    with pytest.raises(ConfigError):
        check.token(token)


@pytest.mark.parametrize("stamp", [Stamp(1), Stamp(1, 1, "ann"), Stamp(MAX_TOKEN, MAX_TOKEN, "ann")])
def test_a_stamp(stamp: Stamp) -> None:
    assert check.stamp(stamp) == stamp


@pytest.mark.parametrize(
    "stamp",
    [Stamp(0), Stamp(1, 0, "ann"), Stamp(1, 2), Stamp(1, MAX_TOKEN + 1, "ann"), Stamp(1, 1, "a\0")],
)
def test_what_cannot_stamp_a_write(stamp: Stamp) -> None:
    with pytest.raises(ConfigError):
        check.stamp(stamp)
