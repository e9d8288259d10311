"""A history made of what the workers said, for the checks that every history gets.

The experiment lets one access happen at a time, so the order of the answers is the order in which the
resource saw them, and an accepted write's version is its place in that order.
"""

from collections.abc import Sequence
from secrets import token_hex

from fencepost_lab.history.checks import Report, check
from fencepost_lab.history.format import FORMAT, Line
from fencepost_lab.stage.worker import Fact

PROMISES = ("data", "order")


class Record:
    """The facts of one run, in the order they were told; its workers share the lock and the value called ``key``."""

    def __init__(self, title: str, promises: Sequence[str] = PROMISES) -> None:
        self.title = title
        self.promises = list(promises)
        # The store may be one that somebody uses: nobody else's lock has this name.
        self.key = f"{title.replace(' ', '-')}-{token_hex(4)}"
        self.facts: list[Fact] = []

    def hear(self, fact: Fact) -> None:
        """Take down a worker's fact; ``Processes.worker`` calls it."""
        self.facts.append(fact)

    def of(self, *events: str, worker: str | None = None) -> list[Fact]:
        """The facts of these names, of one worker or of all."""
        return [each for each in self.facts if each["event"] in events and worker in (None, each["worker"])]

    def check(self) -> Report:
        """Hold the run to what a guarded resource promises."""
        return check(self.history())

    def history(self) -> list[Line]:
        """The run as ``fencepost check`` and ``fencepost sim --play`` read it."""
        run = {"t": 0.0, "ev": "run", "format": FORMAT, "source": self.title, "lock": self.key, "key": self.key}
        writer = _Writer([run | {"promises": self.promises}], min((fact["at"] for fact in self.facts), default=0.0))
        for fact in self.facts:
            writer.write(fact)
        # Each worker tells its facts in order; those of two may come in another order than they happened.
        return sorted(writer.lines, key=lambda line: float(line["t"]))


class _Writer:
    """Writes facts down as lines of a history; instants count from ``start``."""

    def __init__(self, lines: list[Line], start: float) -> None:
        self.lines = lines
        self._start = start
        self._asked: dict[str, float] = {}
        self._leases: dict[str, Fact] = {}
        self._bases: dict[str, int] = {}
        self._sent: dict[str, Fact] = {}
        self._version = 0
        self._mark = 0

    def write(self, fact: Fact) -> None:
        who, t = fact["worker"], self._instant(fact["at"])
        lease = self._leases.get(who, {})
        said = {"t": t, "who": who, "token": lease.get("token"), "holder": lease.get("holder")}
        if "seq" in fact:
            said["seq"] = fact["seq"]
        match fact["event"]:
            case "ready" if fact["step"] == "acquire":
                self._asked[who] = t
            case "fault":
                self.lines.append({"t": t, "ev": "fault", "do": fact["do"], "who": who})
            case "acquired":
                self._leases[who] = fact
                grant = {name: fact[name] for name in ("token", "holder", "ttl")}
                asked, until = self._asked.get(who, t), self._instant(fact["since"] + fact["ttl"])
                self.lines.append(said | grant | {"ev": "acquired", "asked": asked, "until": until})
            case "read":
                self._bases[who] = self._version
                if fact["fenced"]:
                    self._mark = max(self._mark, fact["token"])
                judged = {"do": "enter" if fact["fenced"] else "read", "verdict": "admit", "mark": self._mark or None}
                self.lines.append(said | judged | {"ev": "access"})
                self.lines.append(said | {"ev": "read", "value": fact["value"], "version": self._version})
            case "sent":
                self._sent[who] = fact | {"base": self._bases[who]}
            case "unanswered":
                wrote = {"value": fact["value"], "base": self._bases[who], "outcome": "unknown"}
                self.lines.append(said | wrote | {"ev": "wrote", "asked": self._instant(self._sent[who]["at"])})
            case "arrived":
                self._arrived(said, self._sent[who], fact)
            case "accepted":
                self._accepted(said, fact, self._bases[who])
                wrote = {"value": fact["value"], "base": self._bases[who]}
                self.lines.append(said | wrote | {"ev": "wrote", "outcome": "done"})
            case "refused":
                judged = {"do": "write" if fact["step"] == "write" else "enter", "mark": fact.get("seen")}
                wrote = {"value": None, "base": self._bases.get(who)} if fact["step"] == "write" else {}
                self.lines.append(said | judged | wrote | {"ev": "access", "verdict": fact["verdict"]})
                why = {"outcome": "refused", "verdict": fact["verdict"], "seen": fact.get("seen")}
                self.lines.append(said | wrote | why | {"ev": "wrote" if wrote else "read"})
            case "heeded":
                self.lines.append(said | {"ev": "heeded"})
                self.lines.append(said | {"ev": "releasing"})
            case "released" | "lost":
                self.lines.append(said | {"ev": "releasing"})

    def _accepted(self, said: Line, fact: Fact, base: int) -> None:
        corrupt = fact["token"] < self._mark
        self._version += 1
        self._mark = max(self._mark, fact["token"])
        harm = {"corrupt": corrupt, "overwrote": self._version - 1 - base}
        made = {"do": "write", "verdict": "admit", "mark": self._mark, "version": self._version}
        self.lines.append(said | {"value": fact["value"], "base": base} | made | harm | {"ev": "access"})

    def _arrived(self, said: Line, sent: Fact, fact: Fact) -> None:
        """The resource has judged a write from whose writer nothing was heard since it was sent."""
        if "seq" in sent:
            said = said | {"seq": sent["seq"]}
        if fact["verdict"] == "admit":
            self._accepted(said, sent, sent["base"])
        else:
            judged = {"do": "write", "verdict": fact["verdict"], "mark": fact["seen"]}
            self.lines.append(said | judged | {"value": None, "base": sent["base"], "ev": "access"})

    def _instant(self, at: float) -> float:
        return round(at - self._start, 6)
