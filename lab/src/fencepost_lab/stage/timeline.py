"""A demo's output: sections in their order, each line as soon as its turn has come."""

import sys
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from fencepost_lab.stage.narrate import tell
from fencepost_lab.stage.worker import Fact

# What happens on a terminal is coloured by what it means: the harm, the refusal, the two workers.
_COLOURS = {"A": "magenta", "B": "cyan"}
_SHOWN = {"acquired", "read", "paused", "resumed", "accepted", "refused", "unanswered", "heeded", "released", "lost"}


class Timeline:
    """Sections that run at the same time and are printed one after the other; ``quiet`` prints nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(file=sys.stdout, quiet=quiet, soft_wrap=True, highlight=False)
        self._sections: list[Section] = []

    def section(self, title: str, *explanation: str) -> "Section":
        """A section after all those made before it."""
        section = Section(self)
        self._sections.append(section)
        section.write()
        section.write(title, "bold")
        for line in explanation:
            section.write(line)
        return section

    def print(self) -> None:
        """Print all lines whose turn has come."""
        while self._sections:
            first = self._sections[0]
            for text in first.waiting:
                self._console.print(text)
            first.waiting.clear()
            if not first.done:
                return
            del self._sections[0]


@dataclass(eq=False)
class Section:
    """One scenario's lines. Instants count from its first acquire."""

    timeline: Timeline
    waiting: list[Text] = field(default_factory=list)
    done: bool = False
    start: float | None = None

    def hear(self, fact: Fact) -> None:
        """Tell one of a worker's facts, if it is of interest here."""
        if fact["event"] not in _SHOWN or (fact["event"] == "read" and fact["of"] > 1):
            return
        if self.start is None:
            self.start = fact["at"]
        worker = fact["worker"]
        style = "bold yellow" if fact["event"] == "refused" else ""
        self._add(
            Text.assemble(
                (f"{fact['at'] - self.start:7.2f} s  ", "dim"),
                (f"{worker} ", f"bold {_COLOURS.get(worker, '')}"),
                (tell(fact), style),
            )
        )

    def note(self, text: str) -> None:
        """Explain what has just happened."""
        self._add(Text(f"{'':12}{text}", "dim italic"))

    def write(self, text: str = "", style: str = "") -> None:
        """A line of its own."""
        self._add(Text(text, style))

    def close(self, verdict: str, *, good: bool) -> None:
        """End the section with what it has shown."""
        self._add(Text(f"  => {verdict}", "bold green" if good else "bold red"))
        self.done = True
        self.timeline.print()

    def _add(self, text: Text) -> None:
        self.waiting.append(text)
        self.timeline.print()
