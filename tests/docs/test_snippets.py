"""What the documents show is what happens: every snippet is executed."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from _pytest.mark import ParameterSet

from fencepost_lab.servers.processes import ENDED, state_of
from tests import ROOT
from tests.docs.snippets import RUN, BadSnippet, blocks, follow
from tests.harness.child import Child
from tests.harness.servers import shared
from tests.harness.waiting import until

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")])


_SLOW = (
    "advise",
    "contend",
    "cron",
    "django",
    "fastapi",
    "flask",
    "fleet",
    "lab",
    "operate/monitoring",
    "prefork",
    "reference/history",
    "resource",
    "rollout",
    "run",
    "sqlalchemy",
    "start/choosing",
    "start/install",
    "start/tutorial",
    "testing",
    "ttl",
)
SLOW = {*(ROOT / "docs" / f"{name}.md" for name in _SLOW), ROOT / "lab" / "README.md"}
"""Documents whose commands take seconds."""
OF_THE_LAB = {ROOT / "docs" / "lab.md", ROOT / "lab" / "README.md"}
"""Documents that run experiments: they are tested with those."""
_ON_REDIS = {"celery": 11, "apscheduler": 12, "migration": 13, "clients": 14}
ON_REDIS = {ROOT / "docs" / f"{name}.md": number for name, number in _ON_REDIS.items()}
"""Documents that find a Redis server in $REDIS_URL, each with a database of its own."""


def _each(document: Path) -> ParameterSet:
    marks = [pytest.mark.slow] if document in SLOW else []
    marks += [pytest.mark.experiment] if document in OF_THE_LAB else []
    marks += [pytest.mark.redis] if document in ON_REDIS else []
    return pytest.param(document, id=str(document.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("document", [_each(document) for document in DOCUMENTS])
def test_every_snippet_of_a_document_holds(document: Path) -> None:
    if not any(block.language in {"", *RUN} for block in blocks(document)):
        return  # nothing to run: the fences are right
    kept = [f"{name}={value}" for name, value in os.environ.items() if not name.startswith("FENCEPOST_")]
    if database := ON_REDIS.get(document):
        kept.append(f"REDIS_URL={urlsplit(shared('redis').url)._replace(path=f'/{database}').geturl()}")
    command = ["env", "-i", *kept, sys.executable, "-m", "tests.docs.snippets", document]
    with Child(command, stdin=subprocess.DEVNULL, merged=True) as reader:
        if reader.wait(110):
            pytest.fail("\n".join(reader.output), pytrace=False)


def page(folder: Path, text: str) -> Path:
    """A document made of `text`, with ''' standing for the fence."""
    path = folder / "page.md"
    path.write_text(textwrap.dedent(text).replace("'''", "```"), "utf-8")
    return path


def test_python_blocks_share_a_namespace_and_may_await(tmp_path: Path) -> None:
    text = """
        '''python
        import asyncio
        answer = 42
        '''

        '''python
        await asyncio.sleep(0)
        assert answer == 42
        '''

        <!-- snippet: fresh -->
        '''python
        assert "answer" not in globals()
        '''

        <!-- snippet: raises LookupError -->
        '''python
        {}["missing"]
        '''

        '''text
        not to be run
        '''

        <!-- snippet: file made.py -->
        '''python
        raise SystemExit("not here")
        '''
        """
    assert follow(page(tmp_path, text), tmp_path) == 5
    assert (tmp_path / "made.py").read_text() == 'raise SystemExit("not here")\n'


def test_a_command_must_succeed_and_print_what_is_shown(tmp_path: Path) -> None:
    text = """
        '''console
        $ printf 'one\\ntwo 17\\nthree\\n'
        one
        two ...
        $ echo continued \\
        > here | tee made.txt
        continued here
        '''

        '''sh
        test -s made.txt
        '''
        """
    assert follow(page(tmp_path, text), tmp_path) == 2


def test_what_a_command_left_in_the_background_is_stopped(tmp_path: Path) -> None:
    text = """
        '''console
        $ sleep 300 & echo $! > pid
        '''
        """
    follow(page(tmp_path, text), tmp_path)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: state_of(pid) in ENDED, f"the end of process {pid}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("'''python\n\n1 / 0\n'''", r"page\.md:3: (.|\n)*ZeroDivisionError"),
        ("'''python\ndef broken(\n'''", r"page\.md:2: (.|\n)*SyntaxError"),
        ("'''python\nopen('nowhere')\n'''", r"page\.md:2: (.|\n)*FileNotFoundError"),
        ("<!-- snippet: raises KeyError -->\n'''python\npass\n'''", r"page\.md:3: KeyError was not raised"),
        ("<!-- snippet: skip -->\n'''python\npass\n'''", r"page\.md:1: unknown mark 'skip'"),
        ("text\n\n'''console\n$ true\n$ exit 3\n'''", r"page\.md:5: exit status 3"),
        ("'''console\n$ echo two\none\n'''", r"page\.md:2: the output has no line 'one'"),
        ("'''console\necho\n'''", r"page\.md:2: a console block starts with"),
        ("'''sh\nfalse\ntrue\n'''", r"page\.md:2: exit status 1"),
        ("'''\nno language\n'''", r"page\.md:1: the fence names no language"),
        ("'''python\npass\n", r"page\.md:1: the fence is never closed"),
    ],
)
def test_a_bad_snippet_fails_with_document_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(BadSnippet, match=complaint):
        follow(page(tmp_path, text), tmp_path)
