"""``run(scenario)``: the trace of one run, a pure function of the scenario."""

import logging
import threading
from typing import Any

from fencepost_lab.history.format import FORMAT, Line
from fencepost_lab.sim.client import Client
from fencepost_lab.sim.network import Network
from fencepost_lab.sim.resource import Resource
from fencepost_lab.sim.scenario import CLIENT_ACTIONS, Scenario
from fencepost_lab.sim.service import Service
from fencepost_lab.sim.world import Node, World

LOCK = KEY = "counter"


def run(scenario: Scenario) -> list[Line]:
    """Everything that happens, in order. The same scenario gives the same trace, byte for byte."""
    with quiet:
        return Run(scenario).trace()


class _Quiet:
    """Keeps the library's log to itself: what it warns of is in the trace. One run at a time."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._log = logging.getLogger("fencepost")
        self._level = 0

    def __enter__(self) -> None:
        self._gate.acquire()
        self._level = self._log.level
        self._log.setLevel(logging.CRITICAL + 1)

    def __exit__(self, *_: object) -> None:
        self._log.setLevel(self._level)
        self._gate.release()


quiet = _Quiet()


class Run:
    """One world, put together from a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        settings = scenario.settings
        self.world = world = World(scenario.seed, shuffle=settings.shuffle)
        low, high = settings.delay
        self.network = Network(world, delay=(low, high), loss=settings.loss, duplicate=settings.duplicate)
        self.service = Service(world, self.network, settings, LOCK)
        self.resource = Resource(Node(world, "resource"), self.network, self.service, settings.fencing, KEY)
        self.clients: dict[str, Client] = {}
        for name in settings.clients:
            # Clients of the embedded store share a host, and so its clock.
            apart = settings.offsets and settings.backend != "embedded"
            node = Node(world, name, offset=world.rng.uniform(0.0, 1000.0) if apart else 0.0)
            self.clients[name] = Client(node, self.network, self.service, self.resource, settings)
        world.tell(
            "run",
            format=FORMAT,
            source="sim",
            lock=LOCK,
            key=KEY,
            clients=list(settings.clients),
            service=list(self.service.nodes),
            promises=promises(scenario),
            counter=True,
            ttl=settings.ttl,
            grace=round(settings.ttl / 2, 6),
            scenario=scenario.data(),
        )
        for action in scenario.actions:
            world.plan(action["at"], self._act, action)

    def trace(self) -> list[Line]:
        world = self.world
        world.run(self.scenario.until)
        self.network.end()
        opinion = self.service.opinion()
        mark = self.resource.mark
        world.tell(
            "end",
            holder=opinion.holder if opinion else None,
            token=opinion.token if opinion else None,
            mark=mark.token if mark else None,
            value=self.resource.value,
            version=self.resource.version,
            **self.resource.counts,
            waiting=self.service.waiting(),
            unfinished={client.who: client.rounds for client in self.clients.values() if client.rounds},
            lines=len(world.trace),
        )
        for client in self.clients.values():
            client.node.up = False
            client.end()
        return world.trace

    # Actions.

    def _act(self, action: dict[str, Any]) -> None:
        do, who = action["do"], action.get("who")
        if who == "holder":
            opinion = self.service.opinion()
            if opinion is None:
                return
            who = opinion.holder.rstrip("0123456789")
            action = {**action, "who": who}
        if do in CLIENT_ACTIONS:
            self._tell_client(self.clients[str(who)], action)
            return
        self.world.tell(
            "fault" if do != "note" else "note", **{key: value for key, value in action.items() if key != "at"}
        )
        if do != "note":
            getattr(self, "_" + do)(who, action)

    def _tell_client(self, client: Client, action: dict[str, Any]) -> None:
        if action["do"] == "slow":
            self.network.slow[client.who] = action.get("by", 0.0)
        elif client.node.up:
            # A paused client was about to do this when it stopped: it comes first when it wakes.
            client.node.perform(client.perform, (action,), foreground=True)

    def _nodes(self, who: str | None) -> list[Node]:
        if who == "resource":
            return [self.resource.node]
        if who in self.clients:
            return [self.clients[who].node]
        names = self.service.nodes if who in (None, "service") else (who,)
        return [self.service.store(str(name)).node for name in names]

    def _pause(self, who: str, action: dict[str, Any]) -> None:
        for node in self._nodes(who):
            if node.up and not node.paused:
                node.pause()
                seconds = action.get("for", 1.0)
                if seconds is not None:
                    self.world.at(self.world.now + seconds, None, self._wake, node, node.life)

    def _wake(self, node: Node, life: int) -> None:
        if node.life == life and node.paused:
            self.world.tell("fault", do="resume", who=node.name)
            node.resume()

    def _resume(self, who: str, action: dict[str, Any]) -> None:
        for node in self._nodes(who):
            if node.paused:
                node.resume()

    def _kill(self, who: str, action: dict[str, Any]) -> None:
        if who in self.clients:
            if self.clients[who].node.up:
                self.clients[who].kill()
                self.service.died(who)
        elif who == "resource":
            self.resource.node.kill()
        else:
            for node in self._nodes(who):
                if node.up:
                    self.service.store(node.name).kill()

    def _restart(self, who: str, action: dict[str, Any]) -> None:
        for node in self._nodes(who):
            if node.up:
                continue
            if who in self.clients:
                node.restart()
                self.clients[who].boot()
            elif who == "resource":
                node.restart()
            else:
                self.service.store(node.name).restart(action.get("tail", 0.0))

    def _links(self, who: str, action: dict[str, Any]) -> list[tuple[str, str]]:
        mine = [node.name for node in self._nodes(who)]
        other = action.get("from", "all")
        everyone = [*self.clients, *self.service.nodes, "resource"]
        theirs = everyone if other == "all" else [node.name for node in self._nodes(other)]
        way = action.get("way", "both")
        pairs = [(a, b) for a in mine for b in theirs if a != b]
        out = pairs if way in ("both", "out") else []
        return out + ([(b, a) for a, b in pairs] if way in ("both", "in") else [])

    def _cut(self, who: str, action: dict[str, Any]) -> None:
        links = self._links(who, action)
        for src, dst in links:
            self.network.cut(src, dst)
        if action.get("for") is not None:
            self.world.at(self.world.now + action["for"], None, self._mend, who, links)

    def _mend(self, who: str, links: list[tuple[str, str]]) -> None:
        self.world.tell("fault", do="heal", who=who)
        for src, dst in links:
            self.network.heal(src, dst)

    def _heal(self, who: str | None, action: dict[str, Any]) -> None:
        if who is None:
            self.network.heal_all()
        else:
            for src, dst in self._links(who, action):
                while (src, dst) in self.network.cuts:
                    self.network.heal(src, dst)

    def _skew(self, who: str, action: dict[str, Any]) -> None:
        for node in self._nodes(who):
            self._set_rate(node, action.get("rate", 1.0))

    def _set_rate(self, node: Node, rate: float) -> None:
        store = self.service.stores.get(node.name)
        if store is not None:
            store.skew(rate)
        else:
            node.skew(rate)

    def _jump(self, who: str, action: dict[str, Any]) -> None:
        for node in self._nodes(who):
            if node.name in self.service.stores:
                self.service.stores[node.name].jump(action.get("by", 0.0))
            else:
                node.shift += action.get("by", 0.0)

    def _failover(self, who: str | None, action: dict[str, Any]) -> None:
        for node in self._nodes(who):
            self.service.failover(node.name, action.get("lag", 0.0), action.get("offset", 0.0))

    def _lose(self, who: str | None, action: dict[str, Any]) -> None:
        for node in self._nodes(who):
            self.service.store(node.name).lose()

    def _evict(self, who: str | None, action: dict[str, Any]) -> None:
        self.service.evict()

    def _calm(self, who: str | None, action: dict[str, Any]) -> None:
        """Stop every fault and heal everything: from here on the system has to get on with its work."""
        self.network.heal_all()
        self.network.loss = self.network.duplicate = 0.0
        for node in [*(client.node for client in self.clients.values()), self.resource.node, *self._stores()]:
            if node.paused:
                node.resume()
            if not node.up:
                self._restart(node.name, {})
            if node.rate != 1.0:
                self._set_rate(node, 1.0)

    def _stores(self) -> list[Node]:
        return [store.node for store in self.service.stores.values()]


