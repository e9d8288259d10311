"""``checks`` and the search of ``linear``, which share no code, agree about short histories, sound and spoiled.

    python -m tests.lab.test_linear [--histories 1000] [--from 0]      the figures of many

Each seed makes one run of a few holders of one guarded register, some of them replaced, some of their answers lost,
and in three of four changes something in what was recorded.
"""

import heapq
import sys
from collections import Counter
from random import Random
from typing import Any

import pytest

from fencepost_lab.history.checks import check
from fencepost_lab.history.format import Line
from fencepost_lab.history.linear import Operation, judge, linearizable

SAMPLE = 600


class Run:
    """Holders that read and write one guarded register; each answer says what the rule made of it."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.unique = self.dice.random() < 0.5
        self.mark: tuple[int, int, str] | None = None
        self.version = 0
        self.value: Any = 0
        self.lines: list[Line] = []
        self._events: list[tuple[float, int, Any]] = []
        self._count = 0

    def later(self, t: float, job: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (t, self._count, job))

    def history(self) -> list[Line]:
        t, token = 0.0, 0
        for number in range(self.dice.randint(2, 3)):
            token += self.dice.randint(1, 3)
            asked = t + self.dice.uniform(0, 1)
            got = asked + self.dice.uniform(0.01, 2)
            self.holder(f"h{number}", token, asked, got)
            t = max(t, got) + self.dice.uniform(0, 2)  # some are replaced while they go on
        while self._events:
            now, _, job = heapq.heappop(self._events)
            job(now)
        head: Line = {"t": 0.0, "ev": "run", "promises": ["data", "order"], "journal": False, "version": 0, "value": 0}
        rest = sorted(self.lines, key=lambda line: line["t"])
        end = {"t": rest[-1]["t"], "ev": "end", "version": self.version, "value": self.value}
        return [head, *rest, end]

    def holder(self, name: str, token: int, asked: float, got: float) -> None:
        lease = {"who": name, "token": token, "holder": name}
        self.lines.append({"t": got, "ev": "acquired", **lease, "asked": asked, "ttl": 1})
        steps = ["read", "write"] * self.dice.randint(1, 2)

        def step(now: float, seq: int, known: tuple[int, Any]) -> None:
            if seq > len(steps):
                return
            begun = now + self.dice.uniform(0.01, 0.5)
            does = begun + self.dice.uniform(0.01, 1.5)
            does_write = steps[seq - 1] == "write"
            value = f"{name}.{seq}" if self.unique else known[0] + 1
            self.later(does, lambda at: effect(at, seq, begun, does_write, known, value))

        def effect(at: float, seq: int, begun: float, write: bool, known: tuple[int, Any], value: Any) -> None:
            stamp = (token, seq, name)
            admitted = self.mark is None or stamp[:2] > self.mark[:2]
            if admitted:
                self.mark = stamp
                if write:
                    self.version, self.value = self.version + 1, value
            said = {**lease, "seq": seq, "asked": begun}
            back = at + self.dice.uniform(0.01, 1.0)
            line: Line = {"t": back, "ev": "wrote" if write else "read", **said}
            if write:
                line |= {"value": value, "base": known[0], "attempts": 1}
            fate = self.dice.random()
            if fate < 0.08:  # it was killed before it had an answer
                sent = {"ev": "sent", "do": "write" if write else "read", "value": value, "base": known[0]}
                self.lines.append({"t": begun, **lease, "seq": seq, **sent})
                return
            if fate < 0.16:
                self.lines.append(line | {"outcome": "unknown"})
                return
            if not admitted:
                assert self.mark is not None
                self.lines.append(line | {"outcome": "refused", "verdict": "stale", "seen": self.mark[0]})
                return
            now = (self.version, self.value)
            self.lines.append(line | ({"outcome": "done"} if write else {"version": now[0], "value": now[1]}))
            self.later(back, lambda t: step(t, seq + 1, now))

        self.later(got, lambda t: step(t, 1, (0, 0)))


def spoil(dice: Random, history: list[Line]) -> list[Line]:
    """Change something; what comes out may be legal all the same."""
    head, *rest, end = (dict(line) for line in history)
    accesses = [line for line in rest if line["ev"] in ("read", "wrote")]
    if not accesses:
        return history
    line = dice.choice(accesses)
    done = line.get("outcome", "done") == "done"
    what = dice.randrange(9)
    if what == 0 and "version" in line:
        line["version"] = max(0, line["version"] + dice.choice((-1, 1)))
    elif what == 1 and "value" in line:
        line["value"] = dice.choice(accesses).get("value", 99)
    elif what == 2 and line["ev"] == "wrote":
        line["base"] = max(0, line["base"] + dice.choice((-1, 1)))
    elif what == 3 and line["ev"] == "wrote":
        line |= {"outcome": "refused", "verdict": "stale", "seen": dice.randint(1, 6)} if done else {"outcome": "done"}
    elif what == 4:
        line |= {"token": (other := dice.choice(accesses))["token"], "holder": other["holder"], "seq": line["seq"] + 10}
    elif what == 5:
        rest.remove(line)
    elif what == 6 and not done and "seen" in line:
        line["seen"] = max(1, line["seen"] + dice.choice((-1, 1)))
    elif what == 7:
        by = dice.uniform(0.5, 4)
        line |= {"t": line["t"] + by, "asked": line["asked"] + by}
    elif dice.random() < 0.5:
        end |= {"version": end["version"] - 1} if end["version"] else {"version": 1}
    else:
        lease = dice.choice([each for each in rest if each["ev"] == "acquired"])
        lease["token"] = dice.randint(1, 6)
    rest.sort(key=lambda each: float(each["t"]))
    return [head, *rest, end | {"t": max(end["t"], rest[-1]["t"])}]


def made(seed: int) -> list[Line]:
    history = Run(seed).history()
    dice = Random(f"{seed} spoiled")
    return spoil(dice, history) if seed % 4 else history


def compare(seed: int) -> tuple[dict[str, bool], dict[str, bool]]:
    """What each of the two says."""
    history = made(seed)
    states = check(history).states()
    return {name: state != "broken" for name, state in states.items()}, judge(history)


@pytest.mark.parametrize("batch", range(3))
def test_both_agree(batch: int) -> None:
    each = SAMPLE // 3
    found: Counter[bool] = Counter()
    for seed in range(batch * each, (batch + 1) * each):
        ours, theirs = compare(seed)
        assert ours == theirs, f"seed {seed}: python -m tests.lab.test_linear --from {seed} --histories 1"
        found[all(ours.values())] += 1
        assert seed % 4 or all(ours.values()), f"seed {seed} is sound"
    assert found[True] > 10
    assert found[False] > 10


def test_an_order_is_searched_for_and_not_assumed() -> None:
    def add(number: int, needs: int) -> Operation:
        return Operation(0, 9, lambda state: (*state, number) if len(state) == needs else None)

    assert linearizable([add(1, 2), add(2, 0), add(3, 1)], ())
    assert not linearizable([add(1, 2), add(2, 0), add(3, 0)], ())
    late = Operation(10, 11, lambda state: (*state, 4) if not state else None)
    assert not linearizable([late, add(2, 0)], ()), "it began after the other had ended"
    assert linearizable([late, add(2, 0)._replace(certain=False)], ())


def main(arguments: list[str]) -> int:
    options = dict(zip(arguments[::2], map(int, arguments[1::2]), strict=True))
    first, count = options.get("--from", 0), options.get("--histories", 1000)
    verdicts: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    for seed in range(first, first + count):
        ours, theirs = compare(seed)
        broken = ", ".join(name for name, kept in ours.items() if not kept)
        verdicts[broken or "kept"] += 1
        sizes[sum(line["ev"] in ("read", "wrote", "sent", "acquired") for line in made(seed))] += 1
        if ours != theirs:
            verdicts["DIFFER"] += 1
            print(f"seed {seed}: checks {ours}, search {theirs}")
            if count == 1:
                print(*made(seed), *check(made(seed)).violations, sep="\n")
    print(
        f"{count} histories of {min(sizes)} to {max(sizes)} operations: {verdicts['DIFFER']} differ; {dict(verdicts)}"
    )
    return bool(verdicts["DIFFER"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
