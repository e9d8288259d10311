"""The source uses nothing that Python 3.12 to 3.16 deprecate or remove; a warning shows only where the line runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

NAMES = {
    "asyncio.iscoroutinefunction": "removed in 3.16: inspect.iscoroutinefunction",
    "asyncio.get_event_loop": "raises without a running loop in 3.14: asyncio.get_running_loop",
    "asyncio.get_event_loop_policy": "removed in 3.16: asyncio.Runner(loop_factory=...)",
    "asyncio.set_event_loop_policy": "removed in 3.16: asyncio.Runner(loop_factory=...)",
    "asyncio.DefaultEventLoopPolicy": "removed in 3.16",
    "asyncio.get_child_watcher": "removed in 3.14",
    "asyncio.set_child_watcher": "removed in 3.14",
    "ast.Bytes": "removed in 3.14: ast.Constant",
    "ast.NameConstant": "removed in 3.14: ast.Constant",
    "ast.Num": "removed in 3.14: ast.Constant",
    "ast.Str": "removed in 3.14: ast.Constant",
    "codecs.open": "deprecated in 3.14: open",
    "collections.abc.ByteString": "removed in 3.17: bytes | bytearray | memoryview",
    "datetime.utcnow": "deprecated in 3.12: datetime.now(UTC)",
    "datetime.datetime.utcnow": "deprecated in 3.12: datetime.now(UTC)",
    "datetime.utcfromtimestamp": "deprecated in 3.12: datetime.fromtimestamp(when, UTC)",
    "datetime.datetime.utcfromtimestamp": "deprecated in 3.12: datetime.fromtimestamp(when, UTC)",
    "http.server.CGIHTTPRequestHandler": "removed in 3.15",
    "locale.getdefaultlocale": "removed in 3.15: locale.getlocale",
    "logging.warn": "deprecated: logging.warning",
    "os.popen": "soft-deprecated in 3.14: subprocess",
    "pkgutil.find_loader": "removed in 3.14: importlib.util.find_spec",
    "pkgutil.get_loader": "removed in 3.14: importlib.util.find_spec",
    "platform.java_ver": "removed in 3.15",
    "sqlite3.register_adapter": "the default adapters go; store text or numbers",
    "sqlite3.version": "removed in 3.14: sqlite3.sqlite_version",
    "typing.ByteString": "removed in 3.17",
    "typing.no_type_check_decorator": "removed in 3.15",
    "urllib.request.URLopener": "removed in 3.14: urlopen",
    "multiprocessing.Pool": "the start method differs from 3.14 on: get_context(...).Pool",
    "multiprocessing.Process": "the start method differs from 3.14 on: get_context(...).Process",
    "__package__": "not set any more from 3.15 on: write the package's name",
    "__cached__": "not set any more from 3.15 on",
}
POSITIONAL = {
    # Call -> how many positional arguments it will take.
    "sqlite3.connect": (1, "keyword-only from 3.15"),
    "re.sub": (3, "count and flags are keyword-only from 3.16"),
    "re.subn": (3, "count and flags are keyword-only from 3.16"),
    "re.split": (2, "maxsplit and flags are keyword-only from 3.16"),
    "threading.RLock": (0, "takes no arguments from 3.15"),
}


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an expression; '' for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (rest := dotted(node.value)):
        return f"{rest}.{node.attr}"
    return ""


def complaints(source: str) -> Iterator[str]:
    """Each use of what goes away, as ``line: name: what instead``."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = dotted(node)
            first, _, rest = name.partition(".")
            whole = imported.get(first, first) + (f".{rest}" if rest else "")
            for known in {name, whole} & NAMES.keys():
                yield f"{node.lineno}: {known}: {NAMES[known]}"
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            name = imported.get(name, name)
            if name in POSITIONAL and len(node.args) > POSITIONAL[name][0]:
                yield f"{node.lineno}: {name}: {POSITIONAL[name][1]}"
            keywords = {keyword.arg for keyword in node.keywords}
            if name.endswith("rmtree") and "onerror" in keywords:
                yield f"{node.lineno}: rmtree(onerror=): deprecated in 3.12: onexc"
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if "tarfile" in source and method in {"extract", "extractall"} and "filter" not in keywords:
                yield f"{node.lineno}: {method}: a tar archive is extracted with filter="


def sources() -> Iterator[tuple[str, str]]:
    """Every Python text of the repository: files, scripts, the documents' blocks and the templates of programs."""
    for folder in ("src", "lab", "tests", "bench", "examples", "deploy", "scripts"):
        for path in sorted((ROOT / folder).rglob("*")):
            python = path.suffix == ".py" or (path.parent.name == "scripts" and is_python(path))
            if python and not path.name.endswith("_pb2.py"):
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench" / "README.md"):
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)):
            yield f"{page.relative_to(ROOT)} block {number}", block


def is_python(path: Path) -> bool:
    return path.is_file() and path.read_bytes()[:60].split(b"\n")[0].endswith(b"python3")


@pytest.mark.slow
def test_the_source_uses_nothing_that_goes_away() -> None:
    found = [f"{where}:{each}" for where, source in sources() for each in complaints(source)]
    assert not found, "\n".join(found)


def test_generated_programs_open_sqlite_with_keywords() -> None:
    text = (ROOT / "lab" / "src" / "fencepost_lab" / "advise" / "code.py").read_text("utf-8")
    calls = re.findall(r"sqlite3\.connect\(([^()]*)\)", text)
    assert calls
    assert not [call for call in calls if re.search(r",\s*[^=,]+(,|$)", call)]


@pytest.mark.parametrize(
    "line",
    [
        "import sqlite3; sqlite3.connect(path, 0, isolation_level=None)",
        "from sqlite3 import connect; connect(path, 0)",
        "import asyncio; asyncio.iscoroutinefunction(f)",
        "from asyncio import iscoroutinefunction; iscoroutinefunction(f)",
        "from datetime import datetime; datetime.utcnow()",
        "import re; re.sub('a', 'b', text, 1)",
        "import shutil; shutil.rmtree(path, onerror=print)",
        "import tarfile; tarfile.open(path).extractall(folder)",
        "files(__package__)",
        "import threading; threading.RLock(1)",
    ],
)
def test_it_sees(line: str) -> None:
    assert list(complaints(line))
