"""The book: short sentences, figures of the lab, tests that are there, pictures that everybody can read.

    python -m tests.docs.test_book --write      write the book's tables again, from docs/lab/*.json

A table of the book stands between `<!-- lab: ... -->` and `<!-- end -->`. The comment names the experiment, the
beginning of the table's title, the columns, and, if only some rows are wanted, a column and its values:

    <!-- lab: ttl; Killed holders block; store | ttl | blocked, median; store=redis,etcd -->

`<!-- lab: costs -->` is the one that is computed: what an uncontended acquire costs on each store.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests import ROOT
from tests.harness.script import script

BOOK = sorted((ROOT / "docs" / "book").glob("*.md"))
LAB = ROOT / "docs" / "lab"
DRAWN = sorted([*(ROOT / "docs" / "pictures").glob("*.svg"), ROOT / "docs" / "zombie.svg"])
TABLE = re.compile(r"(<!-- lab: ([^>]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LONGEST = 35  # words of a sentence
PHONE = 360  # pixels
SMALLEST = 9  # pixels of a letter's height on a phone
SVG = "{http://www.w3.org/2000/svg}"


def figures(name: str) -> dict[str, Any]:
    found = json.loads((LAB / f"{name}.json").read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def markdown(columns: list[str], rows: list[list[object]]) -> str:
    lines: list[list[object]] = [[*columns], ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def costs() -> str:
    """An acquire without contention, each store in relation to Redis."""
    stores = {
        name: each["alone"]["acquire"] for name, each in figures("contention")["figures"].items() if name != "peers"
    }
    base = stores["redis"]["p50"]
    rows: list[list[object]] = [
        [name, f"{each['p50'] / base:.1f}", f"{each['p99'] / base:.1f}"]
        for name, each in sorted(stores.items(), key=lambda item: item[1]["p50"])
    ]
    return markdown(["store", "median, in medians of Redis", "99th percentile, in the same unit"], rows)


def table(wanted: str) -> str:
    """The table that a comment asks for."""
    if wanted == "costs":
        return costs()
    name, title, names, *chosen = (part.strip() for part in wanted.split(";"))
    (found,) = (each for each in figures(name)["tables"] if each["title"].startswith(title))
    columns = [part.strip() for part in names.split("|")]
    places = [found["columns"].index(column) for column in columns]
    rows = found["rows"]
    for condition in chosen:
        column, _, values = condition.partition("=")
        place = found["columns"].index(column)
        rows = [row for row in rows if row[place] in values.split(",")]
    assert rows, f"no row of {title!r} is meant by {chosen}"
    return markdown(columns, [[row[place] for place in places] for row in rows])


def with_tables(text: str) -> str:
    return TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[4]}", text)


def sentences(text: str) -> list[str]:
    """The sentences of a page, without code, tables, pictures and the targets of links."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|<https?:[^>]*>|^\|.*$", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"^\s*(#+|[-*>]|\d+\.)\s", "\n\n", text, flags=re.MULTILINE)
    return [
        " ".join(sentence.split())
        for paragraph in re.split(r"\n\s*\n", text)
        for sentence in re.split(r"(?<=[.!?])[\"*)]*\s+", paragraph)
        if sentence.strip()
    ]


@pytest.mark.parametrize("page", BOOK, ids=lambda page: page.stem)
def test_no_sentence_is_too_long(page: Path) -> None:
    long = [
        f"{len(each.split())} words: {each}"
        for each in sentences(page.read_text("utf-8"))
        if len(each.split()) > LONGEST
    ]
    assert not long, "\n".join(long)


def test_long_sentences_are_found() -> None:
    text = (
        f"# A title\n\n- One. [Two words](x.md) here.\n\n| a | b |\n\n```text\n{'x ' * 99}\n```\n\n{'word ' * 36}end."
    )
    assert [len(each.split()) for each in sentences(text)] == [2, 1, 3, 37]


@pytest.mark.parametrize("page", BOOK, ids=lambda page: page.stem)
def test_its_figures_are_those_of_the_lab(page: Path) -> None:
    text = page.read_text("utf-8")
    assert with_tables(text) == text, "run: python -m tests.docs.test_book --write"


@pytest.mark.parametrize("page", BOOK, ids=lambda page: page.stem)
def test_the_counts_in_its_sentences_are_those_of_the_lab(page: Path) -> None:
    report = (LAB / "report.md").read_text("utf-8")
    counts = {count for each in sentences(page.read_text("utf-8")) for count in re.findall(r"\b\d+ of \d+\b", each)}
    assert [count for count in sorted(counts) if count not in report] == []


def test_there_are_figures() -> None:
    assert sum(len(TABLE.findall(page.read_text("utf-8"))) for page in BOOK) >= 7


