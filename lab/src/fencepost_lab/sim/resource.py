"""The protected resource: a counter behind the real guard, or behind a weakened one, or behind none."""

from typing import Any

from fencepost.errors import Refused
from fencepost.guards.memory import MemoryGuard
from fencepost.rule import Stamp, Verdict
from fencepost_lab.sim.network import Message, Network
from fencepost_lab.sim.service import Service
from fencepost_lab.sim.world import Node


class Resource:
    """A durable counter that counts its writes. It tells the trace of every access, and what it did to the data.

    The guard is the real one, and judges what ``fencing`` lets it see: all accesses (enter), only
    the writes (writes), stamps whose seq always looks new (noseq), stamps of one holder for all
    (noholder), enters without a seq of their own (nobarrier), or nothing (off).
    """

    def __init__(self, node: Node, network: Network, service: Service, fencing: str, key: str) -> None:
        self.node = node
        self.key = key
        self.value = 0
        self.version = 0
        self.counts = {"accepted": 0, "refused": 0, "corrupted": 0, "lost_updates": 0}
        self._network = network
        self._service = service
        self._fencing = fencing
        self._guard: MemoryGuard[int] = MemoryGuard()
        self._newest = 0
        """The largest token that ever entered or wrote here, admitted or not."""
        self._journal: list[Stamp | None] = []
        network.join(node, self._receive)

    @property
    def mark(self) -> Stamp | None:
        """The guard's mark."""
        return self._guard.mark(self.key)

    def _receive(self, message: Message) -> None:
        stamp, *write = message.body
        answer = self._write(message, stamp, *write) if write else self._read(message, stamp)
        if not message.copy:
            self._network.send(
                self.node.name, message.src, f"{message.what}:{answer[0]}", answer, token=message.token,
                answers=message.id,
            )  # fmt: skip

    def _read(self, message: Message, stamp: Stamp | None) -> tuple[Any, ...]:
        if self._fencing in ("off", "writes"):
            self._tell(message, "read", stamp, Verdict.ADMIT)
            return ("value", self.value, self.version)
        verdict, _ = self._judge(None, stamp)
        self._meet(stamp)
        self._tell(message, "enter", stamp, verdict)
        if verdict is Verdict.ADMIT:
            return ("value", self.value, self.version)
        self.counts["refused"] += 1
        return ("refused", verdict.value, self._seen())

    def _write(self, message: Message, stamp: Stamp | None, value: int, base: int | None) -> tuple[Any, ...]:
        fenced = self._fencing != "off"
        verdict, made = self._judge(value, stamp) if fenced else (Verdict.ADMIT, False)
        if verdict is Verdict.ADMIT:
            self._apply(message, stamp, value, base)
            return ("done", self.version)
        self._meet(stamp)
        if made:
            self._tell(message, "write", stamp, verdict, value=value, base=base)
            return ("done", self.version)
        self.counts["refused"] += 1
        self._tell(message, "write", stamp, verdict, value=value, base=base)
        return ("refused", verdict.value, self._seen())

    def _judge(self, value: int | None, stamp: Stamp | None) -> tuple[Verdict, bool]:
        """Let the real guard judge, a write with ``value``, an enter without; and whether it says: that was made."""
        if stamp is None:
            return Verdict.MISSING, False
        mark = self.mark
        if self._fencing == "noholder":
            stamp = stamp._replace(holder="anybody")
        elif self._fencing == "nobarrier" and value is None:
            stamp = stamp._replace(seq=0)
        elif self._fencing == "noseq" and stamp.seq and mark is not None and mark.token == stamp.token:
            stamp = stamp._replace(seq=mark.seq + 1)
        try:
            if value is None:
                self._guard.enter(self.key, stamp)
                return Verdict.ADMIT, False
            fresh = self._guard.write(self.key, value, stamp)
            return (Verdict.ADMIT, False) if fresh else (Verdict.REPLAY, True)
        except Refused as refused:
            return refused.verdict, False

    def _apply(self, message: Message, stamp: Stamp | None, value: int, base: int | None) -> None:
        counts = self.counts
        again = stamp is not None and stamp in self._journal
        corrupt = again or stamp is None or stamp.token < self._newest
        overwrote = 0 if base is None else self.version - base
        self._meet(stamp)
        self.version += 1
        self.value = value
        self._journal.append(stamp)
        counts["accepted"] += 1
        counts["corrupted"] += corrupt
        counts["lost_updates"] += overwrote > 0
        opinion = self._service.opinion()
        zombie = stamp is None or opinion is None or opinion.holder != stamp.holder
        self._tell(
            message, "write", stamp, Verdict.ADMIT, value=value, base=base, version=self.version,
            corrupt=bool(corrupt), overwrote=overwrote, zombie=zombie,
        )  # fmt: skip

    def _meet(self, stamp: Stamp | None) -> None:
        if stamp is not None:
            self._newest = max(self._newest, stamp.token)

    def _seen(self) -> int | None:
        return mark.token if (mark := self.mark) else None

    def _tell(self, message: Message, do: str, stamp: Stamp | None, verdict: Verdict, **facts: Any) -> None:
        token, seq, holder = stamp or (None, None, None)
        self.node.world.tell(
            "access", who=message.src, do=do, token=token, seq=seq, holder=holder, verdict=verdict.value,
            mark=self._seen(), message=message.id, **({"copy": message.copy} if message.copy else {}), **facts,
        )  # fmt: skip
