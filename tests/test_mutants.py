"""The faults of scripts/mutate still fit the source, and the tests that should notice them exist."""

from __future__ import annotations

import ast
import shlex
from types import ModuleType

import pytest

from tests import ROOT
from tests.harness.script import script


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    return script("mutate")


def test_every_mutant_can_be_made_and_names_tests_that_exist(mutate: ModuleType) -> None:
    mutants = mutate.mutants()
    assert len({each.name for each in mutants}) == len(mutants) >= 100
    for mutant in mutants:
        changed = mutant.applied((ROOT / mutant.file).read_text("utf-8"))
        if mutant.file.endswith(".py"):
            ast.parse(changed)
        assert mutant.breaks.endswith("."), mutant.name
        assert mutant.tests, mutant.name
        for tests in mutant.tests:
            path, _, name = shlex.split(tests)[0].partition("::")
            function = name.rpartition("::")[2].partition("[")[0]
            assert (ROOT / path).exists(), tests
            assert not function or f"def {function}(" in (ROOT / path).read_text("utf-8"), tests
