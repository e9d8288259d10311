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
        mutant.applied((ROOT / mutant.file).read_text("utf-8"))
        assert mutant.breaks.endswith("."), mutant.name
        assert mutant.tests, mutant.name
        for tests in mutant.tests:
            path, _, name = shlex.split(tests)[0].partition("::")
            function = name.rpartition("::")[2].partition("[")[0]
            assert (ROOT / path).exists(), tests
            assert not function or f"def {function}(" in (ROOT / path).read_text("utf-8"), tests


@pytest.mark.slow
def test_every_mutant_of_python_is_python(mutate: ModuleType) -> None:
    for mutant in mutate.mutants():
        if mutant.file.endswith(".py"):
            ast.parse(mutant.applied((ROOT / mutant.file).read_text("utf-8")))


def test_the_rule_each_guard_each_script_in_a_server_and_the_core_have_mutants(mutate: ModuleType) -> None:
    mutants = [each for each in mutate.mutants() if each.kind]
    source = ROOT / "src" / "fencepost"
    scripts = [*source.rglob("*.lua"), *source.rglob("*.sql")]
    guards = [each for each in source.glob("guards/**/*.py") if each.name != "__init__.py"]
    core = [source / name for name in ("rule.py", "locks.py", "lease.py", "renewals.py", "election.py")]
    wanted = {str(each.relative_to(ROOT)) for each in (*scripts, *guards, *core)}
    assert wanted - {each.file for each in mutants} == set()
    assert len(mutants) >= 60
    kept = mutate.verdicts()
    assert not {name for name, each in kept.items() if each["outcome"] == "broken"}
    survivors = {name for name, each in kept.items() if each["outcome"] == "survived"}
    assert survivors <= {each.name for each in mutants if each.survives}, "each says why no test can notice it"
