"""Notices that Consul has ended the sessions of this process: one blocking query, however many locks are held."""

from collections.abc import Awaitable, Callable

from fencepost.backends.consul.http import LONGEST_WAIT, Forbidden, Http
from fencepost.backends.consul.sessions import Session
from fencepost.driver import Driver
from fencepost.driver.backoff import Backoff
from fencepost.driver.scope import Closed, Scope
from fencepost.driver.service import Run, Service
from fencepost.errors import BackendError

_PAUSE, _LONGEST_PAUSE = 1.0, 5.0  # seconds between two queries: Consul also answers when other sessions change
_PARTING = 1.0


class Watch:
    """Follows one session that is in use: if an agent leaves the cluster, all sessions of its node end at once.

    ``held`` returns a session that is in use, or None. ``ended`` is called once that session is gone, and checks every
    hold. The thread or task runs only while a lock is held.
    """

    def __init__(
        self, http: Http, driver: Driver, held: Callable[[], Session | None], ended: Callable[[], Awaitable[None]]
    ) -> None:
        self._http = http
        self._driver = driver
        self._held = held
        self._ended = ended
        self._scope = Scope()
        self._service = Service(driver, self._run, "fencepost-consul-watch")

    def start(self) -> None:
        """Watch as long as a lock is held. If no thread can be started, only the next renewal notices a loss."""
        self._service.ensure()

    async def close(self) -> None:
        self._service.close()
        await self._scope.end(self._driver, _PARTING)

    async def _run(self, run: Run) -> None:
        visit = self._scope.join()
        try:
            with self._scope.inside():
                while not run.ends(lambda: self._held() is None):
                    await self._follow()
        except Closed:
            pass
        except Forbidden:
            return  # the ACL does not let it read sessions: only the renewals notice a loss
        finally:
            self._scope.leave(visit)

    async def _follow(self) -> None:
        index, pauses = 0, Backoff(_PAUSE, _LONGEST_PAUSE)
        followed: Session | None = None
        while (session := self._held()) is not None:
            if session is not followed:
                followed, index = session, 0
            try:
                answer = await self._http.look(f"session/info/{session.id}", index, LONGEST_WAIT)
                if answer.parts(dict):
                    first, index = not index, answer.at
                    pauses.reset()
                    if first:
                        continue
                else:
                    index = 0
                    await self._ended()
            except Forbidden:
                raise
            except BackendError:
                index = 0
            await self._driver.sleep(pauses.next())
