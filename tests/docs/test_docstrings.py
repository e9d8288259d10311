"""Every public name has a docstring, and everything that users call an example that they can copy."""

import ast
import asyncio
import enum
import importlib
import inspect
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import fencepost
import fencepost.guards
import fencepost.once
import fencepost.testing
from docs import pages
from tests.test_public_api import MODULES, names

GIVEN = {
    "fencepost": {"Access", "BaseLease", "Event", "Lease", "Lock", "Locks", "Election", "Term"},
    "fencepost.sync": {"Ended"},
    "fencepost.aio": {"Ended", "Election", "Lease", "Lock", "Locks", "Term"},
    "fencepost.backend": {"Address", "Driver", "Finding", "Grant", "Hold", "Promises", "Signal", "Status"},
    "fencepost.contrib.wsgi": {"Hold"},
    "fencepost.fleet": {"Member", "Partition", "Stop", "View"},
    "fencepost.fleet.aio": {"Partition", "Stop"},
    "fencepost.guards.asgi": {"Fenced"},
    "fencepost.guards.etcd": {"Ticket"},
    "fencepost.guards.redis": {"BlockingRedis", "Done"},
    "fencepost.once": {"Block", "Run"},
    "fencepost.once.aio": {"AsyncBlock"},
    "fencepost.saga": {"Record", "Step", "Task"},
    "fencepost.testing": {"Refusal", "Fault"},
}
"""What users are given and never make themselves: what they can do with it is in its docstring and its methods'."""


def public() -> Iterator[tuple[str, str, object]]:
    """Module, name and value of each public class and function of ours, once, where the reference shows it."""
    seen: set[int] = set()
    for path in pages.API:
        module = importlib.import_module(path)
        for name in names(module):
            value = getattr(module, name)
            ours = getattr(value, "__module__", "").startswith("fencepost")
            if ours and (inspect.isclass(value) or inspect.isroutine(value)) and id(value) not in seen:
                seen.add(id(value))
                yield path, name, value


PUBLIC = list(public())


def called(path: str, name: str, value: object) -> bool:
    """Whether users call it: what is raised, listed or handed to them is looked up instead."""
    if name in GIVEN.get(path, ()):
        return False
    return not (inspect.isclass(value) and issubclass(value, (BaseException, enum.Enum)))


def shown(path: str, name: str, value: object) -> bool:
    """Whether an example uses it: its own, or that of the module, which stands above it on the page."""
    module = importlib.import_module(path)
    if pages.examples(value.__doc__ or ""):
        return True
    return any(re.search(rf"\b{name}\b", each) for each in pages.examples(module.__doc__ or ""))


@pytest.mark.parametrize("path", MODULES)
def test_a_public_module_says_what_it_is_for(path: str) -> None:
    assert (importlib.import_module(path).__doc__ or "").strip()


def test_every_public_name_says_what_it_is() -> None:
    assert len(PUBLIC) > 150
    assert [f"{path}.{name}" for path, name, value in PUBLIC if not (value.__doc__ or "").strip()] == []


def test_every_public_method_says_what_it_does() -> None:
    silent = [
        f"{path}.{name}.{each}"
        for path, name, value in PUBLIC
        if inspect.isclass(value)
        for each, member in vars(value).items()
        if not each.startswith("_") and inspect.isroutine(member) and not inspect.getdoc(getattr(value, each))
    ]
    assert silent == []


def test_whatever_users_call_has_an_example() -> None:
    bare = [
        f"{path}.{name}" for path, name, value in PUBLIC if called(path, name, value) and not shown(path, name, value)
    ]
    assert bare == []


def code_as_prose(doc: str | None) -> list[str]:
    """The paragraphs of a docstring that are code, and are not indented: the page would show them as prose."""
    paragraphs = (part.splitlines() for part in re.split(r"\n\s*\n", inspect.cleandoc(doc or "")))
    return [
        "\n".join(lines)
        for lines in paragraphs
        if lines and not lines[0].startswith(" ") and pages.is_python(lines) and re.search(r"[(=]", "".join(lines))
    ]


