"""The experiments: NAME.toml says what is asked and with which parameters, NAME.py's ``run`` finds the answer.

The full parameters are those of ``[full]``; a quick run replaces those that ``[quick]`` names. ``own`` says why
an experiment starts servers of its own, so that it cannot use those of others; ``only`` names the stores it is about.
"""

import difflib
import importlib
import tomllib
from collections.abc import Callable, Iterable, Sequence
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
    own: str = ""
    only: Sequence[str] = ()

    def settings(self, *, quick: bool = False, backends: Sequence[str] = ()) -> Settings:
        """Its parameters, with these stores, by name or URL, if there are any; ConfigError if it cannot use them."""
        chosen = self.full | (self.quick if quick else {})
        if backends:
            if self.own:
                raise ConfigError(
                    f"experiment {self.name!r} starts servers of its own: {self.own}; run it without --backend"
                )
            from fencepost_lab.servers.stores import kind  # only here: a list of experiments needs no servers

            fit = [each for each in backends if not self.only or kind(each) in self.only]
            if not fit:
                names = " or ".join(self.only)
                raise ConfigError(f"experiment {self.name!r} is about {names}; give --backend the name or URL of one")
            chosen |= {"backends": fit}
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
            bound = {"own": facts.get("own", ""), "only": facts.get("only", ())}
            found.append(
                Experiment(facts["number"], name, **prose, full=facts["full"], quick=facts.get("quick", {}), **bound)
            )
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


def fitting(names: Sequence[str], backends: Sequence[str]) -> tuple[list[Experiment], dict[str, str]]:
    """The experiments of these names, and of ``all`` those that can use these stores; why the others cannot.

    ConfigError if one that was named by itself cannot, or none is left.
    """
    fit, left = [], {}
    for each in chosen(names):
        try:
            each.settings(backends=backends)
        except ConfigError as error:
            if each.name in names:
                raise
            left[each.name] = str(error)
        else:
            fit.append(each)
    if not fit:
        raise ConfigError("; ".join(left.values()))
    return fit, left
