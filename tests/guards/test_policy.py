"""The steps of a rollout: what each refuses, lets pass, tells and changes."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.check import AHEAD
from fencepost.errors import ConfigError, MissingToken, StaleToken, TokenLeap
from fencepost.events import Event
from fencepost.guards.memory import MemoryGuard
from fencepost.guards.policy import Policy, current_policy, default_policy, position
from fencepost.lease import Access
from fencepost.rule import MAX_TOKEN, Stamp, Verdict
from tests.harness.logs import logged


def guarded(mode: Any, **options: Any) -> tuple[MemoryGuard[str], Policy, list[Event]]:
    told: list[Event] = []
    policy = Policy(mode, **options)
    return MemoryGuard[str]([told.append], policy), policy, told


def seen(told: list[Event]) -> list[tuple[str | None, bool | None]]:
    return [(event.verdict, event.enforced) for event in told]


def try_all(guard: MemoryGuard[str]) -> list[str]:
    """A write, a stale one, and one without a token: what became of each."""
    outcomes = []
    for number, offer in enumerate((5, 4, None)):
        try:
            guard.write("thing", str(number), offer)  # type: ignore[arg-type]  # None is one without a token
            outcomes.append("written")
        except StaleToken:
            outcomes.append("stale")
        except MissingToken:
            outcomes.append("missing")
    return outcomes


@pytest.mark.parametrize(
    ("mode", "outcomes", "told"),
    [
        ("off", ["written"] * 3, []),
        ("passive", ["written"] * 3, [(None, None), (None, None), ("missing", None)]),
        ("shadow", ["written"] * 3, [("admit", None), ("stale", False), ("missing", False)]),
        ("canary:0%", ["written"] * 3, [("admit", None), ("stale", False), ("missing", False)]),
        ("canary:100%", ["written", "stale", "written"], [("admit", None), ("stale", True), ("missing", False)]),
        ("enforce", ["written", "stale", "written"], [("admit", None), ("stale", True), ("missing", False)]),
        ("strict", ["written", "stale", "missing"], [("admit", None), ("stale", True), ("missing", True)]),
    ],
)
def test_each_step_goes_as_far_as_it_says(mode: str, outcomes: list[str], told: list[Any]) -> None:
    guard, _, events = guarded(mode)
    assert try_all(guard) == outcomes
    assert seen(events) == told
    assert {event.detail for event in events} <= {mode}
    assert guard.mark("thing") == (None if mode in ("off", "passive") else Stamp(5)), "grace never moves the mark"


def test_what_passes_by_grace_never_moves_the_mark() -> None:
    guard, _, _ = guarded("shadow")
    guard.write("thing", "x", Stamp(5, 1, "ann"))
    for offer in (Stamp(4, 9, "old"), Stamp(5, 9, "bob")):
        assert guard.write("thing", "y", offer)
        assert guard.read("thing", offer) == "y"
        assert guard.mark("thing") == Stamp(5, 1, "ann")


def test_in_shadow_a_replay_is_written_again_as_it_would_be_without_a_guard() -> None:
    guard, policy, told = guarded("shadow")
    offer = Stamp(5, 1, "ann")
    assert [guard.write("thing", "x", offer), guard.write("thing", "x", offer)] == [True, True]
    policy.mode = "enforce"
    assert guard.write("thing", "x", offer) is False
    assert seen(told) == [("admit", None), ("replay", False), ("replay", None)]


def test_it_changes_while_the_guard_runs() -> None:
    guard, policy, _ = guarded("off")
    guard.write("thing", "x", 5)
    policy.mode = "strict"
    with pytest.raises(MissingToken):
        guard.write("thing", "x")
    flags = {"mode": "shadow"}
    guard, policy, _ = guarded(lambda: flags["mode"])
    guard.write("thing", "x")
    flags["mode"] = "strict"
    with pytest.raises(MissingToken):
        guard.write("thing", "x")


def test_a_flag_that_says_nonsense_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"mode": "enforce"}
    policy = Policy(lambda: flags["mode"])
    for nonsense in ("on please", None, 3, ["strict"]):
        flags["mode"] = nonsense  # type: ignore[assignment]
        caplog.clear()
        assert policy.mode == "enforce"
        assert "stays in mode enforce" in caplog.text


def test_the_canaries_are_always_the_same_and_more_of_them_at_each_step() -> None:
    names = [f"account/{number}" for number in range(2000)]
    chosen = {
        share: {name for name in names if Policy(f"canary:{share}%").stance(name).refuses} for share in (1, 10, 50)
    }
    assert chosen[1] < chosen[10] < chosen[50]
    assert 100 < len(chosen[10]) < 300
    assert position("account/42") == pytest.approx(0.80145, abs=1e-5), "in every process and every release"


@pytest.mark.parametrize("mode", ["", "on", "canary", "canary:10", "canary:101%", "canary:-1%", "STRICT"])
def test_there_are_no_other_modes(mode: str) -> None:
    with pytest.raises(ConfigError, match="canary:10%"):
        Policy(mode)


def test_an_override_lets_everything_pass_and_everybody_know(caplog: pytest.LogCaptureFixture) -> None:
    guard, policy, told = guarded("strict")
    guard.write("thing", "x", 5)
    with caplog.at_level(logging.WARNING, "fencepost"):
        policy.override("the issuer was restored from a backup", seconds=60, hooks=[told.append])
    assert "restored from a backup" in caplog.text
    guard.write("thing", "y", 4)
    guard.write("thing", "z")
    policy.resume()
    with pytest.raises(StaleToken):
        guard.write("thing", "y", 4)
    assert [(event.kind, event.verdict, event.enforced) for event in told] == [
        ("decision", Verdict.ADMIT, None),
        ("override", None, None),
        ("decision", Verdict.STALE, False),
        ("decision", Verdict.MISSING, False),
        ("decision", Verdict.STALE, True),
    ]
    assert told[2].detail == "override: the issuer was restored from a backup"


def test_an_override_ends_by_itself_and_needs_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, policy, _ = guarded("strict")
    with pytest.raises(ConfigError, match="reason"):
        policy.override(" ")
    now = [1000.0]
    monkeypatch.setattr("fencepost.guards.policy.time", SimpleNamespace(monotonic=lambda: now[0]))
    policy.override("drill", seconds=150)
    guard.write("thing", "x")
    now[0] += 151
    with pytest.raises(MissingToken):
        guard.write("thing", "x")


def test_a_token_that_leaps_is_refused() -> None:
    guard, _, told = guarded("strict", max_jump=1000)
    with pytest.raises(TokenLeap, match="any first token"):
        guard.write("thing", "x", MAX_TOKEN)
    guard.write("thing", "x", 7)
    guard.write("thing", "x", 1007)
    with pytest.raises(TokenLeap, match="guard raise"):
        guard.write("thing", "x", 2008)
    guard.write("thing", "x", 2007)
    assert [event.verdict for event in told] == ["leap", "admit", "admit", "leap", "admit"]


def test_the_first_token_can_have_a_limit_of_its_own() -> None:
    guard, _, _ = guarded("strict", max_jump=10, max_first=100)
    with pytest.raises(TokenLeap):
        guard.write("thing", "x", 101)
    guard.write("thing", "x", 100)


@pytest.mark.parametrize("mode", ["off", "passive"])
def test_a_policy_that_judges_nothing_refuses_no_misplaced_access(mode: str) -> None:
    access = Access("other", Stamp(5, 1, "ann"))
    assert MemoryGuard[str](policy=Policy(mode)).write("thing", "x", access)
    with pytest.raises(ConfigError, match="this access is to 'other'"):
        MemoryGuard[str]().write("thing", "x", access)


def test_a_flag_that_cannot_be_looked_up_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"mode": "enforce"}
    guard, _, _ = guarded(lambda: flags["mode"])
    guard.write("thing", "x", 5)
    del flags["mode"]
    with pytest.raises(StaleToken):
        guard.write("thing", "y", 4)
    assert guard.write("thing", "y", 6)
    assert "stays in mode enforce: KeyError" in caplog.text


def test_the_first_token_of_an_issuer_whose_clock_is_ahead_is_admitted() -> None:
    guard, _, _ = guarded("strict")
    now = time.time_ns() // 1000
    assert guard.write("thing", "x", now + AHEAD // 2)
    with pytest.raises(TokenLeap):
        guard.write("other", "x", now + 2 * AHEAD)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process where nobody has named a default policy yet."""
    monkeypatch.delenv("FENCEPOST_POLICY", raising=False)
    monkeypatch.setattr("fencepost.guards.policy._default", None)


