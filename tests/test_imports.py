"""Who may import whom: the arrows of the design, read from the source without running it."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.child import Child

ROOT = Path(__file__).parent.parent
PACKAGES = {"fencepost": ROOT / "src" / "fencepost", "fencepost_lab": ROOT / "lab" / "src" / "fencepost_lab"}

FACTS = {"rule", "errors", "check", "logs"}
LOWER = FACTS | {"lease", "events", "address", "driver", "credentials", "ambient", "signing", "holders"}
CORE = LOWER | {"backend", "registry", "locks", "renewals"}
FACES = CORE | {"sync", "aio"}
LIBRARY = {"*"}
"""Every module of the library, but not the insides of a backend (see KNOWN_REACHES)."""

ARROWS: dict[str, set[str]] = {
    "rule": set(),
    "logs": set(),
    "errors": {"rule"},
    "check": {"rule", "errors"},
    "lease": FACTS | {"driver"},
    "events": FACTS,
    "driver": FACTS | {"driver"},
    "ambient": FACTS | {"lease"},
    "holders": FACTS,
    "naming": FACTS,
    "signing": FACTS | {"lease"},
    "address": FACTS,
    "credentials": FACTS | {"driver"},
    "clients": LOWER | {"clients"},
    "backend": LOWER,
    "registry": LOWER | {"backend", "clients"},
    "backends": LOWER | {"backend", "sql", "backends"},
    "sql": LOWER | {"sql"},
    "guards": LOWER | {"sql", "guards"},
    "saga": FACES | {"sql", "guards", "once", "saga"},
    "once": LOWER | {"sql", "guards", "once"},
    "hooks": LOWER | {"hooks"},
    "compat": LOWER | {"hooks", "backends", "compat"},
    "renewals": LOWER | {"backend"},
    "locks": LOWER | {"backend", "registry", "renewals"},
    "election": CORE,
    "sync": CORE | {"election", "naming", "clients.kinds"},
    "aio": CORE | {"election", "naming", "clients.kinds"},
    "": FACES,
    "fleet": FACES | {"fleet"},
    "contrib": LIBRARY,
    "testing": FACES | {"testing"},
    "__main__": {"cli"},
    "resource": LIBRARY,
    "cli": LIBRARY,
    "lab": LIBRARY | {"lab"},
}
"""Module prefix below `fencepost` -> the prefixes it may import; "" is the package's own face, `lab` is fencepost_lab.

`backend` is the contract, `backends` are its implementations: the core knows only the former. The longest
matching prefix decides, so a single module of a package can have a row of its own.
"""

KNOWN_CYCLES: set[frozenset[str]] = set()
"""Modules that import each other, also indirectly. This list may only shrink."""

KNOWN_REACHES: set[tuple[str, str]] = {
    ("lab.gen.etcd", "backends.etcd.keys"),
    ("lab.gen.etcd", "backends.etcd.rpc"),
    ("lab.gen.etcd", "backends.etcd.methods"),
    ("lab.gen.etcd", "backends.etcd.messages"),
    ("lab.gen.redis", "backends.redis.connection"),
    ("lab.gen.redis", "backends.redis.pool"),
    ("lab.gen.redis", "backends.redis.scripts"),
    ("lab.gen.redis", "backends.redis.address"),
    ("lab.experiments.minting", "backends.redis.connection"),
    ("lab.experiments.minting", "backends.redis.pool"),
    ("lab.experiments.minting", "backends.redis.scripts"),
    ("resource.ledger_postgres", "backends.postgres.connection"),
    ("compat.minting", "backends.redis.scripts"),  # its keys and its scripts, through the user's own client
    ("lab.sim.backends", "backends.memory"),
    ("lab.sim.service", "backends.memory"),
}
"""Modules outside `backends` that import a backend's own modules. This list may only shrink."""


