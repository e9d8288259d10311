"""A seeded world that runs the real core and the real rule: ``run(parse(scenario))`` gives its trace."""

from fencepost_lab.history.format import digest, lines
from fencepost_lab.sim.run import run
from fencepost_lab.sim.scenario import Scenario, Settings, parse

__all__ = ["Scenario", "Settings", "digest", "lines", "parse", "run"]
