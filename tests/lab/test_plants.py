"""Every kind of violation, planted into clean histories, is found by its kind; what is legal but odd is not.

The clean ones are runs of the simulator, which know everything, and recorded runs of real contenders, of which only
what the clients were told is known (``tests/lab/histories``). ``python -m tests.lab.test_plants`` prints the table.
"""

import argparse
import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from fencepost.errors import ConfigError
from fencepost_lab.history.checks import PROMISES, check
from fencepost_lab.history.format import Line, lines, load
from fencepost_lab.history.gather import KINDS
from fencepost_lab.sim.chaos import chaos
from fencepost_lab.sim.run import run

History: TypeAlias = list[Line]
Plant: TypeAlias = Callable[[History], History | None]
"""Spoils a history; None where there is nothing in it that could be spoiled so."""

ALL = {"data", "inside", "order", "owner", "once", "left", "told", "loss", "freed", "deadline", "exclusion", "turns"}
FOLDER = Path(__file__).parent / "histories"
_TOKENS = ("token", "mark", "seen", "above")


SEEDS = (21, 45, 113, 131, 152)
"""The first that promise everything, and in which enough happened."""


def simulation(seed: int) -> History:
    """A run of the simulator; its tokens begin above 100."""
    trace = run(chaos(seed))
    for line in trace:
        line |= {name: line[name] + 100 for name in _TOKENS if type(line.get(name)) is int}
    return trace


@cache
def simulated() -> tuple[History, ...]:
    return tuple(map(simulation, SEEDS))


@cache
def recorded() -> tuple[History, ...]:
    return tuple(list(load(FOLDER / f"contend-{name}.jsonl")) for name in ("sqlite", "redis"))


def of(history: History, ev: str, **facts: Any) -> list[Line]:
    """The lines of a kind with these facts."""
    return [each for each in history if each["ev"] == ev and all(each.get(k) == v for k, v in facts.items())]


def applied(history: History) -> list[Line]:
    return [each for each in history if each["ev"] == "access" and "version" in each]


def leases(history: History) -> list[Line]:
    return of(history, "acquired")


def written(history: History) -> list[Line]:
    """The acknowledged writes."""
    return of(history, "wrote", outcome="done")


def above(history: History) -> int:
    """A token larger than every one that is spoken of."""
    return max(int(each[name]) for each in history for name in _TOKENS if each.get(name)) + 1000


def drop(history: History, *gone: Line) -> History:
    return [each for each in history if not any(each is other for other in gone)]


def put(history: History, *new: Line) -> History:
    """With more lines, each after all that happened at its instant, and before the end."""
    *rest, end = history
    rest = sorted([*rest, *new], key=lambda line: line["t"])
    return [*rest, end | {"t": max(end["t"], rest[-1]["t"])}]


def last(history: History) -> float:
    return max(float(each["t"]) for each in history if each["ev"] in ("access", "wrote", "read", "releasing"))


def answered(history: History, access: Line) -> Line | None:
    """The acknowledgement of an applied write."""
    found = of(history, "wrote", token=access["token"], seq=access["seq"], holder=access["holder"], outcome="done")
    return found[0] if found else None


def acknowledged(history: History) -> Iterator[tuple[Line, Line]]:
    for access in applied(history):
        if wrote := answered(history, access):
            yield access, wrote


def access(history: History, lease: Line, t: float, do: str, seq: int, **facts: Any) -> Line:
    newest = [each["mark"] for each in history if each["ev"] == "access" and each["t"] <= t and each["mark"]]
    stamp = {"who": lease["who"], "token": lease["token"], "seq": seq, "holder": lease["holder"]}
    return {"t": t, "ev": "access", "do": do, **stamp, "verdict": "admit", "mark": newest[-1], **facts}


def next_write(history: History, lease: Line, t: float, seq: int = 90, **facts: Any) -> Line:
    version = applied(history)[-1]["version"]
    made = {"value": applied(history)[-1]["value"] + 1, "base": version, "version": version + 1}
    return access(history, lease, t, "write", seq, **made, **facts)


def ended(history: History, version: int) -> History:
    """The same with an end that has the version."""
    return [*history[:-1], history[-1] | {"version": version, "value": version}]


