"""A seeded world that runs the real core and the real rule: ``run(parse(scenario))`` gives its trace."""

from fencepost.lab.history import digest, lines
from fencepost.sim.run import run
from fencepost.sim.scenario import Scenario, Settings, parse

__all__ = ["Scenario", "Settings", "digest", "lines", "parse", "run"]