@pytest.mark.parametrize("page", BOOK, ids=lambda page: page.stem)
def test_every_test_and_file_that_it_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    for file, name in re.findall(r"`((?:tests|examples|spec|src)/[\w/.]+)(?:::(\w+))?`", text):
        assert (ROOT / file).exists(), f"{file} is not there"
        assert not name or f"def {name}(" in (ROOT / file).read_text("utf-8"), f"{file} has no {name}"
    named = re.findall(r"scenarios? `([\w-]+)`", text, re.IGNORECASE)
    scenarios = (ROOT / "lab/src/fencepost_lab/sim/scenarios").glob("*.json")
    assert set(named) <= {re.sub(r"^\d+-", "", each.stem) for each in scenarios}


def test_the_index_leads_to_every_chapter_in_order() -> None:
    index = (ROOT / "docs" / "book" / "index.md").read_text("utf-8")
    listed = re.findall(r"^\d+\. \[([^\]]+)\]\(([^)]+)\)$", index, re.MULTILINE)
    assert [file for _, file in listed] == [page.name for page in BOOK if page.stem != "index"]
    for number, (title, file) in enumerate(listed, 1):
        assert (ROOT / "docs" / "book" / file).read_text("utf-8").startswith(f"# {number}. {title}\n")


def test_the_pictures_are_those_that_the_script_draws() -> None:
    pictures = script("pictures")
    drawn = {name: draw().svg() for name, draw in pictures.PICTURES.items()}
    assert drawn == {name: (ROOT / "docs" / name).read_text("utf-8") for name in drawn}, "run: scripts/pictures"


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: picture.stem)
class TestPicture:
    def test_it_says_what_it_shows(self, picture: Path) -> None:
        root = ElementTree.parse(picture).getroot()
        assert (root.tag, root.get("role")) == (f"{SVG}svg", "img")
        names = str(root.get("aria-labelledby")).split()
        found = [each for name in names for each in root if each.get("id") == name]
        assert [each.tag for each in found] == [f"{SVG}title", f"{SVG}desc"]
        assert all(each.text for each in found)
        assert len([each for each in root.iter(f"{SVG}text") if "".join(each.itertext()).strip()]) >= 5, "text is text"

    def test_it_can_be_read_on_a_phone_by_day_and_by_night(self, picture: Path) -> None:
        root = ElementTree.parse(picture).getroot()
        width = float(root.get("viewBox", "").split()[2])
        sizes = [float(each.get("font-size", "0")) for each in root.iter() if each.get("font-size")]
        assert min(sizes) * PHONE / width >= SMALLEST
        assert "@media(prefers-color-scheme:dark)" in str(root.findtext(f"{SVG}style"))

    def test_a_page_shows_it(self, picture: Path) -> None:
        pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        shown = {
            (page.parent / link).resolve()
            for page in pages
            for link in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text("utf-8"))
        }
        assert picture in shown, f"no page shows {picture.name}"


def test_the_recording_moves_only_for_those_who_like_it() -> None:
    picture = ROOT / "docs" / "pictures" / "demo.svg"
    text = picture.read_text("utf-8")
    assert picture.stat().st_size < 150_000
    before, _, moving = text.partition("@media(prefers-reduced-motion:no-preference)")
    assert not re.search("@keyframes|animation", before)
    assert "animation:" in moving.partition("</style>")[0]
    rows = [each for each in ElementTree.fromstring(text).iter(f"{SVG}text") if each.get("class") == "t"]
    still = " ".join("".join("".join(each.itertext()) for each in rows).split())
    assert re.search(r"refused as stale.*the value is ?intact", still)


LINES = [
    (0.0, ""),
    (2.0, "\x1b[1mPart 1. Fencing off\x1b[0m"),
    (2.1, "\x1b[2m   0.00 s  \x1b[0m\x1b[1;35mA \x1b[0macquires a lock whose name is so long that the line is broken"),
    (60.0, "\x1b[1mPart 2. Fencing on\x1b[0m"),
    (60.1, "\x1b[1;32m  => done\x1b[0m"),
]


def test_a_recording_has_a_screen_for_each_part_and_no_long_gap() -> None:
    recording = script("recording")
    first, second = recording.screens(LINES)
    shown = ["".join(text for _, text in row.spans) for screen in (first, second) for row in screen.rows]
    assert shown == [
        "$ make demo",
        "Part 1. Fencing off",
        "   0.00 s  A acquires a lock whose name is so long that the",
        "             line is broken",
        "Part 2. Fencing on",
        "  => done",
    ]
    assert max(map(len, shown)) <= recording.COLUMNS
    assert first.rows[2].spans[:2] == [("d", "   0.00 s  "), ("b magenta", "A ")]
    assert second.rows[0].at == first.until == first.rows[2].at + recording.PAUSE + recording.HOLD
    assert ElementTree.fromstring(recording.svg([first, second])).get("role") == "img"


def test_a_recording_does_not_guess_what_a_control_code_means() -> None:
    with pytest.raises(SystemExit, match="not a colour"):
        script("recording").spans("\x1b[2Jcleared")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    for each in BOOK:
        each.write_text(with_tables(each.read_text("utf-8")), "utf-8")