# Into what the simulator knows.


def lost_update(h: History) -> History:
    each, wrote = next((a, w) for a, w in acknowledged(h) if a["version"] > 2)
    each["base"] -= 1
    wrote["base"] -= 1
    return h


def stale_write(h: History) -> History:
    made = next_write(h, leases(h)[0], last(h))
    return ended(put(h, made), made["version"])


def repeated_token(h: History) -> History:
    leases(h)[1]["token"] = leases(h)[0]["token"]
    return h


def falling_token(h: History) -> History:
    leases(h)[-1]["token"] = 5
    return h


def two_inside(h: History) -> History:
    held = leases(h)[1]
    other = next(each["who"] for each in leases(h) if each["who"] != held["who"])
    t = round((held["t"] + min(held["until"], ending(h, held))) / 2, 6)
    new = held | {"who": other, "holder": "Z9", "token": above(h), "t": t, "asked": t, "until": held["until"] + 1}
    return put(h, new)


def ending(h: History, lease: Line) -> float:
    """When a holder ended its belief."""
    found = [each["t"] for each in h if each["ev"] in ("lost", "releasing") and each["holder"] == lease["holder"]]
    return min(found, default=inf)


def moved_deadline(h: History) -> History | None:
    first, second = leases(h)[0], leases(h)[1]
    if any(first["t"] <= each["t"] <= second["t"] for each in of(h, "fault", do="kill", who=first["who"])):
        return None  # a killed holder holds nothing
    gone = ("lost", "releasing", "renewed")  # an honest renewal after the planted one would move the deadline back
    over = [each for each in h if each["ev"] in gone and each["holder"] == first["holder"]]
    renewed = {name: first[name] for name in ("who", "token", "holder")}
    return put(drop(h, *over), {"t": first["t"], "ev": "renewed", **renewed, "until": second["t"] + 5})


def after_entering(h: History) -> History:
    """The newest holder has entered and not written when the older one's write is admitted."""
    newest, larger = leases(h)[-1], above(h)
    enter = access(h, newest | {"token": larger, "holder": "Z9"}, last(h), "enter", 1, mark=larger)
    lease = newest | {"token": larger, "holder": "Z9", "t": last(h), "asked": last(h), "until": last(h) + 1}
    made = next_write(h, newest, last(h), mark=larger)
    return ended(put(h, lease, enter, made), made["version"])


def stale_enter(h: History) -> History:
    return put(h, access(h, leases(h)[0], last(h), "enter", 90))


def falling_mark(h: History) -> History:
    judged = [each for each in h if each["ev"] == "access" and each["mark"]]
    judged[-1]["mark"] = judged[0]["mark"] - 1
    return h


def unwritten_value(h: History) -> History:
    next(each for each in of(h, "read") if each.get("version")).update(value=4711)
    return h


def old_version(h: History) -> History:
    read = [each for each in of(h, "read") if (each.get("version") or 0) > 2][-1]
    read["version"] -= 2
    read["value"] = next(each["value"] for each in applied(h) if each["version"] == read["version"])
    return h


def unmade(h: History) -> History:
    made, _ = list(acknowledged(h))[-1]
    return drop(h, made)


def missing_at_the_end(h: History) -> History:
    return ended(h, applied(h)[-1]["version"] - 1)


def end_counts_corruption(h: History) -> History:
    h[-1]["corrupted"] = 1
    return h


def says_corrupt(h: History) -> History:
    applied(h)[2]["corrupt"] = True
    return h


def refused_and_made(h: History) -> History | None:
    refused = next(iter(of(h, "wrote", outcome="refused")), None)
    if refused is None:
        return None
    refused["attempts"] = 1
    made = next_write(h, refused, refused["asked"], refused["seq"])
    refused |= {"value": made["value"], "base": made["base"]}
    return put(h, made)


def without_lease(h: History) -> History:
    made, _ = next(acknowledged(h))
    return drop(h, *(each for each in leases(h) if each["holder"] == made["holder"]))


