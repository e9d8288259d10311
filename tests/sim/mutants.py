"""The rule and the stores, each broken in one place."""

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fencepost import rule
from fencepost.backends.memory import Memory
from fencepost.guards import judgement as decision
from fencepost_lab.sim.stores import Store

RULE = {
    "an equal token passes": ("offer.token > mark.token:\n        return Verdict.ADMIT", ">", ">="),
    "the last token passes too": ("if offer.token < mark.token:", "mark.token:", "mark.token - 1:"),
    "an equal token is stale": ("if offer.token < mark.token:", "<", "<="),
    "holders are not told apart": ("if offer.holder != mark.holder:", "offer.holder != mark.holder", "False"),
    "the holders' comparison is turned round": ("if offer.holder != mark.holder:", "!=", "=="),
    "a replay passes": ("offer.seq > mark.seq:\n        return Verdict.ADMIT", "> mark.seq", ">= mark.seq"),
    "older writes pass": ("offer.seq > mark.seq:\n        return Verdict.ADMIT", "> mark.seq", "< mark.seq"),
    "a replay is late": ("if offer.seq < mark.seq:", "<", "<="),
    "a late write is a replay": ("if offer.seq < mark.seq:", "<", ">"),
    "a newer token leaves the mark": ("or offer.token > mark.token or offer.seq", "offer.token > mark.token or ", ""),
    "a newer write leaves the mark": (
        "offer.token > mark.token or offer.seq > mark.seq:",
        " or offer.seq > mark.seq",
        "",
    ),
}
"""What is broken -> the place in rule.py, and what becomes what there."""


@contextmanager
def broken_rule(name: str) -> Iterator[None]:
    """Let every guard follow a rule with one comparison changed."""
    place, old, new = RULE[name]
    source = inspect.getsource(rule)
    assert source.count(place) == 1, f"rule.py has changed: {place!r} is there {source.count(place)} times"
    assert place.count(old) == 1
    tree = ast.parse(source.replace(place, place.replace(old, new)))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    namespace: dict[str, Any] = dict(vars(rule))
    exec(compile(tree, "mutant", "exec"), namespace)
    with pytest.MonkeyPatch.context() as patch:
        for function in ("judge", "raised"):
            patch.setattr(decision, function, namespace[function])
        yield


async def _memory_release(self: Memory, name: str, holder: str, token: int) -> bool:
    with self._store.gate:
        if name not in self._store.locks:
            return False
        self._store.hand_over(name, self.driver.now())
        return True


def _store_release(self: Store, client: str, name: str, holder: str, token: int | None) -> tuple[Any, ...]:
    if self._live(name) is None:
        return ("not_owner",)
    self._free(name)
    return ("released",)


RELEASE: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "the embedded backend": (Memory, "release", _memory_release),
    "a simulated store": (Store, "on_release", _store_release),
}


@contextmanager
def unconditional_release(where: str) -> Iterator[None]:
    """Let a store free the lock for whoever asks."""
    owner, name, broken = RELEASE[where]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, broken)
        yield