def covers(prefix: str, module: str) -> bool:
    """Does `prefix` name `module` or a package around it? "" names only the package's own face."""
    return module == prefix or (prefix != "" and module.startswith(prefix + "."))


def row(module: str) -> str | None:
    """The row of ARROWS that speaks for `module`, or None when the table forgot it."""
    return max((prefix for prefix in ARROWS if covers(prefix, module)), key=len, default=None)


def short(absolute: str) -> str | None:
    """A module's name as this page writes it; None if it is not one of ours."""
    first, _, rest = absolute.partition(".")
    if first == "fencepost":
        return rest
    return f"lab.{rest}".removesuffix(".") if first == "fencepost_lab" else None


def modules() -> dict[str, Path]:
    """Every module of both distributions."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = short(".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)]))
            assert name is not None
            found[name] = path
    return found


@functools.cache
def import_statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(module: str, source: str, *, is_package: bool, known: set[str]) -> Iterator[tuple[int, str]]:
    """The (line, module) pairs of ours that `source` imports, also inside functions and `if`s."""
    path = module.split(".") if module else []
    here = ["fencepost_lab", *path[1:]] if path[:1] == ["lab"] else ["fencepost", *path]
    package = here if is_package else here[:-1]
    for node in import_statements(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (target := short(alias.name)) is not None:
                    yield node.lineno, target
        else:
            base = node.module or ""
            if node.level:
                around = package[: len(package) - (node.level - 1)]
                base = ".".join([*around, *filter(None, [node.module])])
            if (start := short(base)) is None:
                continue
            for alias in node.names:
                deeper = f"{start}.{alias.name}" if start else alias.name
                yield node.lineno, deeper if deeper in known else start


def allows(allowed: set[str], target: str) -> bool:
    """Does a row of ARROWS allow this target?"""
    if "*" in allowed and not covers("lab", target):
        return True
    return any(covers(prefix, target) for prefix in allowed)


def wrong_arrows(module: str, source: str, *, is_package: bool, known: set[str]) -> list[str]:
    """One sentence for each import of `source` that ARROWS does not allow."""
    prefix = row(module)
    allowed = ARROWS[prefix] if prefix is not None else set()
    where = f"fencepost/{module.replace('.', '/') or '__init__'}"
    targets = dict.fromkeys(imported(module, source, is_package=is_package, known=known))
    return [
        f"{where}:{line} imports {f'fencepost.{target}' if target else 'fencepost'}"
        for line, target in targets
        if not allows(allowed, target)
    ]


def graph(every: dict[str, Path]) -> dict[str, set[str]]:
    """What each module imports, at any place: at the top, inside functions, and for types only."""
    return {
        module: {
            target
            for _, target in imported(
                module, path.read_text("utf-8"), is_package=path.name == "__init__.py", known=set(every)
            )
            if target != module
        }
        for module, path in every.items()
    }


def cycles(arrows: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of nodes that reach each other (Tarjan's strongly connected components of two or more)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for target in sorted(arrows.get(node, ())):
            if target not in index:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], index[target])
        if lowest[node] == index[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.add(frozenset(component))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def rooms(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same graph between top-level modules and packages."""
    found: dict[str, set[str]] = {}
    for module, targets in arrows.items():
        found.setdefault(room(module), set()).update({room(target) for target in targets} - {room(module)})
    return found


def room(module: str) -> str:
    """The top-level module or package around a module; the laboratory's packages are rooms of their own."""
    return ".".join(module.split(".")[: 2 if module.startswith("lab.") else 1])


def test_no_module_imports_itself_through_others() -> None:
    found = cycles(graph(modules()))
    assert found - KNOWN_CYCLES == set(), "new cycles"
    assert KNOWN_CYCLES - found == set(), "these cycles are gone: remove them from KNOWN_CYCLES"


def test_no_package_imports_itself_through_others() -> None:
    assert cycles(rooms(graph(modules()))) == set()


