"""Plain English: words that STYLE.md replaces by others do not come back into code, messages and pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
INSTEAD = {
    r"anew": "again",
    r"for ever": "forever, or say until when",
    r"(not|cannot be|can be) had": "acquired, opened, reached: say how",
    r"in vain": "say what did not happen",
    r"to be had": "name who gives it, or say: is free, can be started",
    r"whoever": "name the actor: the holder, the client, the waiter",
    r"(no|some)body's": "name the owner",
    r"the one who": "name the actor",
    r"mend(s|ed|ing)?": "fix, repair, heal",
    r"laboratory": "lab",
    r"thrice|hither|whence|lest": "plain words",
}
WORDS = re.compile(rf"\b({'|'.join(INSTEAD)})\b", re.IGNORECASE)
SEEN = {".py", ".lua", ".sql", ".md", ".tla"}


def texts() -> list[Path]:
    """All that readers and users see. What the lab's experiments say is part of a report that is made in one run."""
    folders = [ROOT / name for name in ("src", "lab/src", "docs", "examples", "deploy", "bench", ".github")]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in SEEN]
    found += ROOT.glob("*.md")
    skipped = (ROOT / "docs" / "lab", ROOT / "lab/src/fencepost_lab/experiments")
    return sorted(path for path in found if not any(path.is_relative_to(folder) for folder in skipped))


def test_the_texts_are_plain_english() -> None:
    odd = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}; {hint(match[0])}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in WORDS.finditer(line)
    ]
    assert not odd, "\n".join(odd)


def hint(word: str) -> str:
    return next(better for pattern, better in INSTEAD.items() if re.fullmatch(pattern, word, re.IGNORECASE))


def test_the_check_finds_what_it_looks_for() -> None:
    assert [match[0] for match in WORDS.finditer("Whoever waits for ever mends it anew, in somebody's name.")] == [
        "Whoever",
        "for ever",
        "mends",
        "anew",
        "somebody's",
    ]
    assert WORDS.search("a recommended amendment renews forever") is None
    assert len(texts()) > 300
