"""The same question asked another way: is there an order of what clients were told that a model allows?

This is the search of Wing and Gong with Lowe's memory of what was tried (WGL): take one operation after the other that
nothing unfinished precedes, apply it to a model, and go back where the model would have answered otherwise. Its cost
grows with two to the number of operations that overlap, so it is for short histories. It shares no code with
``checks``, and is there to be compared with it: ``tests/lab/test_linear.py``.

There are two models. The *fenced mutex* hands out tokens: each is larger than the one before. The *fenced register*
has a mark and a value with a version: it admits, by the rule, those that have acquired the lock, and a write replaces
exactly the version that its writer read. Both begin at 0.
"""

from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Any, NamedTuple

State = tuple[Hashable, ...]


class Operation(NamedTuple):
    """Something that took effect between two instants, if it did; ``apply`` gives the state after it, or None."""

    begun: float
    ended: float
    apply: Callable[[State], State | None]
    certain: bool = True
    """It did take effect; if not, it may have."""


def linearizable(operations: Iterable[Operation], start: State) -> bool:
    """Whether some order of the operations, none before what had ended when it began, is one that the model allows."""
    todo = sorted(operations, key=lambda each: each.begun)
    certain = sum(1 << index for index, each in enumerate(todo) if each.certain)
    tried: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, start)]
    while stack:
        done, state = stack.pop()
        if done & certain == certain:
            return True
        first = min(each.ended for index, each in enumerate(todo) if each.certain and not done >> index & 1)
        for index, each in enumerate(todo):
            if each.begun > first:
                break
            if done >> index & 1:
                continue
            after = each.apply(state)
            if after is not None and (step := (done | 1 << index, after)) not in tried:
                tried.add(step)
                stack.append(step)
    return False


def judge(history: list[dict[str, Any]]) -> dict[str, bool]:
    """Whether the tokens (order) and the accesses (data) of a history without a journal can be explained."""
    locks: dict[str, list[Operation]] = {}
    leases: dict[tuple[int, str], float] = {}
    held = [line for line in history if line["ev"] == "acquired"]
    for line in held:
        token = int(line["token"])
        leases[token, line["holder"]] = line["t"]
        locks.setdefault(line.get("lock", ""), []).append(Operation(line["asked"], line["t"], _grant(token)))
    issued = {int(line["token"]): line["t"] for line in reversed(held)}
    keys: dict[str, list[Operation]] = {}
    starts = {line.get("key", ""): 0 for line in history}
    waiting: dict[tuple[str, int, str], dict[str, Any]] = {}
    for line in history:
        if line["ev"] == "sent":
            waiting[line.get("key", ""), line["seq"], line["holder"]] = line
        elif line["ev"] in ("read", "wrote"):
            waiting.pop((line.get("key", ""), line["seq"], line["holder"]), None)
            keys.setdefault(line.get("key", ""), []).append(_access(line, leases, issued))
        elif line["ev"] == "end" and "version" in line:
            final = (line["version"], line.get("value"))
            keys.setdefault(line.get("key", ""), []).append(Operation(inf, inf, _ends_as(final)))
    for (key, _, _), line in waiting.items():
        write = line["do"] == "write"
        answer = line | {"ev": "wrote" if write else "read", "outcome": "unknown", "asked": line["t"]}
        keys.setdefault(key, []).append(_access(answer, leases, issued))
    return {
        "order": all(linearizable(each, (0,)) for each in locks.values()),
        "data": all(linearizable(each, (None, starts[key], 0)) for key, each in keys.items()),
    }


def _grant(token: int) -> Callable[[State], State | None]:
    def apply(state: State) -> State | None:
        (last,) = state
        return (token,) if token > last else None  # type: ignore[operator]

    return apply


def _ends_as(final: tuple[int, Any]) -> Callable[[State], State | None]:
    return lambda state: state if state[1:] == final else None


def _access(line: dict[str, Any], leases: dict[tuple[int, str], float], issued: dict[int, float]) -> Operation:
    """A read or a write of the register, whose state is its mark (token, seq, holder), version and value."""
    token, seq, holder = stamp = (int(line["token"]), line["seq"], line["holder"])
    write = line["ev"] == "wrote"
    outcome = line.get("outcome") or "done"
    mine = leases.get((token, holder), inf) <= line["t"]

    def allowed(mark: Any) -> str:
        if mark is None or token > mark[0]:
            return "admit"
        if token < mark[0]:
            return "stale"
        if holder != mark[2]:
            return "clash"
        return "admit" if seq > mark[1] else "late" if seq < mark[1] else "replay"

    def made(state: State) -> State | None:
        mark, version, value = state
        if not mine or allowed(mark) != "admit":
            return None
        if not write:
            return (stamp, version, value) if (version, value) == (line["version"], line["value"]) else None
        return (stamp, version + 1, line["value"]) if version == line["base"] else None  # type: ignore[operator]

    def entered(state: State) -> State | None:
        mark, version, value = state
        return (stamp, version, value) if mine and allowed(mark) == "admit" else None

    def refused(state: State) -> State | None:
        seen, mark = line["seen"], state[0]
        if mark is None or seen is None or issued.get(int(seen), inf) > line["t"]:
            return None
        return state if (allowed(mark), mark[0]) == (line["verdict"], int(seen)) else None  # type: ignore[index]

    begun, ended = line["asked"], line["t"]
    if outcome == "done":
        return Operation(begun, ended, made)
    if outcome == "unknown" or line.get("attempts", 1) > 1:
        # A write that was refused when it was repeated may have been made by its first attempt.
        return Operation(begun, inf, made if write else entered, certain=False)
    return Operation(begun, ended, refused)
