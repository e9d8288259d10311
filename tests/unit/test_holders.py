"""What a candidate may tell of itself."""

from typing import Any

import pytest

import fencepost
from fencepost import holders
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
        ("\N{PARTY POPPER}" * 34, "has 408: carry an address"),
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
