"""Each thing that must not be in a history is found, and nothing else is."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import ConfigError
from fencepost_lab.history.checks import PROMISES, check
from fencepost_lab.history.format import Line, lines, load

RUN: Line = {"t": 0.0, "ev": "run", "format": 1, "lock": "l", "key": "k", "promises": [*PROMISES]}
BARE: Line = RUN | {"promises": [name for name in PROMISES if name != "inside"]}
"""A run of holders that do not enter, which shortens the histories below."""


def acquired(t: float, who: str, token: int | str, **facts: Any) -> Line:
    return {
        "t": t,
        "ev": "acquired",
        "who": who,
        "token": token,
        "holder": who + "1",
        "ttl": 5,
        "asked": t - 0.1,
        **facts,
    }


def over(t: float, who: str, ev: str = "releasing") -> Line:
    return {"t": t, "ev": ev, "who": who, "token": 0, "holder": who + "1"}


def made(t: float, who: str, token: int | str, seq: int, version: int, **facts: Any) -> Line:
    return {
        "t": t, "ev": "access", "who": who, "do": "write", "token": token, "seq": seq, "holder": who + "1",
        "verdict": "admit", "mark": token, "value": version, "base": version - 1, "version": version, **facts,
    }  # fmt: skip


def entered(t: float, who: str, token: int, seq: int, **facts: Any) -> Line:
    return {
        "t": t, "ev": "access", "who": who, "do": "enter", "token": token, "seq": seq, "holder": who + "1",
        "verdict": "admit", "mark": token, **facts,
    }  # fmt: skip


def judged(t: float, who: str, token: int, seq: int, verdict: str, mark: int | None) -> Line:
    return {
        "t": t, "ev": "access", "who": who, "do": "write", "token": token, "seq": seq, "holder": who + "1",
        "verdict": verdict, "mark": mark, "value": 0, "base": 0,
    }  # fmt: skip


def wrote(t: float, who: str, token: int, seq: int, value: int, outcome: str = "done", **facts: Any) -> Line:
    return {
        "t": t, "ev": "wrote", "who": who, "token": token, "seq": seq, "holder": who + "1", "asked": t - 0.1,
        "value": value, "base": value - 1, "outcome": outcome, "attempts": 1, **facts,
    }  # fmt: skip


def granted(t: float, who: str, token: int, until: float) -> Line:
    return {"t": t, "ev": "granted", "token": token, "holder": who + "1", "until": until}


GOOD = [
    RUN,
    granted(0.9, "A", 1, 6),
    acquired(1, "A", 1, until=5.9),
    entered(1.05, "A", 1, 1),
    made(1.1, "A", 1, 2, 1),
    wrote(1.2, "A", 1, 2, 1),
    made(1.3, "A", 1, 3, 2),
    judged(1.35, "A", 1, 2, "late", 1),
    judged(1.4, "A", 1, 3, "replay", 1),
    wrote(1.5, "A", 1, 3, 2),
    over(5.9, "A", "lost"),
    granted(6.1, "B", 2, 12),
    acquired(6.2, "B", 2, until=11),
    entered(6.25, "B", 2, 1),
    made(6.3, "B", 2, 2, 3),
    wrote(6.4, "B", 2, 2, 3),
    judged(6.5, "A", 1, 4, "stale", 2),
    wrote(6.6, "A", 1, 4, 3, "refused", verdict="stale", seen=2),
    over(7, "B"),
]


def test_a_good_history_passes_and_is_counted() -> None:
    report = check(GOOD)
    assert report.violations == []
    assert report.counts["acquired"] == 2
    assert report.counts["applied"] == 3
    assert report.counts["lost"] == 1
    assert report.counts["write:stale"] == 1
    assert report.counts["overlapping_beliefs"] == 0


def test_beliefs_that_overlap_are_counted() -> None:
    zombie = [RUN, acquired(1, "A", 1), acquired(2, "B", 2), over(3, "A", "lost"), acquired(4, "C", 3)]
    assert check(zombie).counts["overlapping_beliefs"] == 2
    killed = [*zombie[:2], {"t": 1.5, "ev": "fault", "do": "kill", "who": "A"}, *zombie[2:]]
    assert check(killed).counts["overlapping_beliefs"] == 1


BROKEN: dict[str, tuple[str, list[Line]]] = {
    "a token granted twice": ("order", [acquired(1, "A", 1), acquired(1.05, "B", 1)]),
    "a token that came back": ("order", [acquired(1, "A", 5), acquired(2, "B", 4)]),
    "large tokens, compared exactly": ("order", [acquired(1, "A", str(2**62 + 1)), acquired(2, "B", str(2**62))]),
    "deadlines that overlap": ("exclusion", [acquired(1, "A", 1, until=6), acquired(3, "B", 2, until=8)]),
    "a deadline beyond the store's": ("deadline", [granted(0.9, "A", 1, 5.9), acquired(1, "A", 1, until=6)]),
    "a lease that was over when it came": ("deadline", [acquired(7, "A", 1, until=6)]),
    "a lease revived after its deadline": (
        "deadline",
        [acquired(1, "A", 1, until=6), {"t": 7, "ev": "renewed", "who": "A", "token": 1, "holder": "A1", "until": 9}],
    ),
    "a hold ended by others": ("owner", [{"t": 1, "ev": "freed", "token": 1, "holder": "A1", "how": "taken"}]),
    "a grant to one who had left": ("left", [{"t": 1, "ev": "left", "holder": "A1"}, granted(2, "A", 1, 7)]),
    "a holder that does not listen": ("told", [acquired(1, "A", 1), {"t": 2, "ev": "told", "holder": "A1"}]),
    "a gap between versions": ("data", [made(1, "A", 1, 1, 1), made(2, "A", 1, 2, 3)]),
    "a version made twice": ("data", [made(1, "A", 1, 1, 1), made(2, "A", 1, 2, 1)]),
    "an older token after a newer one": ("data", [made(1, "B", 2, 1, 1), made(2, "A", 1, 1, 2)]),
    "a write without a token": ("data", [made(1, "A", 1, 1, 1) | {"token": None}]),
    "a seq that goes back": ("data", [made(1, "A", 1, 2, 1), made(2, "A", 1, 1, 2)]),
    "a write that was made twice": ("data", [made(1, "A", 1, 1, 1), made(2, "A", 1, 1, 2)]),
    "a lost update": ("data", [made(1, "A", 1, 1, 1), made(2, "B", 2, 1, 2, base=0)]),
    "two holders under one token": ("data", [made(1, "A", 1, 1, 1), made(2, "B", 1, 1, 2)]),
    "an acknowledged write that is not there": ("data", [wrote(1, "A", 1, 1, 1)]),
    "an acknowledged write with another value": ("data", [made(1, "A", 1, 1, 1), wrote(1, "A", 1, 1, 7)]),
    "a refused write that is there": (
        "data",
        [
            acquired(1, "A", 1),
            acquired(1.05, "B", 2),
            made(2, "A", 1, 1, 1),
            wrote(3, "A", 1, 1, 1, "refused", verdict="stale", seen=2),
        ],
    ),
    "a refusal for a mark nobody was issued": ("data", [acquired(1, "A", 1), judged(2, "A", 1, 1, "stale", 2)]),
    "a refusal for a mark that came later": (
        "data",
        [acquired(1, "A", 1), judged(2, "A", 1, 1, "stale", 2), acquired(3, "B", 2)],
    ),
    "a stale verdict for an older mark": (
        "data",
        [acquired(1, "A", 1), acquired(2, "B", 2), judged(3, "B", 2, 1, "stale", 1)],
    ),
    "a stale verdict for one's own mark": ("data", [acquired(1, "A", 1), judged(2, "A", 1, 1, "stale", 1)]),
    "a replay of what was never made": ("data", [acquired(1, "A", 1), judged(2, "A", 1, 1, "replay", 1)]),
    "a late write that nothing overtook": (
        "data",
        [acquired(1, "A", 1), made(2, "A", 1, 1, 1), judged(3, "A", 1, 1, "late", 1)],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_must_not_be_is_found(name: str) -> None:
    promise, history = BROKEN[name]
    found = {each.check for each in check([BARE, *history]).violations}
    assert found == {promise}
    others = [each for each in BARE["promises"] if each != promise]
    assert check([BARE, *history], others).ok


def test_a_retried_write_may_be_refused_and_stand() -> None:
    """The first attempt stood, its answer was lost, and the second came after a newer holder."""
    history = [
        BARE,
        acquired(1, "A", 1),
        made(2, "A", 1, 1, 1),
        over(2.5, "A", "lost"),
        acquired(3, "B", 2),
        wrote(4, "A", 1, 1, 1, "refused", verdict="stale", seen=2) | {"attempts": 2},
    ]
    assert check(history).ok


def test_locks_and_keys_are_checked_apart() -> None:
    history = [
        BARE,
        acquired(1, "A", 5, lock="x"),
        acquired(2, "B", 4, lock="y"),
        made(3, "A", 5, 1, 1, key="x"),
        made(4, "B", 4, 1, 1, key="y"),
    ]
    assert check(history).ok


def test_a_history_survives_being_written(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(lines(GOOD))
    assert list(load(path)) == GOOD


@pytest.mark.parametrize("text", ["[]", '{"t": 1}', '{"ev": "run"}', "{", '{"t":1,"ev":2}', '{"t":null,"ev":"note"}'])
def test_what_is_no_line_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(lines([RUN]) + text + "\n")
    with pytest.raises(ConfigError, match=":2 is not a line"):
        list(load(path))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (acquired(1, "A", "x"), "'x'"),
        (acquired(1, "A", 1, asked=None), "asked is null"),
        (over(2, "A") | {"holder": []}, "holder is a text"),
        ({"t": 1.0, "ev": "acquired", "token": 1}, "'who'"),
    ],
)
def test_a_line_that_lacks_what_is_checked_is_named(line: Line, what: str) -> None:
    """A traceback would end a command with 1, which means that a promise was broken."""
    with pytest.raises(ConfigError, match=f"line 2 of the history, '{line['ev']}', cannot be read.*{what}"):
        check([RUN, line])


def test_another_format_is_named() -> None:
    with pytest.raises(ConfigError, match=r"line 1 .* format 2, where this fencepost knows 1"):
        check([RUN | {"format": 2}])


def test_a_promise_that_nobody_knows_is_not_said_to_be_kept() -> None:
    with pytest.raises(ConfigError, match="there is no promise 'exclusions'"):
        check([RUN | {"promises": ["exclusions"]}, *GOOD[1:]])


def test_nothing_is_not_said_to_be_kept_of_an_empty_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.touch()
    done = subprocess.run([sys.executable, "-m", "fencepost", "check", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is empty" in done.stderr


UNTOLD = BARE | {"journal": False}
"""A run whose resource keeps no journal: only what clients were told is known."""


def test_without_a_journal_the_acknowledged_writes_must_agree_among_themselves() -> None:
    leases = [acquired(0.5, "A", 1), acquired(0.6, "B", 2), acquired(0.7, "C", 3)]
    good = [UNTOLD, *leases, wrote(1, "A", 1, 1, 1), wrote(2, "A", 1, 2, 2), wrote(3, "B", 2, 1, 3)]
    report = check(good)
    assert report.ok
    assert (report.counts["applied"], report.counts["lost_updates"]) == (3, 0)
    over_the_same = check([*good, wrote(4, "C", 3, 1, 3)])
    assert [each.what for each in over_the_same.violations] == [
        "B1 and C1 both wrote over version 2 of 'k': one is lost"
    ]
    assert over_the_same.counts["lost_updates"] == 1
    older = check([*good, wrote(4, "A", 1, 3, 4)])
    assert [each.check for each in older.violations] == ["data"]


def test_a_lock_without_tokens_is_held_to_exclusion_alone() -> None:
    def held(t: float, who: str, until: float) -> Line:
        return acquired(t, who, 0, until=until) | {"token": None}

    history = [RUN, held(1, "A", 6), held(3, "B", 8)]
    assert {each.check for each in check(history, ["exclusion"]).violations} == {"exclusion"}
    assert check([RUN, held(1, "A", 2), held(3, "B", 8)], ["exclusion"]).ok


def test_a_refused_read_is_held_to_the_rule_as_a_refused_write_is() -> None:
    def refused(token: int, who: str, seen: int) -> Line:
        return {
            "t": 3, "ev": "read", "who": who, "token": token, "seq": 1, "holder": who + "1", "asked": 2.9,
            "outcome": "refused", "verdict": "stale", "seen": seen, "attempts": 1,
        }  # fmt: skip

    leases = [RUN, acquired(1, "A", 1), over(1.5, "A", "lost"), acquired(2, "B", 2)]
    assert check([*leases, refused(1, "A", 2)]).ok
    for wrong in (refused(1, "A", 7), refused(2, "B", 1)):
        assert {each.check for each in check([*leases, wrong]).violations} == {"data"}, wrong


def only(promise: str, history: list[Line], **head: Any) -> tuple[str, set[str]]:
    """The state of one promise, and the kinds of what broke it."""
    report = check([RUN | {"promises": [promise], **head}, *history])
    return report.states()[promise], {each.kind for each in report.violations}


def test_waiters_that_asked_far_apart_are_served_in_that_order() -> None:
    turns = [acquired(5, "A", 2, asked=1.0), acquired(6, "B", 1, asked=1.5)]
    assert only("turns", turns)[0] == "not checked"
    assert only("turns", turns, race=1.0) == ("kept", set())
    assert only("turns", turns, race=0.1) == ("broken", {"overtaken"})
    stopped = [{"t": 2, "ev": "fault", "do": "pause", "who": "A"}, {"t": 4, "ev": "fault", "do": "resume", "who": "A"}]
    assert only("turns", [*stopped, *turns], race=0.1) == ("kept", set())


def test_shares_exclude_holders_and_each_other_beyond_their_limit() -> None:
    shares = [acquired(1 + n / 10, who, n + 1, until=9, limit=2) for n, who in enumerate("ABC")]
    assert only("exclusion", shares[:2]) == ("kept", set())
    assert only("exclusion", shares) == ("broken", {"overlap"})
    assert only("exclusion", [shares[0], acquired(2, "D", 9, until=8)]) == ("broken", {"overlap"})
    assert only("exclusion", [shares[0], over(1.5, "A"), acquired(2, "D", 9, until=8)]) == ("kept", set())


def test_a_deadline_that_is_moved_back_afterwards_was_counted_on_all_the_same() -> None:
    until = {"ev": "renewed", "who": "a", "token": 1, "holder": "a1", "until": 4.0}
    two = [acquired(1, "a", 1, until=10), acquired(5, "b", 2, until=9)]
    head = RUN | {"promises": ["exclusion"]}
    assert [each.kind for each in check([head, *two, until | {"t": 6.0}]).violations] == ["overlap"]
    moved = [two[0], until | {"t": 2.0}, two[1]]
    assert check([head, *moved]).violations == [], "nobody counted on both"


def test_a_killed_holder_holds_nothing() -> None:
    kill = {"t": 2, "ev": "fault", "do": "kill", "who": "A"}
    leases = [acquired(1, "A", 1, until=9), kill, acquired(3, "B", 2, until=9)]
    assert only("exclusion", leases) == ("kept", set())
    assert only("exclusion", [leases[0], leases[2]]) == ("broken", {"overlap"})


def test_clocks_of_other_rates_are_allowed_for() -> None:
    leases = [acquired(1, "A", 1, until=6.2), acquired(6, "B", 2, until=11)]
    assert only("exclusion", leases) == ("broken", {"overlap"})
    assert only("exclusion", leases, drift=0.05) == ("kept", set())


def test_an_epoch_has_one_leader() -> None:
    def leads(t: float, who: str, token: int, leader: str) -> Line:
        return {"t": t, "ev": "leader", "who": who, "token": token, "leader": leader}

    assert only("epoch", [leads(1, "o", 1, "A"), leads(2, "p", 1, "A"), leads(3, "o", 2, "B")]) == ("kept", set())
    assert only("epoch", [leads(1, "o", 1, "A"), leads(2, "p", 1, "B")]) == ("broken", {"two-leaders"})
    assert only("epoch", [leads(1, "o", 2, "B"), leads(2, "o", 1, "A")]) == ("broken", {"epoch-fell"})


def test_after_the_last_fault_a_lock_that_is_asked_for_is_served() -> None:
    def fault(t: float, do: str) -> Line:
        return {"t": t, "ev": "fault", "do": do, "who": "store"}

    down, up = fault(1, "pause"), fault(5, "resume")
    asks = {"t": 2.0, "ev": "asked", "who": "A"}
    served, late = acquired(7, "A", 1, asked=2.0), acquired(30, "A", 1, asked=2.0)
    assert only("live", [down, asks, up, served]) == ("kept", set())
    assert only("live", [down, asks, up, late]) == ("broken", {"not-served"})
    assert only("live", [down, asks, up, {"t": 30, "ev": "note", "text": ""}]) == ("broken", {"not-served"})
    assert only("live", [down, asks, served])[0] == "not checked", "the fault did not end"
    assert only("live", [down, up])[0] == "not checked", "nobody asked"
    failed = {"t": 31, "ev": "failed", "who": "B", "asked": 30.0, "why": "BackendError"}
    assert only("live", [down, asks, up, served, failed]) == ("broken", {"still-failing"})
    held = acquired(7, "A", 1, asked=2.0, until=60.0)
    waits = [{"t": 8.0, "ev": "asked", "who": "B"}, {"t": 40, "ev": "note", "text": ""}]
    assert only("live", [down, asks, up, held, *waits])[0] == "kept", "it is held all that time"


def test_an_access_that_was_sent_and_not_answered_may_have_been_made() -> None:
    sent = {
        "t": 1.5,
        "ev": "sent",
        "who": "A",
        "do": "write",
        "token": 1,
        "seq": 2,
        "holder": "A1",
        "value": 1,
        "base": 0,
    }
    read = {
        "t": 4, "ev": "read", "who": "B", "token": 2, "seq": 1, "holder": "B1", "asked": 3.5, "value": 1, "version": 1,
    }  # fmt: skip
    history = [acquired(1, "A", 1), acquired(3, "B", 2), read]
    head = {"journal": False, "version": 0}
    assert only("data", history, **head) == ("broken", {"unwritten-read"})
    assert only("data", sorted([sent, *history], key=lambda line: line["t"]), **head) == ("kept", set())


def test_who_was_refused_for_a_mark_proves_that_it_was_there() -> None:
    """B entered without an answer, A was refused for it: then no later write of A's can have been admitted."""
    enters = {"ev": "read", "token": 2, "seq": 1, "who": "B", "holder": "B1", "asked": 1.5, "t": 1.8}
    refused = {"ev": "read", "token": 1, "seq": 1, "who": "A", "holder": "A1", "asked": 2.0, "t": 2.5}
    history = [
        acquired(1, "A", 1),
        acquired(1.2, "B", 2),
        enters | {"outcome": "unknown"},
        refused | {"outcome": "refused", "verdict": "stale", "seen": 2},
    ]
    head = {"journal": False, "version": 0}
    assert only("data", history, **head) == ("kept", set())
    assert "stale-write" in only("data", [*history, wrote(4, "A", 1, 2, 1)], **head)[1]
