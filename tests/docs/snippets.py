"""Executes the fenced blocks of a Markdown document as its reader would, in a folder of their own.

    python -m tests.docs.snippets README.md

- `python` blocks share one namespace per document and may `await` at top level;
- `sh` blocks are scripts, `console` blocks hold `$ command` lines: each must exit 0, and the lines below a
  command must appear in its output in that order (`...` stands for anything);
- every other language, and a directive of the site such as `{toctree}`, is left alone; a fence without a language is
  an error, `text` says "not to be run".

A comment on the line above a block changes how it runs: `<!-- snippet: fresh -->` starts a new namespace,
`<!-- snippet: raises StaleToken -->` expects that error, `<!-- snippet: file test_it.py -->` writes the block to that
file instead, for the commands that follow. What a command started in the background is stopped when the document ends.
"""

import ast
import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND_SECONDS = 100  # only a failing document waits this long
RUN = frozenset({"python", "sh", "bash", "console"})


class BadSnippet(Exception):
    """A block that does not do what the document says; the message starts with `document:line`."""


@dataclass(frozen=True)
class Block:
    """One fenced block: `line` is the line of its first line of code, `mark` the words of its comment."""

    language: str
    code: str
    line: int
    mark: tuple[str, ...] = ()


def blocks(document: Path) -> Iterator[Block]:
    """The fenced blocks of `document`, in order."""
    fence, language, start, mark = "", "", 0, ""
    body: list[str] = []
    previous = ""
    for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
        if fence and line.strip() == fence:
            yield Block(language, "".join(f"{text}\n" for text in body), start, tuple(mark.split()))
            fence = ""
        elif fence:
            body.append(line)
        elif opening := re.match(r"\s*(`{3,}|~{3,})\s*(\{[\w-]+\}|[\w+-]*)", line):
            fence, language = opening.groups()
            start, body = number + 1, []
            comment = re.fullmatch(r"\s*<!--\s*snippet:\s*(.*?)\s*-->\s*", previous)
            mark = comment[1] if comment else ""
        previous = line
    if fence:
        raise BadSnippet(f"{document.name}:{start - 1}: the fence is never closed")


@dataclass
class Reader:
    """Follows one document to the letter, inside `folder`."""

    document: Path
    folder: Path
    namespace: dict[str, Any] = field(default_factory=dict)
    sessions: list[int] = field(default_factory=list)

    def run(self, block: Block) -> None:
        """Execute `block`; raises BadSnippet when it does not hold."""
        match block.language:
            case "":
                raise self.bad(block.line - 1, "the fence names no language; use `text` if it is not to be run")
            case "python":
                self.python(block)
            case "sh" | "bash":
                self.command(block.code, block.line, [])
            case "console":
                self.console(block)

    def python(self, block: Block) -> None:
        match block.mark:
            case () | ("fresh",):
                expected = None
            case ("raises", name):
                expected = name
            case ("file", name):
                (self.folder / name).write_text(block.code, "utf-8")
                return
            case _:
                raise self.bad(block.line - 2, f"unknown mark {' '.join(block.mark)!r}")
        if not self.namespace or block.mark == ("fresh",):
            self.namespace = {"__name__": "__main__"}
        padded = "\n" * (block.line - 1) + block.code
        try:
            code = compile(padded, self.document.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, self.namespace)
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception as error:
            if expected in {kind.__name__ for kind in type(error).__mro__}:
                return
            raise self.bad(self.failing_line(error, block), traceback.format_exc()) from error
        if expected:
            raise self.bad(block.line, f"{expected} was not raised")

    def failing_line(self, error: Exception, block: Block) -> int:
        if isinstance(error, SyntaxError) and error.filename == self.document.name and error.lineno:
            return error.lineno
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == self.document.name]
        return (frames[-1].lineno if frames else None) or block.line

    def console(self, block: Block) -> None:
        steps: list[tuple[int, list[str], list[str]]] = []
        for number, line in enumerate(block.code.splitlines(), block.line):
            if line.startswith("$ "):
                steps.append((number, [line[2:]], []))
            elif not steps:
                raise self.bad(number, "a console block starts with `$ command`")
            elif line.startswith("> ") and not steps[-1][2]:
                steps[-1][1].append(line[2:])
            else:
                steps[-1][2].append(line)
        for number, command, expected in steps:
            self.command("\n".join(command), number, expected)

    def command(self, script: str, line: int, expected: list[str]) -> None:
        # Output goes to a file, not a pipe: a service left in the background would hold a pipe open.
        with tempfile.TemporaryFile() as sink:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.sessions.append(process.pid)
            try:
                status = process.wait(COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                raise self.bad(line, f"still running after {COMMAND_SECONDS} s: {script}") from None
            sink.seek(0)
            output = sink.read().decode("utf-8", "replace")
        if status:
            raise self.bad(line, f"exit status {status}: {script}\n{output}")
        remaining = iter(output.splitlines())
        for wanted in filter(None, map(str.strip, expected)):
            pattern = ".*".join(map(re.escape, wanted.split("...")))
            if not any(re.search(pattern, text) for text in remaining):
                raise self.bad(line, f"the output has no line {wanted!r} (in this order)\n{output}")

    def bad(self, line: int, message: str) -> BadSnippet:
        return BadSnippet(f"{self.document.name}:{line}: {message}")

    def close(self) -> None:
        """Stop whatever the document's commands left running."""
        for session in self.sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)


def follow(document: Path, folder: Path) -> int:
    """Execute every block of `document` inside `folder`; the number executed. Raises BadSnippet."""
    reader = Reader(document, folder)
    try:
        todo = list(blocks(document))
        for block in todo:
            reader.run(block)
    finally:
        reader.close()
    return len([block for block in todo if block.language in RUN])


def main() -> None:
    """Follow each document named on the command line, each in a new folder with a home of its own."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    start = Path.cwd()
    for name in sys.argv[1:]:
        document = (start / name).resolve()
        with tempfile.TemporaryDirectory(prefix="snippets-") as folder:
            os.environ.update({"HOME": folder, "XDG_STATE_HOME": f"{folder}/state"})
            os.chdir(folder)
            try:
                count = follow(document, Path(folder))
            except BadSnippet as error:
                sys.exit(str(error))
            finally:
                os.chdir(start)
        print(f"{document.name}: {count} snippets executed")


if __name__ == "__main__":
    main()
