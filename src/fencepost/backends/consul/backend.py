"""Locks in Consul: sessions and keys in the layout of ``consul lock``."""

import base64
import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fencepost import check
from fencepost.address import Address
from fencepost.backend import Finding, Hold, Promises, Renewal, Status
from fencepost.backends import exposure
from fencepost.backends.base import Base
from fencepost.backends.consul.address import decode, encode, read
from fencepost.backends.consul.doctor import examine
from fencepost.backends.consul.http import BATCH, LONGEST_WAIT, Answer, Forbidden, Http
from fencepost.backends.consul.sessions import Session, Sessions
from fencepost.backends.consul.watch import Watch
from fencepost.backends.polling import Polling
from fencepost.backends.refusals import Answers, ask_apart, in_batches
from fencepost.driver import Driver
from fencepost.driver.backoff import Backoff
from fencepost.driver.timer import Timer
from fencepost.errors import BackendError
from fencepost.lease import Grant

_log = logging.getLogger("fencepost")
# The flags that `consul lock` gives its keys; it refuses to touch a key that has other flags.
_FLAGS = 0x2DDCCBC058A50C18
_LOCK = "/.lock"
_BASE = "/.base"


@dataclass(slots=True)
class _Held:
    """A lock that a holder has, or may have: ``token`` is 0 until Consul has confirmed the grant."""

    name: str
    session: Session
    index: int = 0
    token: int = 0
    unconfirmed: bool = False
    """A release of it got no answer."""
    lost: bool = False
    """It was found lost, and reported."""