def test_only_backends_know_the_insides_of_a_backend() -> None:
    found = {
        (module, target)
        for module, targets in graph(modules()).items()
        for target in targets
        if target.startswith("backends.") and not module.startswith("backends.")
    }
    assert found - KNOWN_REACHES == set(), "new reaches into a backend"
    assert KNOWN_REACHES - found == set(), "these are gone: remove them from KNOWN_REACHES"


def test_one_arrow_turned_around_is_a_cycle() -> None:
    arrows = graph(modules())
    before = cycles(arrows)
    arrows["errors"] = arrows["errors"] | {"locks"}
    (new,) = cycles(arrows) - before
    assert {"errors", "locks"} <= new


def test_the_table_speaks_for_every_module() -> None:
    forgotten = [name for name in modules() if row(name) is None]
    assert not forgotten, f"add a row to ARROWS for: {forgotten}"


def test_every_import_follows_an_arrow() -> None:
    every = modules()
    assert every, f"no module found below {PACKAGES}"
    wrong = [
        sentence
        for name, path in every.items()
        for sentence in wrong_arrows(
            name, path.read_text("utf-8"), is_package=path.name == "__init__.py", known=set(every)
        )
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rule", "import fencepost.errors"),
        ("rule", "from . import errors"),
        ("errors", "from fencepost import locks"),
        ("lease", "def later():\n    from fencepost.locks import acquire"),
        ("locks", "from .backends.memory import Memory"),
        ("locks", "from .backends import memory"),
        ("registry", "from fencepost.backends import sqlite"),
        ("backends.memory", "from fencepost import guards"),
        ("backends.memory", "from ..guards import memory"),
        ("backends.memory", "from ..locks import acquire"),
        ("backends.memory", "import fencepost"),
        ("guards.sqlite", "if TYPE_CHECKING:\n    from fencepost.backends.sqlite.backend import Sqlite"),
        ("sync", "from fencepost.aio import connect"),
        ("cli.run", "from fencepost_lab.stage import worker"),
        ("locks", "import fencepost_lab"),
        ("hooks.prometheus", "from fencepost.cli import main"),
    ],
)
def test_a_wrong_arrow_is_found(module: str, source: str) -> None:
    known = {
        "rule",
        "errors",
        "locks",
        "aio",
        "cli",
        "backends",
        "backends.memory",
        "guards",
        "guards.memory",
    }
    assert wrong_arrows(module, source, is_package=False, known=known)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "from .rule import Verdict"),
        ("locks", "from fencepost import errors\nimport fencepost.lease as lease"),
        ("backends.sqlite.backend", "from ..backend import Backend\nfrom .queue import Queue\nimport sqlite3"),
        ("lab.cli.demo", "import fencepost\nfrom fencepost_lab.stage import worker"),
        ("locks", "from fencepostlike import backends\nimport asyncio"),
    ],
)
def test_a_right_arrow_is_left_alone(module: str, source: str) -> None:
    known = {"rule", "errors", "lease", "backend", "backends", "backends.queue"}
    assert wrong_arrows(module, source, is_package=False, known=known) == []


def test_importing_fencepost_loads_neither_a_third_party_package_nor_a_backend_nor_what_only_some_need() -> None:
    program = (
        "import json, sys; before = set(sys.modules); import fencepost; first = set(sys.modules) - before; "
        "fencepost.connect('redis://localhost'); print(json.dumps([sorted(first), sorted(sys.modules)]))"
    )
    with Child.python("-c", program) as child:
        loaded, connected = child.json()
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"fencepost"}
    assert not foreign
    assert not [name for name in loaded if name.startswith(("fencepost.backends", "fencepost.guards"))]
    assert not {"asyncio", "logging", "urllib.parse", "ssl"} & set(loaded)
    assert "logging" in connected, "a first import may fail at the moment when something is to be logged"
    assert not {"asyncio", "ssl", "importlib.resources"} & set(connected), "a blocking program without TLS needs none"