def _stale(guard: MemoryGuard[str]) -> None:
    guard.write("thing", "new", 5)
    guard.write("thing", "old", 4)


@pytest.mark.usefixtures("unset")
def test_a_default_policy_holds_for_guards_made_before_and_in_every_thread(caplog: pytest.LogCaptureFixture) -> None:
    guard, strict = MemoryGuard[str](), MemoryGuard[str](policy=Policy("strict"))
    with pytest.raises(StaleToken):
        _stale(guard)
    with default_policy("shadow") as policy:
        assert policy.mode == "shadow"
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_stale, guard).result()
        with pytest.raises(StaleToken):
            _stale(strict)
        with default_policy(Policy("off")):
            guard.write("thing", "older", 1)
        policy.mode = "strict"
        with pytest.raises(StaleToken):
            _stale(guard)
    with pytest.raises(StaleToken):
        _stale(guard)
    assert [record.message.split("mode ")[1] for record in logged(caplog)] == [
        "shadow, by default_policy()",
        "off, by default_policy()",
    ]


@pytest.mark.usefixtures("unset")
def test_the_environment_names_the_default_policy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FENCEPOST_POLICY", "shadow")
    _stale(MemoryGuard[str]())
    with pytest.raises(StaleToken):
        _stale(MemoryGuard[str](policy=Policy()))
    assert "mode shadow, by $FENCEPOST_POLICY" in caplog.text
    assert len(logged(caplog)) == 1


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("mode", ["shadw", "", "STRICT"])
def test_a_mode_of_the_environment_that_is_none_lets_nothing_pass(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_POLICY", mode)
    guard = MemoryGuard[str]()
    with pytest.raises(ConfigError, match=r"\$FENCEPOST_POLICY: no mode"):
        guard.write("thing", "x", 1)
    assert guard.mark("thing") is None


@pytest.mark.usefixtures("unset")
def test_a_default_policy_that_cannot_be_changes_nothing() -> None:
    with pytest.raises(ConfigError, match="no mode"):
        default_policy("shadw")
    assert current_policy().mode == "strict"