UNREACHABLE = {"pause", "kill", "cut", "restart", "failover", "lose", "slow", "skew", "jump"}
"""After these a client may be unable to take back what it asked for; its ttl does that then."""


def promises(scenario: Scenario) -> list[str]:
    """What must hold in this run, whatever happens; a check holds the trace to it. ``checks.PROMISES`` says what each
    means.
    """
    settings = scenario.settings
    done = {action["do"] for action in scenario.actions}
    at_store = {a["do"] for a in scenario.actions if a.get("who") not in (*settings.clients, "resource")}
    volatile = settings.backend in ("redis", "redlock")
    forgets = bool(at_store & {"failover", "lose", "kill"}) if volatile else "lose" in at_store
    clocks = "skew" in done or (volatile and "jump" in at_store)
    kept = ["told"]
    by_hand = bool(done & {"acquire", "read", "write", "release"})  # what people do comes in any order
    if "skew" not in done and not by_hand:
        kept.append("loss")
    if settings.fencing == "enter":
        kept.append("data")
        if not by_hand:
            kept.append("inside")
    if settings.backend != "redlock":  # which has no queue, and frees node by node
        kept.append("turns")
        if not forgets:
            kept.append("once")
            if settings.release == "conditional":
                kept.append("freed")
    if settings.backend == "embedded" or not (done & UNREACHABLE or settings.loss):
        kept.append("leaves")
    if "calm" in done:
        kept.append("live")
    if not forgets and not (settings.backend == "redlock" and clocks):
        kept.append("order")
    if not forgets:
        kept.append("left")
        if not clocks:
            kept.append("deadline")
    if settings.release == "conditional":
        kept.append("owner")
        if not forgets and not clocks and "evict" not in done:
            kept.append("exclusion")
    return kept
