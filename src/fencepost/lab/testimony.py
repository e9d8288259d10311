"""A history made of what the workers of a stage said, for the checks that every history gets.

The one who directs lets one access happen at a time, so the order of the answers is the order in which the
resource saw them, and an accepted write's version is its place in that order.
"""

from secrets import token_hex

from fencepost.lab.checks import Report, check
from fencepost.lab.history import FORMAT, Line
from fencepost.lab.worker import Fact

PROMISES = ("data", "order")


class Testimony:
    """The facts of one play, in the order they were told; its workers share the lock and the value called ``key``."""

    def __init__(self, title: str) -> None:
        self.title = title
        # The store may be one that somebody uses: nobody else's lock has this name.
        self.key = f"{title.replace(' ', '-')}-{token_hex(4)}"
        self.facts: list[Fact] = []

    def hear(self, fact: Fact) -> None:
        """Take down a worker's fact; ``Stage.actor`` calls it."""
        self.facts.append(fact)

    def of(self, *events: str, worker: str | None = None) -> list[Fact]:
        """The facts of these names, of one worker or of all."""
        return [each for each in self.facts if each["event"] in events and worker in (None, each["worker"])]

    def check(self) -> Report:
        """Hold the play to what a guarded resource promises."""
        return check(self.history())

    def history(self) -> list[Line]:
        """The play as ``fencepost check`` reads it. Instants count from its first fact."""
        start = min((fact["at"] for fact in self.facts), default=0.0)
        run = {"t": 0.0, "ev": "run", "format": FORMAT, "source": self.title, "lock": self.key, "key": self.key}
        lines: list[Line] = [run | {"promises": list(PROMISES)}]
        asked: dict[str, float] = {}
        leases: dict[str, Fact] = {}
        bases: dict[str, int] = {}
        version = 0
        for fact in self.facts:
            event, who, t = fact["event"], fact["worker"], round(fact["at"] - start, 6)
            lease = leases.get(who, {})
            said = {"t": t, "who": who, "token": lease.get("token"), "holder": lease.get("holder")}
            if event == "ready" and fact["step"] == "acquire":
                asked[who] = t
            elif event == "fault":
                lines.append({"t": t, "ev": "fault", "do": fact["do"], "who": who})
            elif event == "acquired":
                leases[who] = fact
                until = round(fact["since"] + fact["ttl"] - start, 6)
                grant = {"token": fact["token"], "holder": fact["holder"], "ttl": fact["ttl"]}
                lines.append(said | grant | {"ev": "acquired", "asked": asked.get(who, t), "until": until})
            elif event == "read":
                bases[who] = version
                lines.append(said | {"ev": "read", "value": fact["value"], "version": version})
            elif event == "accepted":
                version += 1
                wrote = said | {"value": fact["value"], "base": bases[who]}
                lines.append(wrote | {"ev": "access", "do": "write", "verdict": "admit", "version": version})
                lines.append(wrote | {"ev": "wrote", "outcome": "done"})
            elif event == "refused":
                why = {"outcome": "refused", "verdict": fact["verdict"], "seen": fact.get("seen")}
                kind = (
                    {"ev": "wrote", "value": None, "base": bases.get(who)}
                    if fact["step"] == "write"
                    else {"ev": "read"}
                )
                lines.append(said | kind | why)
            elif event in ("released", "lost"):
                lines.append(said | {"ev": "releasing"})
        return lines
