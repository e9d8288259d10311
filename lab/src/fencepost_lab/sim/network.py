"""The network between the machines: messages are delayed, lost, repeated, reordered and cut off."""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from fencepost.errors import BackendError
from fencepost_lab.sim.driver import Virtual, Wakeup
from fencepost_lab.sim.world import Node, World


class Message(NamedTuple):
    """One message. A reply names the request that it answers; a wake-up push answers nothing."""

    id: int
    src: str
    dst: str
    what: str
    body: Any
    token: int | None
    answers: int | None
    copy: int = 0


class Network:
    """Carries messages between named machines.

    Each message takes a delay of its own, so later ones overtake earlier ones. A request that the
    network repeats is handled twice, but only its first copy is answered: its sender keeps
    the other answer.
    """

    def __init__(self, world: World, *, delay: tuple[float, float], loss: float, duplicate: float) -> None:
        self.world = world
        self.delay = delay
        self.loss = loss
        self.duplicate = duplicate
        self.slow: dict[str, float] = {}
        """Extra delay of the next message that a machine sends, by name."""
        self._nodes: dict[str, tuple[Node, Callable[[Message], None]]] = {}
        self.cuts: dict[tuple[str, str], int] = {}
        self._ids = count(1)
        self._flying: dict[tuple[int, int], tuple[Message, float]] = {}

    def join(self, node: Node, receive: Callable[[Message], None]) -> None:
        """Add a machine; ``receive`` is called on it for each message."""
        self._nodes[node.name] = (node, receive)

    def cut(self, src: str, dst: str) -> None:
        """Let nothing pass from one machine to another."""
        self.cuts[src, dst] = self.cuts.get((src, dst), 0) + 1

    def heal(self, src: str, dst: str) -> None:
        """Take back one cut."""
        left = self.cuts.get((src, dst), 0) - 1
        if left > 0:
            self.cuts[src, dst] = left
        else:
            self.cuts.pop((src, dst), None)

    def heal_all(self) -> None:
        self.cuts.clear()

    def send(
        self, src: str, dst: str, what: str, body: Any, *, token: int | None = None, answers: int | None = None
    ) -> int:
        """Send a message; its number."""
        world, rng = self.world, self.world.rng
        message = Message(next(self._ids), src, dst, what, body, token, answers)
        extra = self.slow.pop(src, 0.0)
        lost = self.loss > 0 and rng.random() < self.loss
        copies = 2 if self.duplicate > 0 and not lost and rng.random() < self.duplicate else 1
        delay = rng.uniform(*self.delay) + extra
        for copy in range(copies):
            if copy:
                delay += rng.expovariate(1.0)  # it may come much later, never first
            self._flying[message.id, copy] = (message, world.now)
            fate = "lost" if lost else "cut" if (src, dst) in self.cuts else ""
            world.at(world.now + delay, None, self._arrive, message, copy, fate)
        return message.id

    def _arrive(self, message: Message, copy: int, fate: str) -> None:
        _, sent = self._flying.pop((message.id, copy))
        node, receive = self._nodes[message.dst]
        if not fate:
            cut = (message.src, message.dst) in self.cuts
            fate = "cut" if cut else "arrived" if node.up else "down"
        self._tell(message, sent, copy, fate)
        if fate == "arrived":
            node.soon(receive, message._replace(copy=copy) if copy else message)

    def _tell(self, message: Message, sent: float, copy: int, fate: str) -> None:
        facts: dict[str, Any] = {"id": message.id, "src": message.src, "dst": message.dst, "what": message.what}
        if message.token is not None:
            facts["token"] = message.token
        if message.answers is not None:
            facts["answers"] = message.answers
        if copy:
            facts["copy"] = copy
        self.world.tell("message", **facts, sent=round(sent, 6), fate=fate)

    def end(self) -> None:
        """Tell of the messages that are still on their way."""
        for (_, copy), (message, sent) in self._flying.items():
            self._tell(message, sent, copy, "flying")


class Channel:
    """A client's end of the network: requests, their answers, and pushes."""

    def __init__(self, network: Network, driver: Virtual, patience: float) -> None:
        self._network = network
        self._driver = driver
        self._patience = patience
        self._asked: dict[int, Wakeup] = {}
        self.pushed: Callable[[Message], None] = lambda message: None

    def receive(self, message: Message) -> None:
        """An answer or a push has come."""
        if message.answers is None:
            self.pushed(message)
        elif wakeup := self._asked.pop(message.answers, None):
            wakeup.fire(message.body)

    async def ask(self, dst: str, what: str, *body: Any, token: int | None = None) -> Any:
        """The answer to a request; BackendError, ambiguous, if none came in time."""
        node = self._driver.node
        number = self._network.send(node.name, dst, what, body, token=token)
        self._asked[number] = wakeup = Wakeup()
        node.after(self._patience, self._give_up, number)
        answer = await wakeup
        if answer is None:
            raise BackendError(f"{dst} did not answer {what} in time", backend=dst, ambiguous=True)
        return answer

    def _give_up(self, number: int) -> None:
        if wakeup := self._asked.pop(number, None):
            wakeup.fire(None)