def invented(h: History) -> History:
    nobody = {"who": "A", "token": above(h), "holder": "nobody"}
    made = next_write(h, nobody, last(h), 2, mark=nobody["token"])
    told = {name: made[name] for name in ("t", "who", "token", "seq", "holder", "value", "base")}
    wrote = {"ev": "wrote", **told, "asked": made["t"], "outcome": "done", "attempts": 1}
    enter = access(h, nobody, made["t"], "enter", 1, mark=nobody["token"])
    return ended(put(h, enter, made, wrote), made["version"])


def wrong_holder(h: History) -> History:
    made = applied(h)[3]
    made["holder"] = next(each["holder"] for each in leases(h) if each["holder"] != made["holder"])
    return h


def seq_back(h: History) -> History | None:
    for made in applied(h):
        if made["seq"] > 2:
            made["seq"] = 1
            return h
    return None


def made_twice(h: History) -> History:
    again = applied(h)[-1]
    return ended(put(h, again | {"version": again["version"] + 1, "base": again["version"]}), again["version"] + 1)


def other_value(h: History) -> History:
    _, wrote = next(acknowledged(h))
    wrote["value"] += 5
    return h


def not_entered(h: History) -> History:
    made = applied(h)[0]
    entered = of(h, "access", do="enter", holder=made["holder"])
    return drop(h, *entered)


def gap(h: History) -> History:
    return drop(h, applied(h)[2])


def from_version_two(h: History) -> History:
    made = applied(h)[0]
    wrote = answered(h, made)
    return drop(h, made, *([wrote] if wrote else []))


def version_twice(h: History) -> History:
    applied(h)[3]["version"] -= 1
    return h


def jumping_value(h: History) -> History:
    made, wrote = list(acknowledged(h))[1]
    made["value"] += 7
    wrote["value"] += 7
    return h


def other_base(h: History) -> History:
    _, wrote = next(acknowledged(h))
    wrote["base"] += 1
    return h


def refusal(h: History, verdict: str, mark: int | None = None, seq: int = 90) -> History:
    """The newest holder's access, refused so."""
    made = [each for each in h if each["ev"] == "access" and each["verdict"] == "admit" and each["token"]][-1]
    judged = access(h, made, last(h), "write", seq, value=0, base=0, verdict=verdict)
    return put(h, judged if mark is None else judged | {"mark": mark})


def newest(h: History) -> int:
    found: int = [each["mark"] for each in h if each["ev"] == "access" and each["mark"]][-1]
    return found


def taken(h: History) -> History:
    of(h, "freed")[0]["how"] = "taken"
    return h


def granted_after_leaving(h: History) -> History | None:
    if not of(h, "left"):
        return None
    gone = of(h, "left")[0]
    free = of(h, "freed")[-1]["t"]
    return put(
        h, {"t": max(gone["t"], free), "ev": "granted", "token": above(h), "holder": gone["holder"], "until": 10**6}
    )


def goes_on(h: History) -> History:
    held = leases(h)[0]
    return put(h, {"t": held["t"], "ev": "told", "holder": held["holder"]})


def renewed_late(h: History) -> History:
    held = leases(h)[0]
    t = max(last(h), held["until"] + 1)
    renewed = {name: held[name] for name in ("who", "token", "holder")}
    return put(h, {"t": t, "ev": "renewed", **renewed, "until": t + 1})


def beyond_store(h: History) -> History:
    leases(h)[0]["until"] += 100
    return h


def one_holder_id(h: History) -> History:
    leases(h)[1]["holder"] = leases(h)[0]["holder"]
    return h


def granted_twice(h: History) -> History | None:
    held = False
    for each in h:
        held = held or each["ev"] == "granted"
        if each["ev"] == "freed" and each["how"] == "released" and held:
            later = [other for other in of(h, "granted") if other["t"] >= each["t"]]
            until = [o["until"] for o in h if o["ev"] in ("granted", "extended") and o["holder"] == each["holder"]]
            if later and until[-1] > later[0]["t"] + 1e-3:
                return drop(h, each)
    return None


# Into what contenders were told.


def over_one_version(h: History) -> History:
    first = written(h)[2]
    other = next(each for each in written(h) if each["holder"] != first["holder"] and each["t"] > first["t"])
    other |= {"base": first["base"], "value": first["value"]}
    return h


