"""The bench harness measures what it says it measures."""

import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench import __main__, bench_redis_many, page, profile
from bench.harness import Bench, Fact, Sides, bench, measure, profile_fact, registry, servers_time
from bench.profile import Profile, Sampling, parse, repeat
from fencepost.backend import Hold, Renewal
from fencepost.backends.redis.backend import Redis
from tests.harness.child import Child
from tests.harness.waiting import until

pytestmark = pytest.mark.slow


@dataclass
class Clock:
    """Time that passes only when a side spends it."""

    now: float = 0.0
    calls: list[str] = field(default_factory=list)

    def spend(self, side: str, seconds: float) -> None:
        self.calls.append(side)
        self.now += seconds


@pytest.fixture(autouse=True)
def collections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The collections that were asked for; none is done, for the heap of all tests is large."""
    asked: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: asked.append("collect"))
    for name in ("freeze", "unfreeze"):  # it is frozen, and must stay so: see tests/harness/running.py
        monkeypatch.setattr(gc, name, lambda: None)
    return asked


def registered(clock: Clock, *, aim: float) -> Bench:
    @bench("slow vs fast", aim=aim, iterations=4, rounds=8, bound="it is slow")
    def slow_and_fast() -> Iterator[Sides]:
        clock.calls.append("up")
        yield {"slow": lambda: clock.spend("slow", 0.5), "fast": lambda: clock.spend("fast", 0.25)}
        clock.calls.append("down")

    return registry.pop()


def test_a_ratio_is_against_the_last_side_and_the_aim_is_the_first_sides() -> None:
    clock = Clock()
    slow, fast = measure(
        registered(clock, aim=1.5),
        rounds=8,
        order=random.Random(1),
        clock=lambda: clock.now,
        own=lambda: clock.now * 0.75,
        servers=lambda: clock.now / 4,
    )
    assert (slow.client, slow.servers, slow.bound) == (0.75, 0.25, "it is slow")
    assert (slow.side, slow.seconds, slow.ratio, slow.met) == ("slow", 0.5, 2.0, False)
    assert (fast.side, fast.seconds, fast.ratio, fast.met) == ("fast", 0.25, 1.0, None)


def test_what_the_processes_that_it_started_have_computed_is_counted() -> None:
    before = servers_time()
    with Child.python("-c", "import time\nwhile time.process_time() < 0.3: pass\ninput()") as child:
        until(lambda: servers_time() - before >= 0.25, "it is seen while it runs", watching=[child])
    assert servers_time() >= before + 0.25, "and afterwards"


def test_what_they_have_computed_is_counted_to_less_than_a_tick() -> None:
    before = servers_time()
    with Child.python("-c", "import time\nprint(time.process_time(), flush=True)\ninput()") as child:
        spent = float(child.line()) if Path("/proc/self/schedstat").exists() else 0.0  # else only ticks are known
        until(lambda: servers_time() - before >= spent, "all of it is seen", watching=[child])


def test_neither_the_counting_nor_the_collection_of_the_heap_counts_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def slowly() -> float:
        clock.now += 100
        return 0.0

    monkeypatch.setattr(gc, "collect", slowly)
    slow, _ = measure(
        registered(clock, aim=1.5),
        rounds=2,
        order=random.Random(1),
        clock=lambda: clock.now,
        own=lambda: clock.now,
        servers=slowly,
    )
    assert (slow.seconds, slow.client) == (0.5, 1.0)


def test_sides_are_interleaved_round_by_round_between_setup_and_clean_up(collections: list[str]) -> None:
    clock = Clock()
    measure(registered(clock, aim=2.0), rounds=8, order=random.Random(1), clock=lambda: clock.now)
    assert clock.calls[0] == "up"
    assert clock.calls[-1] == "down"
    calls = clock.calls[1:-1]
    rounds = [calls[start : start + 8] for start in range(0, len(calls), 8)]
    assert len(rounds) == 9, "a warm-up and eight rounds"
    assert all(sorted(each) == ["fast"] * 4 + ["slow"] * 4 for each in rounds)
    assert len({each[0] for each in rounds}) == 2, "the order is drawn anew"
    assert len(collections) == 2 * 9, "each side begins with a collected heap"


@pytest.mark.redis
def test_many_leases_are_measured_while_they_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[int] = []
    renew = Redis.renew

    async def counted(self: Redis, holds: Sequence[Hold]) -> Sequence[Renewal]:
        renewed.append(len(holds))
        return await renew(self, holds)

    monkeypatch.setattr(Redis, "renew", counted)
    cost = bench_redis_many.held.__wrapped__(150, ttl=9.0, window=0.5)
    assert sum(renewed) >= 150
    assert cost.stall > 0
    assert cost.share > 0
    assert cost.closing > 0


def test_the_page_tells_the_ratios_and_which_aim_was_missed(tmp_path: Path) -> None:
    clock = Clock()
    results = measure(
        registered(clock, aim=1.5),
        rounds=8,
        order=random.Random(1),
        clock=lambda: clock.now,
        own=lambda: clock.now / 2,
        servers=lambda: clock.now,
    )
    facts = [
        {"bench": "n", "value": 2, "aim": 2.5, "met": True, "bound": ""},
        {"bench": "m", "value": 3, "aim": 2.5, "met": False, "bound": "the disk"},
    ]
    page.write(tmp_path / "speed.md", "python -m bench x", results, facts)
    text = (tmp_path / "speed.md").read_text()
    assert "`python -m bench x`" in text
    assert "| slow vs fast: slow | 2.00 | 1.5 | 0.50 and 1.00 | it is slow |" in text
    assert "| m | 3 | 2.5 |  | the disk |" in text
    assert "| slow | 2.00 | 2.00 .. 2.00 | 0.50 | 1.00 | at most 1.5: **missed** |" in text
    assert "| fast | 1.00 | 1.00 .. 1.00 | 0.50 | 1.00 |  |" in text
    assert "| n | 2 | at most 2.5: met |" in text
    before = page.read(tmp_path / "speed.json", pytest.fail)
    assert before == {"slow vs fast: slow": 2.0, "slow vs fast: fast": 1.0, "n": 2.0, "m": 3.0}


def test_a_figure_that_got_worse_by_more_than_a_tenth_is_named(tmp_path: Path) -> None:
    before = {"a: ours": 1.0, "a: theirs": 1.0, "counted": 10.0, "gone": 1.0}
    now = [
        {"bench": "a", "side": "ours", "ratio": 1.12},
        {"bench": "a", "side": "theirs", "ratio": 1.0},
        {"bench": "counted", "value": 10.9},
        {"bench": "new", "value": 99.0},
    ]
    assert page.worse(before, now) == ["worse: a: ours is 1.12, and was 1"]
    with pytest.raises(OSError, match="No such file"):
        page.read(tmp_path / "none.json", lambda why: None)


RAW = """\
process 7:"python -m bench; x";<module> (bench/__main__.py);Pool.call (fencepost/backends/redis/pool.py) 30
<module> (bench/__main__.py);Socket._receive (fencepost/pool.py);interruptible (fencepost/driver/interrupts.py) 20
Thread.run (threading.py);Pool.call (fencepost/backends/redis/pool.py) 10
run.<locals>.<lambda> (bench/bench_redis.py) 9
<module> (bench/__main__.py);EpollSelector.select (selectors.py) 8
_find_and_load (<frozen importlib._bootstrap>) 2
Sampling.__enter__ (bench/profile.py);sleep (time.py) 500
Sets the default.

    *legacy_responses=False*.
    And more (redis/client.py) text 1
