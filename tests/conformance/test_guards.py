"""What every guard promises, asked of every guard."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.check import AHEAD
from fencepost.errors import (
    ConfigError,
    LateWrite,
    Refused,
    ReplayMismatch,
    StaleToken,
    TokenClash,
    TokenLeap,
)
from fencepost.guards.policy import Policy
from fencepost.lease import BaseLease, Fence, entering_stamp
from fencepost.rule import MAX_TOKEN, Stamp, Verdict, judge, raised
from tests.conformance.guards import GUARDS, Guarded, Row
from tests.harness.leases import lease as lease_of

_serial = itertools.count()


@pytest.fixture(scope="module", params=GUARDS)
def row(request: pytest.FixtureRequest) -> Row:
    return GUARDS[request.param]


@pytest.fixture(scope="module")
def guard(row: Row, request: pytest.FixtureRequest) -> Iterator[Guarded]:
    with ExitStack() as stack:
        yield row.open(row.place(request.getfixturevalue, stack), stack, None)


@pytest.fixture(scope="module")
def unlimited(row: Row, request: pytest.FixtureRequest) -> Iterator[Guarded]:
    """The same, for tokens that no issuer has come to yet."""
    with ExitStack() as stack:
        yield row.open(row.place(request.getfixturevalue, stack), stack, Policy(ceiling="off"))


@pytest.fixture
def thing() -> str:
    """A resource nobody has touched yet."""
    return fresh()


def fresh() -> str:
    return f"thing/{next(_serial)}"


def lease(token: int, holder: str = "ann") -> BaseLease:
    return lease_of("lock", holder, token)


def at_once(count: int, call: Callable[[int], object]) -> list[object]:
    """The outcomes of `count` calls that start together, each in a thread: what it returned or raised."""
    barrier = threading.Barrier(count)

    def one(number: int) -> object:
        barrier.wait()
        try:
            return call(number)
        except Refused as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_a_new_resource_is_empty_and_unmarked(guard: Guarded, thing: str) -> None:
    assert guard.peek(thing) == (None, None)


def test_a_lease_writes_again_and_again_in_order(guard: Guarded, thing: str) -> None:
    held = lease(5)
    for number in range(5):
        assert guard.write(thing, b"%d" % number, held) is True
    assert guard.peek(thing) == (b"4", 5)


def test_a_stale_holder_is_refused_and_changes_nothing(guard: Guarded, thing: str) -> None:
    old, new = lease(5, "old"), lease(6, "new")
    guard.write(thing, b"first", old)
    guard.write(thing, b"second", new)
    with pytest.raises(StaleToken) as caught:
        guard.write(thing, b"zombie", old)
    assert (caught.value.token, caught.value.seen) == (5, 6)
    with pytest.raises(StaleToken):
        guard.read(thing, old)
    assert guard.peek(thing) == (b"second", 6)
    assert guard.write(thing, b"third", new)


def test_a_write_that_was_overtaken_is_late(guard: Guarded, thing: str) -> None:
    guard.write(thing, b"2", Stamp(5, 2, "ann"))
    with pytest.raises(LateWrite):
        guard.write(thing, b"1", Stamp(5, 1, "ann"))
    assert guard.peek(thing) == (b"2", 5)


def test_two_holders_of_one_token_clash(guard: Guarded, thing: str) -> None:
    guard.write(thing, b"ann", Stamp(5, 1, "ann"))
    for offer in (Stamp(5, 1, "bob"), Stamp(5, 2, "bob")):
        with pytest.raises(TokenClash):
            guard.write(thing, b"bob", offer)
    with pytest.raises(TokenClash):
        guard.read(thing, Stamp(5, 1, "bob"))
    assert guard.peek(thing) == (b"ann", 5)


def test_the_same_write_again_is_answered_as_done(guard: Guarded, thing: str) -> None:
    offer = Stamp(5, 3, "ann")
    assert guard.write(thing, b"once", offer) is True
    assert guard.write(thing, b"once", offer) is False
    assert guard.read(thing, offer) == b"once"
    assert guard.write(thing, b"once", offer) is False, "entering leaves the mark and what it knows"


def test_another_write_under_the_same_stamp_is_refused(guard: Guarded, thing: str) -> None:
    guard.write(thing, b"once", Stamp(5, 3, "ann"))
    for other in (b"other", b""):
        with pytest.raises(ReplayMismatch):
            guard.write(thing, other, Stamp(5, 3, "ann"))
    assert guard.peek(thing) == (b"once", 5)


def test_a_replay_after_a_newer_holder_is_stale(guard: Guarded, thing: str) -> None:
    guard.write(thing, b"old", Stamp(5, 1, "ann"))
    guard.write(thing, b"new", Stamp(6, 1, "bob"))
    with pytest.raises(StaleToken):
        guard.write(thing, b"old", Stamp(5, 1, "ann"))
    assert guard.peek(thing) == (b"new", 6)


def test_a_bare_token_stands_for_one_write(guard: Guarded, thing: str) -> None:
    assert guard.write(thing, b"a", 5)
    for token in (5, 4):
        with pytest.raises(StaleToken):
            guard.write(thing, b"a", token)
    assert guard.write(thing, b"b", 6)
    assert guard.peek(thing) == (b"b", 6)


def test_a_bare_token_enters_and_then_writes_once(guard: Guarded, thing: str) -> None:
    assert guard.read(thing, 5) is None
    assert guard.write(thing, b"a", 5)
    with pytest.raises(StaleToken):
        guard.write(thing, b"b", 5)


def test_entering_an_unknown_resource_already_keeps_older_holders_out(guard: Guarded, thing: str) -> None:
    assert guard.read(thing, lease(6)) is None
    assert guard.peek(thing) == (None, 6)
    with pytest.raises(StaleToken):
        guard.write(thing, b"zombie", lease(5))
    assert guard.peek(thing) == (None, 6)


def test_entering_before_reading_closes_the_lost_update(guard: Guarded) -> None:
    def race(thing: str, read: Callable[[str, BaseLease], bytes | None]) -> bytes | None:
        zombie, holder = lease(1, "zombie"), lease(2, "holder")
        guard.write(thing, b"", zombie)
        before = read(thing, holder) or b""
        try:
            guard.write(thing, b"[zombie's]", zombie)
        except StaleToken:
            refused.append(thing)
        guard.write(thing, before + b"[holder's]", holder)
        return guard.peek(thing)[0]

    refused: list[str] = []
    unguarded, entering = fresh(), fresh()
    assert race(unguarded, lambda thing, _: guard.peek(thing)[0]) == b"[holder's]"
    assert refused == [], "the zombie's write was accepted, and is gone"
    assert race(entering, guard.read) == b"[holder's]"
    assert refused == [entering]


def test_a_token_that_no_issuer_can_have_come_to_is_refused(guard: Guarded, thing: str) -> None:
    now = time.time_ns() // 1000
    for offer in (MAX_TOKEN, Stamp(now + 2 * AHEAD, 1, "mallory"), lease(2**53)):
        with pytest.raises(TokenLeap):
            guard.write(thing, b"x", offer)
        with pytest.raises(TokenLeap):
            guard.read(thing, offer)
    assert guard.peek(thing) == (None, None), "nobody is locked out"
    assert guard.write(thing, b"clock", now)
    with pytest.raises(TokenLeap):
        guard.read(thing, now + 2 * AHEAD)
    assert guard.write(thing, b"a little ahead", now + AHEAD // 2)


def test_neighbouring_tokens_are_told_apart(unlimited: Guarded) -> None:
    guard = unlimited
    for token in (2**53 - 1, 2**53, 2**53 + 1, 2**62, MAX_TOKEN):
        thing = fresh()
        guard.write(thing, b"below", Stamp(token - 1, 1, "a"))
        guard.write(thing, b"at", Stamp(token, 1, "b"))
        with pytest.raises(StaleToken) as caught:
            guard.write(thing, b"zombie", Stamp(token - 1, 2, "a"))
        assert caught.value.seen == token
        assert guard.peek(thing) == (b"at", token)


def test_neighbouring_seqs_are_told_apart(guard: Guarded) -> None:
    for seq in (2**53, 2**53 + 1, MAX_TOKEN):
        thing = fresh()
        guard.write(thing, b"below", Stamp(5, seq - 1, "a"))
        guard.write(thing, b"at", Stamp(5, seq, "a"))
        with pytest.raises(LateWrite):
            guard.write(thing, b"below", Stamp(5, seq - 1, "a"))
        assert guard.peek(thing) == (b"at", 5), f"at {seq}"


NO_STAMPS = [
    Stamp(0, 1, "ann"),
    Stamp(-1, 1, "ann"),
    Stamp(MAX_TOKEN + 1, 1, "ann"),
    Stamp(5, 0, "ann"),
    Stamp(5, -1, "ann"),
    Stamp(5, MAX_TOKEN + 1, "ann"),
    Stamp(5, 2, ""),
    Stamp(5, 1, "x" * 600),
]


def test_what_cannot_stamp_a_write_is_refused(guard: Guarded, thing: str) -> None:
    for offer in NO_STAMPS:
        assert refuses(guard, thing, offer), f"it took {offer}"
    assert guard.peek(thing) == (None, None)


def test_a_name_that_cannot_be_one_is_refused(guard: Guarded) -> None:
    for name in ("", "a\0b", "a\nb", "x" * 10_000, "\x7f"):
        assert refuses(guard, name, 5), f"it took {name[:9]!r}"


def refuses(guard: Guarded, name: str, offer: Fence) -> bool:
    """Whether a write is refused for what it says itself."""
    try:
        guard.write(name, b"x", offer)
    except ConfigError:
        return True
    return False


def test_no_two_names_meet(guard: Guarded) -> None:
    base = fresh()
    names = [
        base + tail
        for tail in ("", "/", "/a", "//a", "%2Fa", "%252Fa", "/../a", "/./a", "/A", "/\u00e4", "/a\u0308",
                     "?a", "#a", ";a", " a", "+a", "{a}", "\U0001f512", "'; --", "\\a")
    ]  # fmt: skip
    for number, name in enumerate(names, 1):
        guard.write(name, name.encode(), number)
    assert [guard.peek(name) for name in names] == [(name.encode(), n) for n, name in enumerate(names, 1)]


def test_on_first_use_by_many_at_once_one_wins_and_the_others_clash(guard: Guarded) -> None:
    for _ in range(5):
        thing = fresh()
        outcomes = at_once(8, lambda n, thing=thing: guard.write(thing, b"%d" % n, Stamp(7, 1, f"h{n}")))  # type: ignore[misc]
        won = [n for n, outcome in enumerate(outcomes) if outcome is True]
        assert len(won) == 1
        assert sum(isinstance(outcome, TokenClash) for outcome in outcomes) == 7
        assert guard.peek(thing) == (b"%d" % won[0], 7)


def test_threads_that_share_a_lease_are_all_admitted(guard: Guarded, row: Row, thing: str) -> None:
    held = lease(5)
    outcomes = at_once(6, lambda n: [guard.write(thing, b"%d" % n, held) for _ in range(5)])
    late = [outcome for outcome in outcomes if isinstance(outcome, LateWrite)]
    assert [outcome for outcome in outcomes if outcome not in late] == [[True] * 5] * (6 - len(late))
    assert not (late and row.ordered)


def test_reading_again_makes_an_unanswered_write_late(guard: Guarded, thing: str) -> None:
    """A holder that got no answer reads again and goes on: what was under way must not come in between."""
    held = lease(5)
    guard.write(thing, b"10", held)
    unanswered = held.access(thing)  # 10 + 1, still under way
    assert guard.read(thing, held) == b"10"
    with pytest.raises(LateWrite):
        guard.write(thing, b"11", unanswered)
    assert guard.write(thing, b"15", held)  # 10 + 5
    with pytest.raises(LateWrite):
        guard.write(thing, b"11", unanswered)
    assert guard.peek(thing) == (b"15", 5)


def test_a_write_that_was_made_without_an_answer_is_read_again(guard: Guarded, thing: str) -> None:
    held = lease(5)
    unanswered = held.access(thing)
    assert guard.write(thing, b"11", unanswered)
    assert guard.read(thing, held) == b"11"
    assert guard.write(thing, b"16", held)
    assert guard.peek(thing) == (b"16", 5)


def test_an_enter_may_be_repeated_until_a_later_access(guard: Guarded, thing: str) -> None:
    held = lease(5)
    guard.write(thing, b"old", 4)
    entered = held.access(thing)
    assert [guard.read(thing, entered) for _ in range(3)] == [b"old"] * 3
    with pytest.raises(ReplayMismatch):
        guard.write(thing, b"old", entered)  # its stamp was taken by the enter
    guard.write(thing, b"new", held)
    with pytest.raises(LateWrite):
        guard.read(thing, entered)
    assert guard.peek(thing) == (b"new", 5)


def test_threads_that_share_a_lease_read_and_write_at_once(guard: Guarded, row: Row, thing: str) -> None:
    held = lease(5)
    guard.write(thing, b"x", held)
    outcomes = at_once(
        6, lambda n: [guard.read(thing, held) if n % 2 else guard.write(thing, b"x", held) for _ in range(5)]
    )
    late = [outcome for outcome in outcomes if isinstance(outcome, LateWrite)]
    for number, outcome in enumerate(outcomes):
        assert outcome in late or outcome == [b"x" if number % 2 else True] * 5
    assert not (late and row.ordered)


def test_a_write_sent_many_times_at_once_is_made_once(guard: Guarded, thing: str) -> None:
    outcomes = at_once(8, lambda _: guard.write(thing, b"same", Stamp(7, 1, "ann")))
    assert sorted(outcomes, key=str) == [False] * 7 + [True]


def test_admitted_tokens_never_go_backwards_whatever_the_interleaving(guard: Guarded, thing: str) -> None:
    seen: list[int] = []
    refusals: list[tuple[int, int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            value, mark = guard.peek(thing)
            assert value is None or int(value) <= (mark or 0)
            seen.append(int(value or 0))

    def holder(number: int) -> list[int]:
        admitted = []
        for round in range(25):
            token = 1 + number + 6 * round
            try:
                guard.write(thing, b"%d" % token, Stamp(token, 1, f"h{number}"))
                admitted.append(token)
            except StaleToken as error:
                refusals.append((token, error.seen or 0))
        return admitted

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            outcomes = at_once(6, holder)
        finally:
            stop.set()
        watching.result()
    assert seen == sorted(seen)
    assert all(token < newer for token, newer in refusals)
    assert all(isinstance(admitted, list) and admitted == sorted(admitted) for admitted in outcomes)
    assert guard.peek(thing) == (b"150", 150)


tokens = st.sampled_from([1, 2, 3, 2**53 - 1, 2**53, 2**53 + 1, MAX_TOKEN - 1, MAX_TOKEN])
stamps = st.one_of(
    tokens.map(Stamp),
    st.builds(Stamp, tokens, st.sampled_from([1, 2, 3, MAX_TOKEN]), st.sampled_from(["ann", "bob"])),
)
accesses = st.tuples(st.sampled_from(["write", "write", "enter"]), stamps, st.sampled_from([b"x", b"y"]))


def modelled(mark: Stamp | None, offer: Stamp, *, same: bool) -> str:
    verdict = judge(mark, offer)
    return "done" if verdict is Verdict.REPLAY and same else verdict.value


@pytest.mark.slow
def test_every_guard_says_what_the_rule_says(unlimited: Guarded, row: Row) -> None:
    @settings(max_examples=row.examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(history=st.lists(accesses, min_size=1, max_size=12))
    def compare(history: list[tuple[str, Stamp, bytes]]) -> None:
        follow(unlimited, history)

    compare()


def follow(guard: Guarded, history: list[tuple[str, Stamp, bytes]]) -> None:
    """Make the accesses of ``history`` one after the other, and hold the guard to the rule at each."""
    thing = fresh()
    mark: Stamp | None = None
    value: bytes | None = None
    written: Stamp | None = None
    for action, stamp, data in history:
        offer = stamp if action == "write" else entering_stamp(stamp)
        expected = modelled(mark, offer, same=data == value and written == mark)
        if action != "write" and expected in ("replay", "done"):
            expected = "admit"  # an enter may be repeated
        try:
            if action == "write":
                said = "admit" if guard.write(thing, data, stamp) else "done"
            else:
                assert guard.read(thing, stamp) == value
                said = "admit"
        except Refused as error:
            said = error.verdict.value
        assert said == expected
        if expected == "admit":
            mark = raised(mark, offer)
            if action == "write":
                value, written = data, mark
        assert guard.peek(thing) == (value, mark.token if mark else None)
