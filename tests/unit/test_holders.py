"""What a process, or a candidate, may tell of itself."""

import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fencepost
from fencepost import check, holders
from fencepost.errors import ConfigError


@pytest.mark.parametrize("metadata", ["", "10.0.0.5:8080", "a@b@c", "100 %", "é \N{PARTY POPPER}\n", "x" * 400])
def test_metadata_comes_back_as_it_was_told(metadata: str) -> None:
    told = holders.compose("0" * 32, metadata)
    assert holders.split(told) == ("0" * 32, metadata)
    assert len(told.encode()) <= 512
    assert told.isprintable()


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ("x" * 401, "at most 400 bytes"),
        ("\N{PARTY POPPER}" * 34, "has 408: make it shorter"),
        ("\ud800", "valid Unicode"),
        (b"bytes", "is a str, not b'bytes'"),
        (8080, "is a str, not 8080"),
        (None, "is a str, not None"),
    ],
    ids=lambda value: str(value)[:12].encode("ascii", "replace").decode(),
)
def test_what_cannot_be_told_is_refused_before_anybody_is_asked(metadata: Any, complaint: str) -> None:
    with fencepost.connect("redis://127.0.0.1:1") as locks, pytest.raises(ConfigError, match=complaint):
        locks.election("scheduler", metadata=metadata)


def test_a_label_tells_command_pid_user_and_host_but_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_LABEL", raising=False)
    monkeypatch.setattr("sys.argv", ["/srv/app/report.py", "--password=secret"])
    label = holders.own_label()
    assert re.fullmatch(rf"report\.py\[{os.getpid()}\] \S+@\S+", label)
    assert holders.own_label("sleep").startswith(f"sleep[{os.getpid()}] ")
    monkeypatch.setattr("sys.argv", ["/lib/celery/__main__.py", "worker"])
    assert holders.own_label().startswith("celery[")
    monkeypatch.setattr("sys.argv", ["-c"])
    assert holders.own_label().startswith("python")


def test_a_label_fits_however_long_the_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_LABEL", raising=False)
    for name in ("x" * 300, "日" * 300, "\udcff" * 300, "\x00" * 300):
        holder = "0" * 32 + holders.suffix(holders.own_label(name))
        assert len(holder) <= 32 + 1 + holders.MAX_LABEL
        assert check.holder(holder) == holder
        assert holders.unlabelled(holder)[1].startswith(name[:3].encode(errors="replace").decode())
    monkeypatch.setattr(holders, "_user", lambda: "\U0001f389" * 9)
    monkeypatch.setattr(holders, "_host", lambda: "\U0001f389" * 9)
    assert holders.suffix(holders.own_label("\U0001f389" * 9))


def test_the_environment_decides_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_LABEL", "pod-7")
    assert holders.own_label() == "pod-7"
    monkeypatch.setenv("FENCEPOST_LABEL", "")
    assert holders.suffix(holders.own_label()) == ""
    for odd in ("x" * 121, "\udcff"):
        monkeypatch.setenv("FENCEPOST_LABEL", odd)
        with pytest.raises(ConfigError, match=r"^\$FENCEPOST_LABEL "):
            holders.own_label()


@given(label=st.text(min_size=1, max_size=10))
def test_a_label_comes_back_as_it_was_and_apart_from_the_id(label: str) -> None:
    label = label.encode(errors="replace").decode()
    holder = "0" * 32 + holders.suffix(label)
    assert holders.unlabelled(holder) == ("0" * 32, label)
    assert holders.split(holder) == ("0" * 32, "")


def test_labels_that_cannot_be_are_refused() -> None:
    for label in ("x" * 121, 7, "\udcff"):
        with pytest.raises(ConfigError, match="label"):
            holders.suffix(label)  # type: ignore[arg-type]


def test_holders_of_others_have_no_label() -> None:
    for holder in ("", "web-1", "web~1", "g" * 32 + "~x", "0" * 32 + "@a~b"):
        assert holders.unlabelled(holder) == (holder, "")