"""


def test_a_profile_has_the_functions_that_most_samples_were_in() -> None:
    found = parse(RAW, lost=20)
    assert (found.samples, found.lost, found.size) == (79, 21, "79, 21 lost")
    assert found.text == (
        "`fencepost/backends/redis/pool.py: Pool.call` 40 %, `fencepost/pool.py: Socket._receive` 20 %, "
        "`bench/bench_redis.py: run.<locals>.<lambda>` 9 %, `selectors.py: EpollSelector.select` 8 %"
    ), "and what only calls what it is given is counted as its caller"
    assert parse("").text == "not profiled: no sample found Python at work"
    assert parse("").size == ""


def test_a_side_is_profiled_after_its_rounds_and_before_the_clean_up(tmp_path: Path) -> None:
    clock, profiled = Clock(), parse(RAW)

    def sample(turn: Callable[[], object]) -> Profile:
        assert not gc.isenabled(), "as in the rounds"
        clock.calls.append("profile")
        turn()
        return profiled

    slow, fast = measure(
        registered(clock, aim=1.5),
        rounds=2,
        order=random.Random(1),
        clock=lambda: clock.now,
        profiled=lambda result: result.met is False,
        sample=sample,
    )
    assert clock.calls[-6:] == ["profile", "slow", "slow", "slow", "slow", "down"]
    assert gc.isenabled()
    assert (slow.profile, fast.profile) == (profiled, None)
    facts = [{"bench": "m", "value": 3, "aim": 2, "met": False, "bound": "", "profile": Profile(failure="no rights")}]
    page.write(tmp_path / "speed.md", "python -m bench", [slow, fast], facts)
    text = (tmp_path / "speed.md").read_text()
    missed, _, rest = text.partition("## Where the client's time goes")
    assert "| m | 3 | 2 |  | not known |" in missed, "each missed aim has a text"
    assert f"| slow vs fast: slow | 79, 1 lost | {profiled.text} |" in rest
    assert "| m |  | not profiled: no rights |" in rest
    assert "fast: fast |" not in rest
    page.write(tmp_path / "speed.md", "python -m bench", [fast], [])
    assert "Where the client" not in (tmp_path / "speed.md").read_text()


def test_no_figure_goes_from_the_page_because_a_peer_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "speed.json"
    figures.write_text('{"slow vs fast: slow": 2.0, "slow vs another: slow": 2.0, "n": 3}')
    monkeypatch.setattr(__main__, "load", lambda: None)
    monkeypatch.setattr(__main__, "registry", [registered(Clock(), aim=1e-9)])
    monkeypatch.setattr(__main__, "facts", [])
    monkeypatch.setattr("sys.argv", ["bench", "--page", str(tmp_path / "speed.md")])
    before = figures.read_text()
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "['slow vs another: slow', 'n']" in said
    assert "bench/peers.txt" in said
    assert figures.read_text() == before
    assert not (tmp_path / "speed.md").exists()


def test_without_py_spy_there_is_a_page_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "tool", lambda: None)
    monkeypatch.setattr(__main__, "load", lambda: None)
    monkeypatch.setattr(__main__, "registry", [registered(Clock(), aim=1e-9)])
    counted = Fact(name="n", find=lambda: 3, aim=2, quick=lambda: 3, bound="", profile=None)
    monkeypatch.setattr(__main__, "facts", [counted])
    monkeypatch.setattr("sys.argv", ["bench", "--page", str(tmp_path / "speed.md")])
    assert __main__.main() == 0
    text = (tmp_path / "speed.md").read_text()
    assert "| slow vs fast: slow |  | not profiled: py-spy is missing |" in text
    assert "| n |  | not profiled: py-spy is missing |" in text
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["bench", "--profile"])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 2
    assert "py-spy is missing; install it with: make setup" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo; echo 'Error: no rights' >&2; echo >&2; echo 'Caused by:' >&2; exit 1", "Error: no rights"),
        ("exit 3", "py-spy ended with status 3"),
        ("trap '' INT; echo Sampling; exec sleep 60", "py-spy did not end within 0.2 seconds"),
    ],
)
def test_a_py_spy_that_fails_or_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o700)
    monkeypatch.setattr(profile, "tool", lambda: str(fake))
    if "trap" in script:  # the others end by themselves
        monkeypatch.setattr(profile, "_END", 0.2)
    assert repeat(lambda: time.sleep(0.01), seconds=0.05).text == f"not profiled: {why}"


def test_a_fact_is_profiled_in_the_part_that_it_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "tool", lambda: None)
    seen: list[object] = []
    chosen = Fact(name="n", find=lambda: 3, aim=2, quick=lambda: 3, bound="", profile=seen.append)
    assert profile_fact(chosen).text == "not profiled: it did not run"
    assert isinstance(seen[0], Sampling)

    def expired() -> float:
        raise RuntimeError("2 leases expired")

    failing = Fact(name="n", find=expired, aim=2, quick=expired, bound="", profile=None)
    assert profile_fact(failing).text == "not profiled: 2 leases expired"


def test_py_spy_finds_the_function_that_computes() -> None:
    code = "from bench.profile import repeat\ndef busy(): sum(range(9999))\nprint(repeat(busy, 1.0).text)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.startswith(("`<string>: busy` ", "not profiled: Permission")), found


def test_its_help_can_be_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--help"])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 0
    assert "more than 10 percent worse" in " ".join(capsys.readouterr().out.split())