def smaller_token(h: History) -> History:
    first, newer = leases(h)[0], written(h)[-1]
    newer |= {"token": first["token"], "holder": first["holder"], "who": first["who"], "seq": 90}
    return h


def read_of_nothing(h: History) -> History:
    of(h, "read")[4].update(value=4711, version=4711)
    return h


def reread(h: History, version: int) -> History:
    final = written(h)[-1]
    read = {name: final[name] for name in ("who", "token", "holder", "key", "lock")}
    t = last(h)
    return put(h, {"t": t, "ev": "read", **read, "seq": 91, "asked": t, "value": version, "version": version})


def refused_visible(h: History) -> History:
    refused = of(h, "wrote", outcome="refused")[0]
    return drop(h, *(each for each in written(h) if each["base"] == refused["base"]))


def after_release(h: History) -> History:
    final = written(h)[-1]
    t = last(h) + 0.001
    more = final | {"t": t, "asked": t, "seq": 91, "base": final["value"], "value": final["value"] + 1}
    return ended(put(h, more), more["value"])


def tokenless(h: History) -> History:
    written(h)[3]["token"] = None
    return h


def no_acquire(h: History) -> History:
    return drop(h, leases(h)[3])


SIMULATED: dict[str, tuple[str, Plant]] = {
    "lost update (applied write computed from an old version)": ("lost-update", lost_update),
    "stale write accepted after a newer token wrote": ("stale-write", stale_write),
    "token repeated (two holders acquire one token)": ("token-repeated", repeated_token),
    "token falling (acquired later, smaller)": ("token-fell", falling_token),
    "two holders inside valid leases": ("overlap", two_inside),
    "exclusion: deadline of A moved past B's acquire by a renewal": ("overlap", moved_deadline),
    "write accepted after a larger token entered": ("stale-write", after_entering),
    "enter of an older token admitted after a larger one": ("stale-enter", stale_enter),
    "mark falls": ("mark-wrong", falling_mark),
    "read returns a value nobody wrote": ("unwritten-read", unwritten_value),
    "read returns an old version": ("old-read", old_version),
    "acknowledged write missing from the journal (last one)": ("write-missing", unmade),
    "acknowledged write missing from the final value": ("end-differs", missing_at_the_end),
    "end line counts a corruption": ("end-differs", end_counts_corruption),
    "access line itself says corrupt: true": ("said-corrupt", says_corrupt),
    "refused write that is visible (one attempt)": ("refused-made", refused_and_made),
    "write by a holder that never acquired (its line removed)": ("no-lease", without_lease),
    "write by an invented holder and token, acknowledged": ("no-lease", invented),
    "write under another holder's token": ("two-holders", wrong_holder),
    "seq going back inside one lease": ("late-write", seq_back),
    "replay applied twice": ("made-twice", made_twice),
    "replay acknowledged with another value than was made": ("write-missing", other_value),
    "enter missing (a holder writes without having entered)": ("not-entered", not_entered),
    "version gap in the journal": ("version-gap", gap),
    "journal begins at version 2": ("versions-before", from_version_two),
    "one version made twice": ("version-twice", version_twice),
    "value does not follow from its base": ("wrong-value", jumping_value),
    "client says another base than the resource": ("other-base", other_base),
    "replay said of a write that was never made": ("false-replay", lambda h: refusal(h, "replay")),
    "refused as stale for a smaller mark": ("false-stale", lambda h: refusal(h, "stale", leases(h)[0]["token"] - 1)),
    "refused for a mark nobody was issued": ("unissued-mark", lambda h: refusal(h, "stale", above(h))),
    "newest holder refused as stale for its own token": ("false-stale", lambda h: refusal(h, "stale", newest(h))),
    "clash said although one holder only has that token": ("false-clash", lambda h: refusal(h, "clash", newest(h))),
    "hold ended by somebody else": ("taken", taken),
    "granted after it had left": ("granted-after-leaving", granted_after_leaving),
    "told of its loss, and goes on": ("not-heeded", goes_on),
    "renewed after its own deadline": ("renewed-late", renewed_late),
    "counts on its lease longer than the store": ("beyond-store", beyond_store),
    "two leases acquired under one holder id": ("holder-repeated", one_holder_id),
    "granted to two by the store at once": ("granted-twice", granted_twice),
}
RECORDED: dict[str, tuple[str, Plant]] = {
    "contend: two acknowledged writes over one version": ("lost-update", over_one_version),
    "contend: smaller token wrote after a larger": ("stale-write", smaller_token),
    "contend: token repeated": ("token-repeated", repeated_token),
    "contend: token falling": ("token-fell", falling_token),
    "contend: two holders inside valid leases": ("overlap", two_inside),
    "contend: read of a value nobody wrote": ("unwritten-read", read_of_nothing),
    "contend: stale read, no write after": ("old-read", lambda h: reread(h, h[-1]["value"] - 3)),
    "contend: last acknowledged write missing at the end": ("end-differs", lambda h: ended(h, h[-1]["value"] - 1)),
    "contend: refused write that is visible": ("refused-made", refused_visible),
    "contend: write by a holder that never acquired": ("no-lease", no_acquire),
    "contend: write acknowledged after the holder's release": ("after-release", after_release),
    "contend: renewed after its own deadline": ("renewed-late", renewed_late),
    "contend: done write without a token (fence on)": ("no-token", tokenless),
}
"""What is planted, and the kind that must be found."""


