"""The public face, pinned in a text file: a change to it is a decision, never an accident.

python -m tests.test_public_api --write    # accept the face as it is now
"""

import difflib
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PINNED = Path(__file__).with_name("public_api.txt")
ACCEPT = "python -m tests.test_public_api --write"

MODULES = (
    "fencepost",
    "fencepost.sync",
    "fencepost.aio",
    "fencepost.backend",
    "fencepost.contrib.django",
    "fencepost.contrib.django.operations",
    "fencepost.contrib.django.views",
    "fencepost.contrib.apscheduler",
    "fencepost.contrib.celery",
    "fencepost.compat",
    "fencepost.compat.filelock",
    "fencepost.compat.pottery",
    "fencepost.compat.redis",
    "fencepost.compat.redis.aio",
    "fencepost.compat.redis_lock",
    "fencepost.compat.redlock",
    "fencepost.contrib.alembic",
    "fencepost.contrib.flask",
    "fencepost.contrib.sqlalchemy",
    "fencepost.contrib.sqlalchemy.aio",
    "fencepost.contrib.starlette",
    "fencepost.contrib.wsgi",
    "fencepost.errors",
    "fencepost.events",
    "fencepost.fleet",
    "fencepost.fleet.aio",
    "fencepost.rule",
    "fencepost.hooks.audit",
    "fencepost.hooks.log",
    "fencepost.hooks.otel",
    "fencepost.hooks.prometheus",
    "fencepost.guards",
    "fencepost.guards.asgi",
    "fencepost.guards.column",
    "fencepost.guards.etcd",
    "fencepost.guards.file",
    "fencepost.guards.marks",
    "fencepost.guards.memory",
    "fencepost.guards.policy",
    "fencepost.guards.postgres",
    "fencepost.guards.redis",
    "fencepost.guards.s3",
    "fencepost.guards.sqlite",
    "fencepost.guards.wsgi",
    "fencepost.once",
    "fencepost.once.aio",
    "fencepost.once.asgi",
    "fencepost.once.wsgi",
    "fencepost.saga",
    "fencepost.saga.aio",
    "fencepost.signing",
    "fencepost.testing",
    "fencepost.testing.aio",
)

SPOKEN = {
    "__enter__", "__exit__", "__aenter__", "__aexit__", "__call__", "__bool__",
    "__iter__", "__next__", "__aiter__", "__anext__", "__await__",
}  # fmt: skip
"""The underscored methods that a user calls without naming them: they are part of the face too."""


def public(name: str) -> bool:
    return name in SPOKEN or not name.startswith("_")


def names(module: ModuleType) -> list[str]:
    """What `module` offers: its `__all__`, which every public module must have."""
    return sorted(module.__all__)


def signature(value: object) -> str:
    """The call signature as text, without what differs from run to run or between Python versions."""
    if not callable(value):
        return ""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"(?:typing\.)?Unpack\[(\w+)\]", r"*\1", text)
    text = re.sub(r"<(\w+)\.(\w+): [^>]*>", r"\1.\2", text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z]|timedelta)", "", text)


def members(cls: type) -> Iterator[str]:
    """One line for each public member that `cls` or a base of ours defines."""
    if issubclass(cls, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in cls)
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "fencepost"]
    found = {name for base in ours for name in vars(base) if public(name)}
    found |= {name for base in ours for name in getattr(base, "__annotations__", {}) if public(name)}
    if issubclass(cls, enum.Enum):
        found -= set(cls.__members__)
    for name in sorted(found):
        value = inspect.getattr_static(cls, name, None)
        if isinstance(value, (staticmethod, classmethod)):
            yield f"    {type(value).__name__} {name}{signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"    {'async ' if inspect.iscoroutinefunction(value) else ''}def {name}{signature(value)}"
        else:
            yield f"    {name}"


def called(cls: type) -> str:
    """The signature of a class, unless another package has it: that changes with its version."""
    (owner, *_) = [base for base in cls.__mro__ if {"__init__", "__new__"} & vars(base).keys()]
    home = owner.__module__.partition(".")[0]
    return signature(cls) if home == "fencepost" or home in sys.stdlib_module_names else ""


def describe(name: str, value: object) -> Iterator[str]:
    """The lines that stand for one public name."""
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        own = "" if issubclass(value, enum.Enum) else called(value)
        yield f"  class {name}{f'({bases})' if bases else ''}{f': {own}' if own else ''}"
        yield from members(value)
    elif inspect.ismodule(value):
        yield f"  module {name}"
    elif inspect.isroutine(value):
        yield f"  {'async ' if inspect.iscoroutinefunction(value) else ''}def {name}{signature(value)}"
    else:
        yield f"  {name}: {type(value).__name__}"


def render() -> str:
    """The whole public face as text."""
    lines = [f"# The public face of fencepost. After a change on purpose: {ACCEPT}"]
    for path in MODULES:
        module = importlib.import_module(path)
        lines += ["", path]
        for name in names(module):
            lines += describe(name, getattr(module, name))
    return "\n".join(lines) + "\n"


def test_the_public_face_is_the_pinned_one() -> None:
    pinned = PINNED.read_text("utf-8") if PINNED.exists() else ""
    now = render()
    if now != pinned:
        changes = difflib.unified_diff(pinned.splitlines(), now.splitlines(), "pinned", "now", lineterm="")
        pytest.fail("\n".join([f"the public face changed; if on purpose: {ACCEPT}", *changes]), pytrace=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PINNED.write_text(render(), "utf-8")
        print(f"wrote {PINNED.name}")
    else:
        print(render(), end="")
