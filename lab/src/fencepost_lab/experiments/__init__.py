"""The experiments: NAME.toml says what is asked and with which parameters, NAME.py's ``run`` finds the answer.

The full parameters are those of ``[full]``; a quick run replaces those that ``[quick]`` names.
"""

import difflib
import importlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from fencepost.errors import ConfigError

if TYPE_CHECKING:
    from fencepost_lab.experiments.context import Context
    from fencepost_lab.report.outcome import Outcome

Settings: TypeAlias = dict[str, Any]
"""An experiment's parameters, as its TOML file names them."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment, as its TOML file describes it."""

    number: int
    name: str
    question: str
    claim: str
    setup: str
    meaning: str
    full: Settings
    quick: Settings

    def settings(self, *, quick: bool = False, backend: str | None = None) -> Settings:
        """Its parameters; ConfigError if it is bound to its own stores and ``backend`` names another."""
        chosen = self.full | (self.quick if quick else {})
        if backend is not None:
            if "backends" not in self.full:
                raise ConfigError(f"experiment {self.name!r} chooses its own stores; run it without --backend")
            chosen |= {"backends": [backend]}
        return chosen

    def run(self, settings: Settings, context: "Context") -> "Outcome":
        """Find the answer; raises FencepostError if it cannot be found."""
        module = importlib.import_module(f"{__name__}.{self.name.replace('-', '_')}")
        run: Callable[[Settings, Context], Outcome] = module.run
        return run(settings, context)


def experiments() -> list[Experiment]:
    """All experiments, by number."""
    found = []
    for file in files(__name__).iterdir():
        if file.name.endswith(".toml"):
            facts = tomllib.loads(file.read_text("utf-8"))
            name = file.name.removesuffix(".toml").replace("_", "-")
            prose = {key: " ".join(facts[key].split()) for key in ("question", "claim", "setup", "meaning")}
            found.append(Experiment(facts["number"], name, **prose, full=facts["full"], quick=facts.get("quick", {})))
    return sorted(found, key=lambda each: each.number)


def chosen(names: Iterable[str]) -> list[Experiment]:
    """The experiments of these names, or all for ``all``, by number; ConfigError if there is none of that name."""
    known = {each.name: each for each in experiments()}
    wanted = set()
    for name in names:
        if name != "all" and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)} and all"
            raise ConfigError(f"there is no experiment {name!r}; {hint}")
        wanted |= set(known) if name == "all" else {name}
    return [each for each in known.values() if each.name in wanted]
