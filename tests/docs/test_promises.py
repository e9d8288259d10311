"""What a document promises is shown by the tests that it names."""

import re

import pytest

from tests import ROOT


@pytest.mark.parametrize(
    ("document", "least"), [("security.md", 20), ("failures.md", 70), ("comparison.md", 1), ("operate/capacity.md", 6)]
)
def test_every_test_that_is_named_is_there(document: str, least: int) -> None:
    page = (ROOT / "docs" / document).read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > least
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text("utf-8")]
    assert not missing
