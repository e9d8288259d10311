"""Files and links from elsewhere, also hostile ones: each is opened, or refused with the reason."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost_lab.history.format import lines
from fencepost_lab.sim import run
from fencepost_lab.sim.guided import guided, variant
from tests.sim.browser import Browser, wait_score, wait_words

HEAD = '{"t":0,"ev":"run","format":1,"clients":["A"]}\n'
DEEP = "[" * 5000 + "]" * 5000
REFUSED: dict[str, tuple[str, str]] = {
    "nothing": ("", "is empty"),
    "words": ("words", "line 1: is not a line of a history"),
    "a second line of words": (HEAD + "words\n", "line 2: is not a line of a history"),
    "a list": ("[1, 2]", "neither a scenario nor a history"),
    "a number": ("7", "neither a scenario nor a history"),
    "other JSON": ('{"name": "x"}', "neither a scenario (seed, settings, actions, until) nor a history"),
    "no time": ('{"ev": "run"}', "a JSON object with t and ev"),
    "a time that is a word": ('{"t": "0", "ev": "run"}', "a JSON object with t and ev"),
    "time without end": ('{"t": 1e999, "ev": "run"}', "t = null, which is not a number"),
    "a time far off": ('{"t": 1e300, "ev": "run"}', "which is not a number of a history"),
    "time before zero": ('{"t": -1, "ev": "run"}', "before the history begins"),
    "another format": ('{"t": 0, "ev": "run", "format": 9}', "is of format 9; this page knows 1"),
    "clients that are none": ('{"t": 0, "ev": "run", "clients": 7}', "no lists of names"),
    "a scenario that is none": ('{"t": 0, "ev": "run", "scenario": {"until": 1e999}}', "has a scenario without"),
    "a holder that is none": (HEAD + '{"t": 1, "ev": "acquired", "holder": {}}', "line 2: has holder = {}"),
    "a token that is none": (HEAD + '{"t": 1, "ev": "access", "token": "1x"}', "line 2: has token"),
    "a value that is none": (HEAD + '{"t": 1, "ev": "access", "value": {}}', "line 2: has value"),
    "deep nesting": (DEEP, "neither a scenario nor a history"),
    "too many clients": (
        "".join(f'{{"t": 0, "ev": "asked", "who": "c{number}"}}\n' for number in range(41)),
        "has 41 clients; this page draws 40",
    ),
    "a scenario that cannot be": ('{"settings": {"backend": "mysql"}}', "backend is one of"),
    "a scenario with a strange key": ('{"settings": {"__proto__": {"x": 1}, "y": 1}}', "there is no setting"),
}


@pytest.fixture
def opened(browser: Browser, page: str) -> Iterator[Browser]:
    browser.open(page)
    wait_score(browser, accepted="0")
    yield browser
    browser.complaints()  # the browser itself tells of the refusals that the server answers with


def give(browser: Browser, name: str, content: str, *, drop: bool = False) -> None:
    """Choose a file of the page, or drop it on the page."""
    event = "new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: files })"
    done = (
        f"document.querySelector('#story').dispatchEvent({event})"
        if drop
        else "const input = document.querySelector('#file'); input.files = files.files;"
        " input.dispatchEvent(new Event('change'))"
    )
    browser.run(
        "document.querySelector('#error').textContent = '';"
        "const files = new DataTransfer();"
        f"files.items.add(new File([{content}], {json.dumps(name)})); {done}"
    )


def test_what_cannot_be_opened_is_explained_and_nothing_changes(opened: Browser) -> None:
    for what, (content, why) in REFUSED.items():
        give(opened, f"{what}.jsonl", json.dumps(content))
        try:
            wait_words(opened, "#error", why)
        except AssertionError as error:
            error.add_note(f"{what}: the page says {opened.text('#error')!r}")
            raise
        assert opened.run("return document.querySelector('#story').value") == "gc-pause", what
    opened.click("#finish")
    wait_score(opened, accepted="2")


def test_what_is_too_large_or_no_text_is_refused_by_name(opened: Browser) -> None:
    give(opened, "huge.jsonl", "new Uint8Array((64 << 20) + 1)")
    wait_words(opened, "#error", "huge.jsonl is too large to be drawn: this page takes 64 MB. fencepost check")
    give(opened, "many.jsonl", """'{"t":1,"ev":"asked","who":"A"}\\n'.repeat(200001)""")
    wait_words(opened, "#error", "many.jsonl has 200001 lines; this page draws 200000")
    give(opened, "picture.png", "new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10, 255])")
    wait_words(opened, "#error", "picture.png is not text")
    give(opened, "cut.gz", "new Uint8Array([31, 139, 8, 0, 0])")
    wait_words(opened, "#error", "cut.gz cannot be read")
    bomb = (
        "new Response(new Blob([new Uint8Array((64 << 20) + 1)]).stream().pipeThrough(new CompressionStream('gzip')))"
    )
    small = opened.later(
        f"{bomb}.blob().then((blob) => {{ const files = new DataTransfer();"
        "files.items.add(new File([blob], 'bomb.gz')); const input = document.querySelector('#file');"
        "input.files = files.files; input.dispatchEvent(new Event('change')); done(blob.size) })"
    )
    assert small < 1 << 20
    wait_words(opened, "#error", "bomb.gz is too large to be drawn")


def test_a_dropped_history_is_played_and_held_to_its_promises(opened: Browser) -> None:
    trace = run(variant(guided()[0], 0))
    head = {name: value for name, value in trace[0].items() if name != "scenario"} | {
        "promises": ["data", "order", "told"]
    }
    give(opened, "incident.jsonl", json.dumps(lines([head, *trace[1:]])), drop=True)
    wait_words(opened, "#about", "A recorded history, incident.jsonl (sim).")
    wait_words(opened, "#about", "fencepost check: ⚠ Broken: data")
    assert "✓ Kept: order. ? Not checked: told" in opened.text("#about")
    opened.click("#finish")
    wait_score(opened, accepted="2", corrupted="1")
    assert "Broken promise, data" in opened.text("#log")
    opened.click("#link")
    wait_words(opened, "#link", "A history has no link")


def test_a_hostile_history_runs_nothing_and_shows_its_words_as_words(opened: Browser) -> None:
    evil = "<img src=x onerror='window.hurt=1'>"
    told: list[dict[str, Any]] = [
        {"t": 0, "ev": "run", "clients": [evil, "constructor", "__proto__"], "source": evil},
        {"t": 1, "ev": "acquired", "who": evil, "holder": "__proto__", "token": "9223372036854775807", "until": 4},
        {"t": 2, "ev": "access", "who": evil, "do": "write", "verdict": evil, "token": 1, "value": evil, "version": 1},
        {"t": 2, "ev": "fault", "do": evil, "who": evil},
        {"t": 2, "ev": "fault", "do": "toString", "who": "nobody"},
        {"t": 3, "ev": "note", "text": evil},
        {"t": 3, "ev": evil},
    ]
    give(opened, f"{evil}.jsonl", json.dumps("\n".join(map(json.dumps, reversed(told)))))
    wait_words(opened, "#about", evil)
    opened.click("#finish")
    wait_words(opened, "#notes", evil)
    assert opened.run("return [window.hurt ?? 0, document.querySelectorAll('main img').length]") == [0, 0]


FRAGMENTS = {
    "s=%%%": "cut off, or was changed on its way",
    "s=AAAA": "cut off, or was changed on its way",
    "s=" + urlsafe_b64encode(b"[1]").decode(): "it holds no scenario",
    "s=" + urlsafe_b64encode(b"null").decode().rstrip("="): "it holds no scenario",
    "s=" + urlsafe_b64encode(b'{"settings": 7}').decode().rstrip("="): "settings is an object",
    "s=" + urlsafe_b64encode(b'{"settings": {"ttl": 1e9}}').decode().rstrip("="): "ttl lies between",
    "s=" + urlsafe_b64encode(b'{"actions": {"length": 9}}').decode().rstrip("="): "actions is a list",
    "s=" + urlsafe_b64encode(b'{"actions": [{"do": "shutdown"}]}').decode().rstrip("="): "an action has at, who and do",
    "s=" + urlsafe_b64encode(b'{"until": 1e7}').decode().rstrip("="): "until lies between 0 and 3600",
    "story=nothing": 'there is no guided scenario "nothing"',
    "seed=-1": "a seed is an integer from 0 up to 2^63",
    "seed=../../options": "a seed is an integer from 0 up to 2^63",
    "seed=7&fencing=sometimes": "fencing is one of",
    "play": "open the file again",
}


def test_a_link_that_holds_nothing_good_is_refused_with_the_reason(opened: Browser) -> None:
    for fragment, why in FRAGMENTS.items():
        opened.run(f"document.querySelector('#error').textContent = ''; location.hash = {json.dumps(fragment)}")
        try:
            wait_words(opened, "#error", why)
        except AssertionError as error:
            error.add_note(f"#{fragment}: the page says {opened.text('#error')!r}")
            raise
        assert opened.run("return document.querySelector('#story').value") == "gc-pause", fragment


def test_a_time_that_cannot_be_is_the_start(opened: Browser) -> None:
    for t in ("-5", "NaN", "1e999", "x"):
        opened.run("location.hash = '#story=gc-pause&v=0&t=3'")
        wait_words(opened, "#clock", "3.000")
        opened.run(f"location.hash = '#story=gc-pause&v=7&t={t}'")
        wait_words(opened, "#clock", "0.000")


def test_a_large_history_is_drawn(opened: Browser, tmp_path: Path) -> None:
    told = ['{"t":0,"ev":"run","format":1,"promises":["order"]}']
    for number in range(5000):
        who, t = f"c{number % 20}", number / 10
        lease = f'"who":"{who}","holder":"h{number}","token":{number + 1}'
        told.append(f'{{"t":{t},"ev":"asked","who":"{who}"}}')
        told.append(f'{{"t":{t},"ev":"acquired",{lease},"asked":{t},"until":{t + 1}}}')
        told.append(f'{{"t":{t + 0.05},"ev":"releasing",{lease}}}')
    (path := tmp_path / "large.jsonl").write_text("\n".join(told))
    opened.type("#file", str(path))
    wait_words(opened, "#about", "large.jsonl (history). fencepost check: ✓ Kept: order.")
    assert opened.run("return document.querySelectorAll('.card').length") == 20