def spoiled(history: History, plant: Plant) -> History | None:
    found = plant(copy.deepcopy(history))
    if found is not None:  # it must not be found by its number of lines alone
        found = [*found[:-1], found[-1] | {"lines": len(found) - 1}]
    return found


def kinds(history: History) -> set[str]:
    return {each.kind for each in check(history).violations}


def test_the_histories_are_clean_and_a_lot_happens_in_them() -> None:
    for history in simulated():
        assert set(history[0]["promises"]) >= ALL
        assert len(applied(history)) > 5
        assert len(of(history, "left")) > 1
        assert of(history, "wrote", outcome="refused")
    for history in (*simulated(), *recorded()):
        report = check(history)
        assert report.violations == []
        assert report.counts["overlapping_beliefs"] > 0 or report.counts["write:stale"] > 0
    assert len(SIMULATED) + len(RECORDED) == 53


@pytest.mark.parametrize("name", SIMULATED | RECORDED)
def test_what_is_planted_is_found_by_its_kind(name: str) -> None:
    kind, plant = (SIMULATED | RECORDED)[name]
    tried = [spoiled(each, plant) for each in (simulated() if name in SIMULATED else recorded())]
    histories = [each for each in tried if each is not None]
    assert histories, "nowhere could it be planted"
    for history in histories:
        assert kind in kinds(history)
        promise = KINDS[kind][0]
        assert promise in {each.check for each in check(history, [promise]).violations}


def twice(h: History) -> History:
    return [line for line in h for _ in range(2)]


def shuffled(h: History) -> History:
    rest = h[1:]
    random.Random(1).shuffle(rest)
    return [h[0], *rest]


def swapped(h: History) -> History:
    one, two = next((a, b) for a, b in pairwise(h[1:]) if a["t"] < b["t"])
    index = next(index for index, each in enumerate(h) if each is one)
    return [*h[:index], two, one, *h[index + 2 :]]


def one_client_missing(h: History) -> History:
    gone = leases(h)[0]["who"]
    return [each for each in h if each.get("who") != gone or each["ev"] in ("access", "message", "fault")]