class Consul(Polling):
    """``consul://host:8500/prefix``: each lock is the key ``prefix/name/.lock``, as ``consul lock prefix/name`` has it.

    An ACL token goes where a password goes: ``consul://:TOKEN@host``. Options: ``dc=``; ``ca=``, ``cert=`` and
    ``key=``, files for TLS, or ``tls=1``; ``lock_delay=``, how long Consul keeps a lock closed after its session
    was lost (0 by default; set it if you have no guard); ``session_ttl_min=``, if the servers' own is not 10 s.
    """

    scheme = "consul"
    credentials = True
    promises = Promises(
        reach="everybody who reaches the cluster",
        fair=False,
        consensus=True,
        failover="locks and tokens survive the loss of a minority, a restart, and a crash of the holder's agent; "
        "an agent that leaves the cluster, or whose node is deregistered, loses its holders' locks at once, and a "
        "holder that reaches no agent then learns it only at its deadline; "
        "a restored snapshot repeats tokens",
        clock="the leader's clock; a dead holder's lock goes on after one to two times its ttl",
        token="the Raft index at which the key was locked, plus the lock's base once it was bumped",
        wakeup="one blocking query per lock and process; inside a process, first come, first served",
        observe="one blocking query",
        keeps="ttl",
        min_ttl=10.0,
        max_ttl=86400.0,
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        settings = read(address)
        if settings.min_ttl is not None:
            self.promises = dataclasses.replace(self.promises, min_ttl=settings.min_ttl)
        self._root = settings.root
        self._lock_delay = settings.lock_delay
        self._encrypted = settings.tls is not None
        self._http = Http(settings, driver)
        self._start()

    def _start(self) -> None:
        super()._start()
        self._sessions = Sessions(self._http, self.driver, self._lock_delay)
        self._held: dict[str, _Held] = {}  # by holder
        self._expiry = Timer(self.driver, self._expired, "fencepost-expiry")
        self._watch = Watch(self._http, self.driver, self._any_session, self._look_at_holds)

    # The contract

    async def _stand(self, name: str, holder: str, ttl: float, until: float) -> Grant | None:
        """Wait, as the first of this process, until the key can be locked; None once ``until`` has passed."""
        now, index, pauses = self.driver.now, 0, Backoff(0.05, 1.0)
        while (left := until - now()) > 0:
            try:
                if lost := self._held.get(holder):  # an earlier attempt got no answer: it must not succeed later
                    await self._sessions.destroy(lost.session)
                    del self._held[holder]
                answer = await self._look(name, index, min(left, LONGEST_WAIT))
                if _session(answer):
                    # A smaller index means that the servers went back in time, as after a restored snapshot.
                    index = answer.at if answer.at >= index else 0
                    pauses.reset()
                    continue
                if grant := await self._attempt(name, holder, ttl):
                    return grant
            except Forbidden:
                raise
            except BackendError:
                pass  # a waiter outlives connections and leaders; only its timeout ends it
            # The key was free, and Consul still refused: another client was faster, or the lock-delay is not over.
            index = 0
            await self.driver.sleep(max(min(pauses.next(), until - now()), 0.0))
        return None

    async def leave(self, name: str, holder: str) -> None:
        self._queues.leave(name, holder)
        self._expiry.cancel(holder)
        held = self._held.pop(holder, None)
        if held is not None:
            await self._end(held)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        answers = [Renewal.LOST] * len(holds)
        known = [(index, held) for index, hold in enumerate(holds) if (held := self._mine(hold.name, *hold[1:3]))]
        if not known:
            return answers
        now = self.driver.now()
        renewed = await self._sessions.renew([held.session for _, held in known])
        alive = [each for each, yes in zip(known, renewed, strict=True) if yes]
        checked = await self._locked([held for _, held in alive])
        good = {index for (index, _), yes in zip(alive, checked, strict=True) if yes is True}
        # A new leader may not have applied the whole log yet. So check each negative answer with a consistent read.
        bad = [(index, held) for index, held in known if index not in good]
        still = await self._locked([held for _, held in bad], consistent="")
        for (index, _), yes in zip(bad, still, strict=True):
            answers[index] = Renewal.UNKNOWN if yes else Renewal.LOST
        for index in good:
            if self._expiry.extend(holds[index].holder, now + holds[index].ttl):
                answers[index] = Renewal.RENEWED
        refusals = [yes for yes in still if isinstance(yes, BackendError)]
        if refusals and all(answer is Renewal.UNKNOWN for answer in answers):
            raise refusals[0]
        return answers

    async def _locked(self, helds: Sequence[_Held], **query: str) -> list[bool | BackendError]:
        """Whether each key is still locked by its hold's session; an error for each that Consul refuses to check."""

        async def ask(some: Sequence[_Held]) -> list[bool]:
            checks = [
                {"Verb": "check-session", "Key": self._key(held.name), "Session": held.session.id} for held in some
            ]
            gone = (await self._http.transact(*checks, **query)).failed
            return [index not in gone for index in range(len(checks))]

        answers: list[bool | BackendError] = []
        for start in range(0, len(helds), BATCH):
            part = helds[start : start + BATCH]
            answers += await ask_apart(ask, part, lambda error: isinstance(error, Forbidden))
        return answers

    async def release(self, name: str, holder: str, token: int) -> bool:
        held = self._mine(name, holder, token)
        if held is None:
            return False
        left = self._expiry.left(holder) or 0.0
        in_time = self._expiry.cancel(holder)
        del self._held[holder]
        try:
            return await self._end(held) and in_time
        except BaseException:
            held.unconfirmed = True
            self._held[holder] = held  # the caller may release again; otherwise the expiry ends the hold in time
            self._expiry.offer(holder, self.driver.now() + left)
            raise

    async def release_all(self, holds: Sequence[Hold]) -> Sequence[bool | BackendError | None]:
        mine = [(at, hold) for at, hold in enumerate(holds) if self._mine(hold.name, hold.holder, hold.token)]
        # Each is two operations of a transaction.
        return await in_batches(self._release_together, mine, BATCH // 2, [False] * len(holds))

    async def _release_together(self, batch: Sequence[tuple[int, Hold]], answers: Answers) -> BackendError | None:
        """Release these, and write the answers to ``answers``; return the error if Consul failed."""
        owned = [(hold.holder, self._held[hold.holder]) for _, hold in batch]
        places = {hold.holder: at for at, hold in batch}

        def note(each: tuple[str, _Held], answer: bool | BackendError) -> None:
            holder, held = each
            answers[places[holder]] = answer
            if isinstance(answer, BackendError):
                doubt(held)

        def doubt(held: _Held) -> None:
            held.unconfirmed = True
            self._sessions.doom(held.session)

        try:
            await ask_apart(self._remove_all, owned, lambda error: isinstance(error, Forbidden), note)
            for at, hold in batch:
                if answers[at] is False:
                    # The key has changed since it was locked. Check this hold alone: an earlier release may have
                    # removed the key.
                    answers[at] = await self.release(hold.name, hold.holder, hold.token)
        except BaseException as error:
            for holder, held in owned:
                if self._held.get(holder) is held:
                    doubt(held)
                    answers[places[holder]] = error if isinstance(error, BackendError) else None
            if isinstance(error, BackendError):
                return error
            raise
        return None

    async def _remove_all(self, owned: Sequence[tuple[str, _Held]]) -> list[bool]:
        """Remove the keys of holds, by holder; False for each that is no longer as it was locked."""
        left = dict(owned)
        while left:
            outcome = await self._http.transact(
                *(each for held in left.values() for each in self._removal(held.name, held.index))
            )
            if not outcome.failed:
                break
            order = list(left)
            for index in outcome.failed:
                left.pop(order[index // 2], None)
        in_time = {}
        for holder, held in left.items():
            in_time[holder] = self._expiry.cancel(holder)
            if self._held.get(holder) is held:
                del self._held[holder]
            self._sessions.give_back(held.session)
        return [in_time.get(holder, False) for holder, _ in owned]

    async def keep(self, name: str, holder: str, token: int, seconds: float) -> bool:
        now, held = self.driver.now(), self._mine(name, holder, token)
        if held is None:
            return False
        [locked] = await self._locked([held], consistent="")
        if isinstance(locked, BackendError):
            raise locked
        if not locked:
            return False
        # If this process ends, only the session keeps the key.
        if (
            held.session.renewed + held.session.ttl < now + seconds
            and not (await self._sessions.renew([held.session]))[0]
        ):
            return False
        self._expiry.set(holder, now + seconds)
        return True

    async def _end(self, held: _Held) -> bool:
        """End a hold; return whether it was still held."""
        try:
            if held.token and await self._remove(held.name, held.index):
                self._sessions.give_back(held.session)
                return True
            # While a session lives, only its holder or an operator removes its key. So if it lives, the earlier
            # release, which got no answer, has removed the key.
            released = held.unconfirmed and await self._sessions.alive(held.session)
            await self._sessions.destroy(held.session)
        except BaseException:
            self._sessions.doom(held.session)
            raise
        return released

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        return [status for status, _ in await self._holds(name, prefix)]

    async def _holds(self, name: str | None, prefix: str = "") -> list[tuple[Status, int]]:
        """The holds, each with the index at which its key was locked."""
        if name is None:
            listed = await self._http.one("GET", f"kv/{self._root + '/' if self._root else ''}", keys="")
            found = filter(None, map(self._name, listed.parts(str) if listed.there else ()))
            wanted = sorted(each for each in found if each.startswith(prefix))
        else:
            wanted = [name]
        if not wanted:
            return []
        # Read the bases after the locks: a base contains its earlier values, but not its later ones.
        keys = [self._key(each, end) for end in (_LOCK, _BASE) for each in wanted]
        answers = await self._http.ask(*(self._http.request("GET", f"kv/{key}") for key in keys), keys=keys)
        locks = zip(wanted, answers[: len(wanted)], answers[len(wanted) :], strict=True)
        return [
            self._hold(each, lock.pairs()[0], self._base(each, base.pairs()))
            for each, lock, base in locks
            if _session(lock)
        ]

    async def changed(self, name: str, token: int | None) -> None:
        answer = await self._look(name, 0, 0.0)
        held = await self._holds(name) if _session(answer) else []
        if (held[0][0].token if held else None) == token:
            await self._look(name, answer.at, LONGEST_WAIT)

    async def break_lock(self, name: str) -> Status | None:
        for status, index in await self._holds(name):
            if await self._remove(name, index):
                if held := self._mine(name, status.holder, status.token):
                    del self._held[status.holder]
                    self._expiry.cancel(status.holder)
                    self._sessions.give_back(held.session)
                    self.report(status.holder, "it was evicted")
                return status
        return None

    async def bump(self, name: str, above: int) -> None:
        key, raised = self._key(name, _BASE), False
        while not raised:
            answer = await self._http.one("GET", f"kv/{key}", consistent="")
            base = self._base(name, answer.pairs())
            # The index of an answer may be behind the cluster's last index. Then the tokens rise by that much more.
            if (value := base.raised(above, answer.at)) is None:
                return
            write = {"Verb": "cas", "Key": key, "Value": base64.b64encode(value).decode(), "Index": base.since}
            raised = not (await self._http.transact(write)).failed

    async def doctor(self) -> list[Finding]:
        findings = await examine(self._http, self.promises.min_ttl, self._lock_delay)
        return findings + exposure.examine(self.address, encrypted=self._encrypted, remedy="use tls=1 or ca=")

    async def close(self) -> None:
        self._expiry.close()
        await self._watch.close()
        await self._sessions.close()
        self._http.close()

    def forked(self) -> None:
        self._http.forked()
        self._start()

    # The pieces

    def _key(self, name: str, end: str = _LOCK) -> str:
        return f"{self._root}/{encode(name)}{end}" if self._root else f"{encode(name)}{end}"

    def _base(self, name: str, pairs: Sequence[dict[str, Any]]) -> Base:
        """The base of a lock's tokens, if it is among what Consul answered."""
        for pair in pairs:
            if pair["Key"] == self._key(name, _BASE):
                return Base.read("consul", name, base64.b64decode(pair["Value"] or ""), int(pair["ModifyIndex"]))
        return Base("consul", name)

    def _name(self, key: str) -> str | None:
        below = key.removeprefix(f"{self._root}/") if self._root else key
        return decode(below.removesuffix(_LOCK)) if below.endswith(_LOCK) else None

    async def _attempt(self, name: str, holder: str, ttl: float) -> Grant | None:
        """Lock the key if it is free. Consul never grants what it refused, so None leaves nothing behind."""
        value = base64.b64encode(f"{holder} {ttl:g}".encode()).decode()
        lock = {"Verb": "lock", "Key": self._key(name), "Value": value, "Flags": _FLAGS}
        # Unlike "get", it does not fail if the key does not exist.
        base = {"Verb": "get-tree", "Key": self._key(name, _BASE)}
        while True:
            session = await self._sessions.borrow(ttl)
            held = self._held[holder] = _Held(name, session)
            try:
                made = await self._http.transact({**lock, "Session": session.id}, base)
            except BackendError as error:
                if not error.ambiguous:
                    del self._held[holder]
                    self._sessions.give_back(session)
                raise
            if made.pairs:
                try:
                    held.index = made.pairs[0]["ModifyIndex"]
                    held.token = self._base(name, made.pairs[1:]).token(held.index)
                except BackendError as error:
                    error.ambiguous = True  # the key is locked, so the caller must leave it
                    raise
                self._expiry.set(holder, session.renewed + ttl)
                self._watch.start()
                return Grant(held.token, ttl, session.renewed)
            del self._held[holder]
            if b"invalid session" not in made.why:
                self._sessions.give_back(session)
                return None

    def _any_session(self) -> Session | None:
        return next((held.session for held in self._held.copy().values() if held.token and not held.lost), None)

    async def _look_at_holds(self) -> None:
        """Report every hold whose key its session no longer has locked."""
        holds = [(holder, held) for holder, held in self._held.copy().items() if held.token and not held.lost]
        locked = await self._locked([held for _, held in holds], consistent="")
        for (holder, held), yes in zip(holds, locked, strict=True):
            if not yes:
                held.lost = True
                self.report(holder, "Consul ended its session")

    async def _remove(self, name: str, index: int) -> bool:
        """Remove the key unless it has changed since it was locked: a released lock leaves nothing behind."""
        return not (await self._http.transact(*self._removal(name, index))).failed

    def _removal(self, name: str, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        key = self._key(name)
        # The check fails if the key is gone already; a delete-cas alone would succeed then.
        return {"Verb": "check-index", "Key": key, "Index": index}, {"Verb": "delete", "Key": key}

    async def _look(self, name: str, index: int, wait: float) -> Answer:
        """The key; with an ``index``, wait until it has changed since then, or ``wait`` seconds have passed."""
        return await self._http.look(f"kv/{self._key(name)}", index, wait)

    def _mine(self, name: str, holder: str, token: int) -> _Held | None:
        held = self._held.get(holder)
        return held if held and held.token == token and held.name == name else None

    async def _expired(self, holders: list[str]) -> None:
        for holder in holders:
            if held := self._held.get(holder):
                try:
                    await self.leave(held.name, holder)
                except Exception as error:
                    _log.warning("a hold that was not renewed is left to its session: %s", error)

    def _hold(self, name: str, pair: dict[str, Any], base: Base) -> tuple[Status, int]:
        holder, ttl = _owner(pair)
        left = self._expiry.left(holder)
        index = int(pair["ModifyIndex"])
        return Status(name, holder, base.token(index), ttl if left is None else left, ()), index


def _session(answer: Answer) -> str:
    """The session that has a key locked; empty if none has."""
    return next((pair.get("Session") or "" for pair in answer.pairs()), "")


def _owner(pair: dict[str, Any]) -> tuple[str, float]:
    """A key's holder, and its ttl; its session and 0 if it is not ours."""
    try:
        holder, ttl = base64.b64decode(pair["Value"] or "").decode().split()
        return check.holder(holder), float(ttl)
    except ValueError:
        return str(pair["Session"]), 0.0
