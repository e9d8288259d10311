"""Consul sessions, each lent to one hold at a time.

Consul lets a session lock the same key twice, so two holders with one session would not exclude
each other. Also, a session that belongs to one hold can be destroyed when a request got no answer:
the request cannot take a lock later, even if it reaches Consul late.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.backends.consul.http import Http, taken
from fencepost.driver import Driver
from fencepost.errors import BackendError

# A session that was renewed this recently, as a part of its ttl, is lent without asking.
_FRESH = 1 / 6


@dataclass(slots=True)
class Session:
    id: str
    ttl: float
    renewed: float
    """When its creation or last renewal was sent, on the local clock: Consul began to count the ttl later than this."""
    doomed: bool = False
    """It must be destroyed, and must not be lent again."""


class Sessions:
    """A pool: a session that was given back is lent again, so that not every hold has to create one."""

    def __init__(self, http: Http, driver: Driver, lock_delay: float) -> None:
        self._http = http
        self._now = driver.now
        self._lock_delay = lock_delay
        self._idle: dict[float, list[Session]] = {}
        self._doomed: list[Session] = []

    async def borrow(self, ttl: float) -> Session:
        """A session that will live for most of ``ttl`` from now."""
        await self._bury()
        idle = self._idle.setdefault(ttl, [])
        while (session := taken(idle)) is not None:
            age = self._now() - session.renewed
            if age < ttl * _FRESH or (age < ttl and (await self.renew([session]))[0]):
                return session
        return await self._create(ttl)

    def give_back(self, session: Session) -> None:
        if not session.doomed:
            self._idle.setdefault(session.ttl, []).append(session)

    def doom(self, session: Session) -> None:
        """Remember a session that could not be destroyed, to destroy it as soon as Consul answers again."""
        if not session.doomed:
            session.doomed = True
            self._doomed.append(session)

    async def _bury(self) -> None:
        while (session := taken(self._doomed)) is not None:
            try:
                await self.destroy(session)
            except BackendError:
                self._doomed.append(session)
                return
            except BaseException:
                self._doomed.append(session)
                raise

    async def _create(self, ttl: float) -> Session:
        begun = self._now()
        asked = {
            "Name": "fencepost",
            "TTL": f"{ttl:.3f}s",
            "LockDelay": f"{self._lock_delay:.3f}s",
            "Behavior": "delete",  # the keys of its locks; otherwise the key of a name used once would stay forever
            # Only the ttl ends the session. By default Consul ends it as soon as the agent's host seems to be down.
            "NodeChecks": [],
        }
        answer = await self._http.one("PUT", "session/create", asked)
        if answer.status != 200:
            raise BackendError(f"Consul gave no session: {answer.body!r}", backend="consul", ambiguous=False)
        return Session(answer.part(str, "ID"), ttl, begun)

    async def renew(self, sessions: Sequence[Session]) -> list[bool]:
        """Renew all of them together; False for each that Consul no longer has."""
        await self._bury()
        begun = self._now()
        answers = await self._http.ask(
            *(self._http.request("PUT", f"session/renew/{session.id}") for session in sessions)
        )
        for session, answer in zip(sessions, answers, strict=True):
            if answer.there:
                if answer.part(str, 0, "ID") != session.id:
                    raise answer.astray()
                session.renewed = begun
        return [answer.there for answer in answers]

    async def alive(self, session: Session) -> bool:
        """Whether Consul still has the session, by a consistent read."""
        return bool((await self._http.one("GET", f"session/info/{session.id}", consistent="")).parts(dict))

    async def destroy(self, *sessions: Session) -> None:
        """End the sessions: they lose the locks that they hold, and can take no others."""
        if sessions:
            requests = (self._http.request("PUT", f"session/destroy/{each.id}") for each in sessions)
            for answer in await self._http.ask(*requests):
                if answer.body.strip() != b"true":
                    raise answer.astray()

    async def close(self) -> None:
        idle, self._idle = self._idle, {}
        try:
            await self.destroy(*self._doomed, *(session for sessions in idle.values() for session in sessions))
        except BackendError:
            pass  # they expire by themselves