FILES: dict[str, tuple[str, Plant]] = {
    "lines shuffled": ("lines are in the order of t", shuffled),
    "two neighbouring lines swapped": ("lines are in the order of t", swapped),
    "every line twice": ("second run line|once more", twice),
    "the run line is missing": ("the first line is the run line", lambda h: h[1:]),
    "the run line promises nothing": ("promises nothing", lambda h: [h[0] | {"promises": []}, *h[1:]]),
    "the run line does not say what it promises": (
        "promises nothing",
        lambda h: [{key: value for key, value in h[0].items() if key != "promises"}, *h[1:]],
    ),
    "an event name nobody knows": (
        r"did you mean '(access|read)'\?",
        lambda h: [each | {"ev": each["ev"].replace("c", "", 1)} if each["ev"] in ("access",) else each for each in h],
    ),
    "t is not a number on one line": ("t is a number, .*nan", lambda h: [*h[:5], h[5] | {"t": float("nan")}, *h[6:]]),
    "cut short, and its end kept": ("lines are missing", lambda h: [*h[: len(h) // 2], h[-1]]),
    "the lines of one process are missing": ("lines are missing", one_client_missing),
    "one line twice": ("once more", lambda h: sorted([*h, leases(h)[0]], key=lambda line: line["t"])),
    "a line after the end": ("comes after the end line", lambda h: [*h, {"t": h[-1]["t"], "ev": "note", "text": ""}]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_history_is_refused(name: str) -> None:
    message, plant = FILES[name]
    histories = [simulated()[0], recorded()[1]] if "event name" not in name else [simulated()[0]]
    for history in histories:
        spoilt = plant(copy.deepcopy(history))
        assert spoilt is not None
        with pytest.raises(ConfigError, match=message):
            check(spoilt)


def test_a_journal_that_is_not_there_cannot_have_lines() -> None:
    head, *rest = simulated()[0]
    with pytest.raises(ConfigError, match='the run line says "journal": false'):
        check([head | {"journal": False}, *rest])


def test_numbers_that_json_does_not_have_are_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for number in ("NaN", "Infinity", "-Infinity"):
        path.write_text(lines([simulated()[0][0]]) + f'{{"t":{number},"ev":"note"}}\n')
        with pytest.raises(ConfigError, match=":2 is not a line"):
            check(load(path))


def test_where_nothing_happened_nothing_is_said_to_be_kept() -> None:
    head = simulated()[0][0] | {"promises": list(PROMISES)}
    report = check([head])
    assert report.verdict == "not checked"
    assert set(report.states().values()) == {"not checked"}
    assert set(report.unchecked) == set(PROMISES)


def test_a_promise_about_which_a_history_says_nothing_is_not_kept() -> None:
    states = check(recorded()[0], ["data", "owner", "left", "told", "exclusion"]).states()
    assert states == {
        "data": "kept", "owner": "not checked", "left": "not checked", "told": "not checked", "exclusion": "kept",
    }  # fmt: skip
    without = [{key: value for key, value in each.items() if key != "until"} for each in recorded()[0]]
    assert check(without, ["exclusion", "deadline"]).unchecked == {
        "exclusion": "no two leases of one lock with until",
        "deadline": "no leases with until",
    }


def test_two_stores_under_one_name_are_found_by_their_tokens() -> None:
    (head, *one, end), (_, *two, _) = copy.deepcopy(recorded())
    merged = sorted([*one, *two], key=lambda line: line["t"])
    end = {"t": merged[-1]["t"], "ev": "end"}
    found = {each.check for each in check([head, *merged, end]).violations}
    assert {"order", "exclusion"} <= found


def unanswered(h: History, *, made: bool) -> History:
    """The last acknowledged write got no answer; it was made all the same, or not."""
    access, wrote = list(acknowledged(h))[-1]
    wrote["outcome"] = "unknown"
    if made:
        return h
    assert access is applied(h)[-1], "nothing was built on it"
    return ended(drop(h, access), access["version"] - 1)


def unanswered_at_last(h: History) -> History | None:
    access, wrote = list(acknowledged(h))[-1]
    judged = [each for each in of(h, "access", holder=access["holder"]) if each["seq"] == access["seq"]]
    seen = [each for each in of(h, "read") if each.get("version") == access["version"]]
    if access is not applied(h)[-1] or seen or len(judged) > 1:
        return None
    wrote["outcome"] = "unknown"
    return ended(drop(h, access), access["version"] - 1)


def repeated(h: History) -> History:
    """The first answer was lost, and the second one says that it was made."""
    access, wrote = list(acknowledged(h))[-1]
    wrote["attempts"] = 2
    again = {key: value for key, value in access.items() if key not in ("version", "corrupt", "overwrote", "zombie")}
    index = next(index for index, each in enumerate(h) if each is access)
    return [*h[: index + 1], again | {"verdict": "replay"}, *h[index + 1 :]]


def refused_after_two(h: History) -> History:
    """The first attempt was made, and the second came after a newer holder."""
    wrote = next(
        w
        for a, w in acknowledged(h)
        if any(each["t"] < w["t"] + 10 and each["token"] > a["token"] for each in leases(h))
    )
    mark = max(each["token"] for each in leases(h))
    late = max(each["t"] for each in leases(h) if each["token"] == mark)
    more = wrote | {"outcome": "refused", "verdict": "stale", "seen": mark, "attempts": 2, "t": max(late, wrote["t"])}
    return put(drop(h, wrote), more)


def killed(h: History) -> History:
    """A holder is killed; a session store frees its lock at once, and the next acquires before its deadline."""
    held, following = leases(h)[2], leases(h)[3]
    t = held["t"]
    h = [each for each in h if each.get("holder") != held["holder"] or each["t"] <= t]
    held["until"] = following["t"] + 5
    return put(h, {"t": t, "ev": "fault", "do": "kill", "who": held["who"]})


LEGAL: dict[str, tuple[bool, Plant]] = {
    "unknown outcome that happened": (True, lambda h: unanswered(h, made=True)),
    "unknown outcome that did not happen": (True, unanswered_at_last),
    "done after a retry (first answer lost, replay)": (True, repeated),
    "refused after two attempts although the first was made": (True, refused_after_two),
    "tokens as strings": (
        True,
        lambda h: [each | {n: str(each[n]) for n in _TOKENS if type(each.get(n)) is int} for each in h],
    ),
    "an operator raised the mark": (
        True,
        lambda h: put(
            h, {"t": h[-1]["t"], "ev": "marked", "mark": above(h)}, {"t": h[-1]["t"], "ev": "note", "text": ""}
        ),
    ),
    "holder killed, a session store frees its lock at once": (False, killed),
    "unfenced lock of a peer (no tokens)": (
        False,
        lambda h: [
            h[0] | {"promises": ["exclusion"]},
            *({key: value for key, value in each.items() if key != "seq"} | {"token": None} for each in h[1:-1]),
            h[-1],
        ],
    ),
}
"""Whether it is planted into the simulator's histories, and how."""


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_legal_but_odd_is_no_violation(name: str) -> None:
    simulation, plant = LEGAL[name]
    tried = [spoiled(each, plant) for each in (simulated() if simulation else recorded())]
    histories = [each for each in tried if each is not None]
    assert histories
    for history in histories:
        if "killed" in name:
            history = [history[0] | {"promises": ["exclusion", "order", "deadline"]}, *history[1:]]
        if name == "an operator raised the mark":
            history[-1].pop("mark")
        assert check(history).violations == []


def test_clocks_that_differ_are_not_forgiven() -> None:
    """A history has one clock: who records on several machines measures their offsets and takes them off."""
    head, *rest, _ = copy.deepcopy(recorded()[0])
    for line in rest:
        if line.get("who", "").startswith("b"):
            line |= {name: line[name] - 5 for name in ("t", "asked", "until") if line.get(name) is not None}
    early = min(line["t"] for line in rest)
    for line in rest:
        line |= {name: line[name] - early for name in ("t", "asked", "until") if line.get(name) is not None}
    assert check([head, *sorted(rest, key=lambda line: line["t"])]).violations


def some(count: int) -> Iterator[History]:
    """The first runs of the simulator that promise everything and have more than five writes."""
    runs = (each for each in map(simulation, itertools.count(1)) if set(each[0]["promises"]) >= ALL)
    return itertools.islice((each for each in runs if len(applied(each)) > 5), count)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.test_plants")
    parser.add_argument("--runs", type=int, help="plant into so many runs of the simulator, not into those of the test")
    count = parser.parse_args().runs
    runs = tuple(some(count)) if count else simulated()
    print("| planted | kind | found |\n|---|---|---|")
    for name, (kind, plant) in (SIMULATED | RECORDED).items():
        tried = [spoiled(each, plant) for each in (runs if name in SIMULATED else recorded())]
        found = Counter(kind in kinds(each) for each in tried if each is not None)
        print(f"| {name} | `{kind}` | {found[True]} of {found.total()} |")


if __name__ == "__main__":
    main()
