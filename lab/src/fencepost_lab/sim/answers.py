"""What the page asks of the simulator. The server answers by it, and so does Python inside the page."""

import json

from fencepost.errors import ConfigError
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import lines, parse_lines
from fencepost_lab.sim.chaos import chaos
from fencepost_lab.sim.run import run
from fencepost_lab.sim.scenario import parse


def answer(what: str, body: str | bytes) -> str:
    """The answer to one question, as text; ConfigError if it cannot be answered.

    run    a scenario as JSON: its trace, as JSON lines
    seed   a number: the scenario of that seed of the seeded tests, as JSON
    check  a history as JSON lines: the report of ``fencepost check``, as JSON
    """
    if what == "run":
        return lines(run(parse(body)))
    if what == "seed":
        text = body.decode() if isinstance(body, bytes) else body
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**63):
            raise ConfigError(f"a seed is an integer from 0 up to 2^63, not {text[:30]!r}")
        return json.dumps(chaos(int(text)).data())
    if what == "check":
        return json.dumps(check(parse_lines(body, "the history")).data())
    raise ConfigError(f"there is no question {what!r}")


def attempt(what: str, body: str) -> tuple[bool, str]:
    """``answer``, for callers that cannot catch Python's errors: whether there is one, and it or the reason."""
    try:
        return True, answer(what, body)
    except ConfigError as error:
        return False, str(error)