def test_every_example_is_set_apart() -> None:
    assert code_as_prose("Hold it.\n\nwith lock:\n    work()\n"), "it is noticed"
    docs = [(path, importlib.import_module(path).__doc__) for path in MODULES]
    for path, name, value in PUBLIC:
        docs.append((f"{path}.{name}", value.__doc__))
        if inspect.isclass(value):
            docs += [(f"{path}.{name}.{each}", member.__doc__) for each, member in vars(value).items()]
    assert [(where, code) for where, doc in docs if (code := code_as_prose(doc))] == []


def test_what_is_given_is_still_there() -> None:
    known = {(path, name) for path, name, _ in PUBLIC}
    assert {(path, name) for path, given in GIVEN.items() for name in given} - known == set()


RUN = [
    "fencepost.connect",
    "fencepost.rule.Stamp",
    "fencepost.rule.judge",
    "fencepost.guards.FileGuard",
    "fencepost.guards.policy.Policy",
    "fencepost.guards.sqlite.admit_all",
    "fencepost.guards.sqlite.ddl",
    "fencepost.guards.sqlite.enter",
    "fencepost.guards.sqlite.fenced",
    "fencepost.guards.sqlite.lower_mark",
    "fencepost.guards.sqlite.mark",
    "fencepost.guards.sqlite.raise_mark",
    "fencepost.guards.column.read",
    "fencepost.guards.column.write",
    "fencepost.once.purge",
    "fencepost.fleet.view",
    "fencepost.hooks.audit.Audit",
    "fencepost.hooks.audit.read",
    "fencepost.hooks.log.Log",
    "fencepost.hooks.otel.Telemetry",
    "fencepost.testing.Clock",
    "fencepost.testing.Locks",
    "fencepost.testing.connect",
    "fencepost.testing.expire",
    "fencepost.testing.lose",
    "fencepost.testing.aio.Locks",
    "fencepost.testing.aio.connect",
    "fencepost.compat.filelock.FileLock",
    "fencepost.compat.filelock.SoftFileLock",
]
"""The examples that need neither a server nor another package, or get by without."""


@pytest.mark.parametrize("whole", RUN)
def test_an_example_runs(whole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, _, name = whole.rpartition(".")
    module = importlib.import_module(path)
    bank = sqlite3.connect("bank.db", isolation_level=None)
    bank.execute(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, lock_epoch INTEGER NOT NULL DEFAULT 0)"
    )
    bank.execute("INSERT INTO account (id, balance) VALUES (42, 100)")
    with closing(bank), fencepost.testing.connect() as locks, ExitStack() as leave:
        there: dict[str, object] = {
            "fencepost": fencepost,
            "locks": locks,
            "lease": locks.acquire("account/42"),
            "other": locks.acquire("account/2"),
            "conn": bank,
            "sqlite": fencepost.guards.sqlite,
            "column": importlib.import_module("fencepost.guards.column"),
            "MemoryGuard": fencepost.guards.MemoryGuard,
            "timedelta": timedelta,
            **{each: getattr(module, each) for each in module.__all__},
        }
        if name in ("connect", "Audit", "Log", "Telemetry"):  # whose URL is that of a server
            there["fencepost"] = _Local(leave)
        if name == "FileGuard":
            monkeypatch.setattr(getattr(module, name), "__init__", _below(tmp_path, getattr(module, name).__init__))
        if name == "read" and path.endswith("audit"):
            (tmp_path / "audit.jsonl").touch()
        if name in ("enter", "admit_all", "read", "write", "raise_mark", "lower_mark") and "guards" in path:
            bank.execute("BEGIN")
        if name == "lower_mark":
            fencepost.guards.sqlite.raise_mark(bank, "account/42", to=2**63 - 1)
        if name == "purge":
            with fencepost.once.once(bank, "before"):
                pass
        found = pages.examples(getattr(module, name).__doc__)
        assert found
        for text in found:
            code = compile(text, whole, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, there)
            if inspect.iscoroutine(result):
                asyncio.run(result)


class _Local:
    """fencepost, but for `connect`, which finds a store in memory behind each URL."""

    def __init__(self, leave: ExitStack) -> None:
        self._leave = leave
        self.testing = fencepost.testing

    def connect(self, url: str, **options: Any) -> fencepost.Locks:
        return self._leave.enter_context(fencepost.connect("memory://", **options))


def _below(folder: Path, init: Callable[..., None]) -> Callable[..., None]:
    return lambda guard, path, **options: init(guard, folder / path.lstrip("/"), **options)
