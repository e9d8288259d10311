"""Locks in a majority of independent Redis or Valkey servers."""

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from math import inf
from typing import Any

from fencepost.address import Address, seconds
from fencepost.backend import Finding, Hold, Promises, Renewal, Status
from fencepost.backends import exposure
from fencepost.backends.polling import Polling
from fencepost.backends.redis import doctor
from fencepost.backends.redis.address import Options, dial, options
from fencepost.backends.redis.connection import spell
from fencepost.backends.redis.inspect import held
from fencepost.backends.redis.scripts import MARK, Keys, Layout, kept, owner, remains
from fencepost.backends.redlock.members import Call, Member, Members, node_scripts
from fencepost.driver import Driver, Signal
from fencepost.driver.backoff import Backoff
from fencepost.errors import BackendError, ConfigError
from fencepost.lease import Grant
from fencepost.rule import MAX_TOKEN

_GONE = 60_000  # ms for which a node refuses an attempt that was given up, if it arrives late
_EVERY = 2**53 - 1  # larger than the number of any attempt
_SOON, _LATEST = 0.01, 0.25  # seconds between two attempts of a waiter


class Exhausted(BackendError):
    """No token is left, and waiting does not help."""


class Redlock(Polling):
    """``redlock://h1:6379,h2,h3,h4,h5/0?node_timeout=500ms``: each lock is held in a majority of independent servers.

    ``redlocks://`` is the same with TLS.
    Every node has the key ``prefix + name``. An attempt takes it on each node where it is free, and reads the last
    token of each such node. It writes a larger token to a majority before it uses that token. Any two majorities
    share a node, so a later attempt finds the token of an earlier one there.
    """

    scheme = "redlock"
    promises = Promises(
        reach="everybody who reaches a majority of the servers",
        fair=False,
        consensus=False,
        failover="locks and tokens survive the loss of a minority; a node that restarts without its data within a ttl "
        "can help two to hold at once; tokens still grow, unless counters and clocks are lost together, or the "
        "counters after a bump past the clocks",
        clock="each server's own wall clock, trusted to run at most 1 % faster than the holder's",
        token="larger than the last of each node of a majority, and than their time in us; a majority remembers it "
        "before it is used",
        wakeup="the first waiter of each process asks again, after 10 ms and then ever later up to 250 ms, jittered; "
        "each time is one request to every server",
        min_ttl=0.05,
    )
    credentials = True

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        self.options = _options(address)
        self.layout = Layout(self.options.prefix, "clock", False)
        self._dial = dial(address, self.options, node_scripts())
        self._start()

    def _start(self) -> None:
        super()._start()
        self._nodes = Members(self.driver, self._dial, self.options.endpoints)
        self._standing: dict[str, Signal] = {}
        self._attempts = count(1)
        self._unasked: set[str] = set()
        """Holders whose attempt is still waiting for a connection."""
        self._unsettled: set[str] = set()
        """Holders whose attempt is in flight, or was cut off: any node may still execute it."""
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._tried = 0
        """The largest token of a failed attempt that nodes may have written."""

    # The contract

    async def _stand(self, name: str, holder: str, ttl: float, until: float) -> Grant | None:
        """Ask, as the first of this process, until the lock is granted; None once ``until`` has passed."""
        now, pauses = self.driver.now, Backoff(_SOON, _LATEST, jitter=True)
        self._standing[name] = signal = self.driver.signal()
        try:
            while (left := until - now()) > 0:
                signal.clear()
                try:
                    if grant := await self._attempt(name, holder, ttl):
                        return grant
                except Exhausted:
                    raise
                except BackendError:
                    pass  # a waiter outlives connections and servers; only its timeout ends it
                left = until - now()
                if await signal.wait(max(min(left, pauses.next()), 0.0)):
                    pauses.reset()
            return None
        finally:
            if self._standing.get(name) is signal:
                del self._standing[name]

    async def leave(self, name: str, holder: str) -> None:
        self._queues.leave(name, holder)
        if holder in self._unasked:
            self._unasked.discard(holder)
            if holder not in self._unsettled:
                return
        self._majority((await self._give_up([(name, holder, "*")]))[0])

    async def renew(self, holds: Sequence[Hold]) -> Sequence[Renewal]:
        calls = [
            Call(
                node_scripts().renew,
                (self.layout.keys(each.name).lock,),
                (f"{each.holder}:{each.token}", kept(each.ttl)),
            )
            for each in holds
        ]
        heard = await self._nodes.ask(calls)
        answered = [replies for replies in heard.values() if isinstance(replies, list)]
        if len(answered) < self._nodes.quorum:
            raise self._nodes.lacking([each for each in heard.values() if isinstance(each, BackendError)])
        answers = [self._renewal([replies[index] for replies in answered]) for index in range(len(holds))]
        if all(answer is Renewal.UNKNOWN for answer in answers):
            raise self._undecided(heard.values())
        return answers

    def _renewal(self, replies: Sequence[Any]) -> Renewal:
        yes, no = (sum(reply == answer for reply in replies) for answer in (1, 0))
        if yes >= self._nodes.quorum:
            return Renewal.RENEWED
        return Renewal.LOST if len(self._nodes.all) - no < self._nodes.quorum else Renewal.UNKNOWN

    def _undecided(self, replies: Iterable[Any]) -> BackendError:
        why = "; ".join(str(reply) for reply in replies if isinstance(reply, BackendError))
        what = f"whether a majority still holds it depends on those who did not answer: {why}"
        return BackendError(what, backend=self.scheme, ambiguous=True)

    async def release(self, name: str, holder: str, token: int) -> bool:
        answer = self._released(name, (await self._give_up([(name, holder, token)]))[0])
        if isinstance(answer, BackendError):
            raise answer
        return answer

    async def release_all(self, holds: Sequence[Hold]) -> Sequence[bool | BackendError | None]:
        said = await self._give_up([(hold.name, hold.holder, hold.token) for hold in holds])
        return [self._released(hold.name, answers) for hold, answers in zip(holds, said, strict=True)]

    def _released(self, name: str, said: dict[Member, Any]) -> bool | BackendError:
        """The outcome of a release, from the answers of all nodes; wakes the first waiter of this process."""
        if waiter := self._standing.get(name):
            waiter.set()
        answer = self._renewal([reply for reply in said.values() if not isinstance(reply, BackendError)])
        return self._undecided(said.values()) if answer is Renewal.UNKNOWN else answer is Renewal.RENEWED

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        names = {name} if name is not None else await self._names(prefix)
        found = [await self._status(each, node_scripts().status) for each in sorted(names)]
        return [each for each in found if each and (each.token or self.layout.prefix or name is not None)]

    async def break_lock(self, name: str) -> Status | None:
        found = await self._status(name, node_scripts().break_lock)
        if waiter := self._standing.get(name):
            waiter.set()
        return found

    async def bump(self, name: str, above: int) -> None:
        said = await self._nodes.one(Call(node_scripts().bump, (self.layout.keys(name).counter,), (above,)))
        self._majority(said)

    async def doctor(self) -> list[Finding]:
        findings = [self._size()]
        for member in self._nodes.all:
            try:
                of_one = await doctor.examine(await member.node.ready(), self.options)
            except BackendError as error:
                of_one = [Finding("risk", str(error), "one more that is down brings it closer to no majority")]
            findings += [each._replace(what=f"{spell(member.endpoint)}: {each.what}") for each in of_one]
        encrypted = self._dial.tls is not None
        return findings + exposure.examine(self.address, encrypted=encrypted, remedy="use redlocks://")

    async def close(self) -> None:
        await self._nodes.close()

    def forked(self) -> None:
        self._nodes.forked()
        self._start()

    # The pieces

    async def _attempt(self, name: str, holder: str, ttl: float) -> Grant | None:
        """Take the lock at a majority; None if other clients hold too many nodes. Then this attempt is undone."""
        nodes, keys = self._nodes, self.layout.keys(name)
        attempt = next(self._attempts)
        nodes.longest = max(nodes.longest, ttl)
        self._unasked.add(holder)
        await nodes.connect()
        self._unasked.discard(holder)
        self._unsettled.add(holder)
        start = self.driver.now()
        take = Call(node_scripts().take, (keys.lock, _gone(keys, holder), keys.counter), (holder, attempt, kept(ttl)))
        said = await nodes.one(take)
        errors = [reply for reply in said.values() if isinstance(reply, BackendError)]
        silent = {member for member, reply in said.items() if isinstance(reply, BackendError) and reply.ambiguous}
        granted = {member: reply for member, reply in said.items() if isinstance(reply, list)}
        token = max((max(int(last) + 1, time) for last, time in granted.values()), default=0)
        # Each attempt has its own token. Otherwise the clean-up of a failed attempt would undo the next one.
        token = max(token, self._tried + 1)
        keepers: dict[Member, Any] = {}
        if len(granted) >= nodes.quorum and token <= MAX_TOKEN:
            keep = Call(
                node_scripts().keep, (keys.lock, keys.counter), (f"{holder}:-{attempt}", f"{holder}:{token}", token)
            )
            keepers = await nodes.one(keep, list(granted))
            if sum(reply == 1 for reply in keepers.values()) >= nodes.quorum and self.driver.now() - start < ttl:
                if silent:
                    nodes.owe(self._leave(name, holder, attempt, "", _GONE), silent)
                self._unsettled.discard(holder)
                return Grant(token, ttl, start)
            with self._gate:
                self._tried = max(self._tried, token)
            silent.update(member for member, reply in keepers.items() if isinstance(reply, BackendError))
        # Undo only this attempt: a waiter makes its next attempts under the same holder.
        undone = token if keepers else ""
        if silent:
            nodes.owe(self._leave(name, holder, attempt, undone, _GONE), silent)
        if answered := [member for member in granted if member not in silent]:
            await nodes.tell([self._leave(name, holder, attempt, undone, 0)], answered)
        lacking = nodes.lacking(errors) if len(errors) > len(nodes.all) - nodes.quorum else None
        if lacking is None or not lacking.ambiguous:
            self._unsettled.discard(holder)
        if token > MAX_TOKEN:
            raise Exhausted(
                f"the last token of {name!r} was {MAX_TOKEN}, and there is no larger one; lock under another name",
                backend=self.scheme,
                ambiguous=False,
            )
        if lacking is not None:
            raise lacking
        return None

    def _leave(self, name: str, holder: str, attempt: int, token: int | str, refused: int) -> Call:
        """The call with which a node gives up a holder's attempts up to this one, and its hold under ``token``."""
        keys = self.layout.keys(name)
        return Call(node_scripts().leave, (keys.lock, _gone(keys, holder)), (holder, attempt, token, refused))

    async def _give_up(self, holds: Sequence[tuple[str, str, int | str]]) -> list[dict[Member, Any]]:
        """End holds on all nodes, for good; each is given as the lock's name, the holder and the token."""
        calls = [
            self._leave(name, holder, _EVERY, token, _GONE if holder in self._unsettled else 0)
            for name, holder, token in holds
        ]
        said = await self._nodes.tell(calls)
        self._unsettled.difference_update(holder for _, holder, _ in holds)
        return said

    def _majority(self, said: dict[Member, Any]) -> None:
        errors = [reply for reply in said.values() if isinstance(reply, BackendError)]
        if len(errors) > len(said) - self._nodes.quorum:
            raise self._nodes.lacking(errors, ambiguous=True)

    async def _status(self, name: str, script: Any) -> Status | None:
        """The lock as the nodes see it. A holder counts if it has a majority together with the silent nodes."""
        keys: Keys = self.layout.keys(name)
        wanted = (keys.lock, keys.queue) if script is node_scripts().status else (keys.lock, keys.queue, keys.counter)
        said = await self._nodes.one(Call(script, wanted))
        self._majority(said)
        silent = sum(isinstance(reply, BackendError) for reply in said.values())
        seen = [(reply[0].decode("utf-8", "replace"), reply[1]) for reply in said.values() if isinstance(reply, list)]
        values = Counter(value for value, _ in seen)
        for value, votes in values.most_common(1):
            if votes + silent < self._nodes.quorum or value.rpartition(":")[2].startswith("-"):
                return None
            holder, token = owner(value)
            lives = sorted((inf if each < 0 else remains(each) for own, each in seen if own == value), reverse=True)
            return Status(name, holder, token, lives[min(self._nodes.quorum, len(lives)) - 1], ())
        return None

    async def _names(self, prefix: str) -> set[str]:
        names: set[str] = set()
        errors: list[BackendError] = []
        answered = 0
        for member in sorted(self._nodes.all, key=lambda member: member.out is not None):
            try:
                # A node that is out is asked only if there is no majority without it.
                if member.out is not None and answered >= self._nodes.quorum:
                    raise member.out
                names.update(await held(await member.node.ready(), self.layout, prefix, self.scheme))
                answered += 1
            except BackendError as error:
                errors.append(error)
        if len(errors) > len(self._nodes.all) - self._nodes.quorum:
            raise self._nodes.lacking(errors)
        return names

    def _size(self) -> Finding:
        size, quorum = len(self._nodes.all), self._nodes.quorum
        what = f"{size} nodes, majority {quorum}"
        if size < 3 or size % 2 == 0:
            return Finding("warn", what, f"{size - 1} nodes would survive the loss of as many; use 3 or 5")
        return Finding(
            "ok", what, f"{size - quorum} may be down; each has to be independent of the others, no replicas"
        )


def _options(address: Address) -> Options:
    """The options of a Redis URL, except that its only timeout is ``node_timeout``."""
    for key in ("fence", "wait_replicas", "pollers", "timeout", "connect_timeout"):
        if key in address.params:
            raise ConfigError(
                f"{address.scheme}:// has no option {key!r}; "
                "it takes node_timeout, prefix, db, ca, cert, key and verify"
            )
    params = dict(address.params)
    patience = params.pop("node_timeout", "500ms")
    dataclasses.replace(address, params={"node_timeout": patience}).options(node_timeout=seconds)
    found = options(dataclasses.replace(address, params=params | {"timeout": patience, "connect_timeout": patience}))
    if len(set(found.endpoints)) < len(found.endpoints):
        raise ConfigError(f"{address.scheme}:// names a server twice, which would count its vote twice")
    return found


def _gone(keys: Keys, holder: str) -> str:
    """The key with the number of this holder's last attempt that was given up; it expires by itself."""
    return f"{keys.gone}{MARK}{holder}"
