"""Plain English: words that STYLE.md replaces by others do not come back into code, messages and pages."""

import re
from pathlib import Path

from tests.docs.text import prose

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


ONE_WORD = {
    r"doorm[ae]n|gatekeepers?": "guard",
    r"place in (the|its|a) (queue|line)|(stand|stands|wait|waits) in line|waiting list|wait list": "queue entry, queue",
    r"high-?water marks?|watermarks?": "mark",
    r"fence tokens?|lock tokens?|lock ids?|fencing (ids?|numbers?)|lock versions?": "token",
    r"lock owners?|lock holders?|owner of the lock": "holder",
    r"lease times?|lease timeouts?|lock timeouts?|expiry times?|expiration times?|TTLs?": "ttl",
    r"acquire timeouts?|acquisition timeouts?|wait timeouts?": "timeout",
    r"watchdogs?|heartbeats?|auto-?extend\w*": "renewal, renew",
    r"ghosts?|undead": "zombie",
    r"sequencers?|sequence tokens?": "token, seq",
    r"reigns?|mandates?": "term",
    r"theatre": "say what it does not protect",
}
"""The glossary's one word for each thing, instead of these. The glossary itself names the words of others."""
SYNONYMS = re.compile(rf"\b({'|'.join(ONE_WORD)})\b")
GLOSSARY = ROOT / "docs" / "start" / "glossary.md"
DESIGN = {
    "lock", "lease", "token", "holder", "ttl", "deadline", "timeout", "lost", "backend",
    "resource", "guard", "stamp", "seq", "mark", "verdict", "admit", "stale", "late",
    "clash", "replay", "missing", "election", "term", "listener", "pool", "channel", "session",
    "queue", "waiter",
}  # fmt: skip
"""The words that the design fixes; each has an entry."""


def pages() -> list[Path]:
    """What readers of the site read, without the lab's report, which is made in one run, and the book's quotations."""
    found = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return sorted(path for path in found if path != GLOSSARY and ROOT / "docs" / "lab" not in path.parents)


def test_each_thing_has_one_word() -> None:
    odd = [
        f"{path.relative_to(ROOT)}: {match[0]!r}; say {better(match[0])}"
        for path in pages()
        for match in SYNONYMS.finditer(re.sub(r"(`+).*?\1", "", prose(path), flags=re.DOTALL))
    ]
    assert not odd, "\n".join(odd)


def better(word: str) -> str:
    return next(other for pattern, other in ONE_WORD.items() if re.fullmatch(pattern, word))


def test_the_glossary_has_every_word_of_the_design() -> None:
    entries = re.findall(r"^([a-z, ]+)\n: ", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    known = {word.strip() for entry in entries for word in entry.split(",")}
    assert DESIGN - known == set()


def test_a_synonym_would_be_found() -> None:
    assert [match[0] for match in SYNONYMS.finditer("The doorman keeps a high-water mark for each lock holder.")] == [
        "doorman",
        "high-water mark",
        "lock holder",
    ]
    assert SYNONYMS.search("a holder, its mark and the ttl") is None
