"""What an experiment found out: figures, tables and plots, and whether each claim held."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that was to be shown, whether it was, and what was seen."""

    text: str
    held: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of what was measured; ``note`` says how to read them."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture as SVG; ``caption`` says what it shows."""

    name: str
    caption: str
    svg: str


@dataclass(slots=True)
class Outcome:
    """An experiment's result. ``slo`` fills rows of the report's SLO table: row -> what was measured."""

    figures: dict[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    slo: dict[str, str] = field(default_factory=dict)

    def claim(self, text: str, held: bool, evidence: str) -> None:
        """Add a claim; ``evidence`` is what was seen, whether it held or not."""
        self.claims.append(Claim(text, bool(held), evidence))

    @property
    def ok(self) -> bool:
        """Whether something was claimed, and all of it held."""
        return bool(self.claims) and all(each.held for each in self.claims)

    def data(self) -> dict[str, Any]:
        """The outcome as JSON has it; a plot is named by its file."""
        return {
            "ok": self.ok,
            "claims": [asdict(each) for each in self.claims],
            "figures": self.figures,
            "tables": [asdict(each) for each in self.tables],
            "plots": [{"name": each.name, "caption": each.caption} for each in self.plots],
            "slo": self.slo,
        }
