"""Running in an election on a thread of its own, for frameworks whose own loop must not wait."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

from fencepost.errors import BackendError, LeaseLost, Refused
from fencepost.sync import Locks, Term

_log = logging.getLogger("fencepost")
_AGAIN = 1.0  # seconds until the next try, if the store cannot be reached
_PARTING = 5.0  # seconds for resigning


class Campaign:
    """Runs in the election called ``name``, term after term, also while the store cannot be reached, until closed.

    ``elected`` is called with each term before ``term()`` returns it; if it raises BackendError, LeaseLost or Refused,
    the candidate gives the term back, and runs again a little later.
    """

    def __init__(
        self,
        locks: Locks,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        elected: Callable[[Term], object] | None = None,
    ) -> None:
        self._election = locks.election(name, ttl=ttl, metadata=f"{socket.gethostname()[:200]}:{os.getpid()}")
        self._elected = elected
        self._news = threading.Condition()
        self._term: Term | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fencepost-campaign", daemon=True)
        self._thread.start()

    def term(self, timeout: float = 0.0) -> Term | None:
        """The term that is held now, or will be within so many seconds. Raises what ended the campaign."""

        def found() -> bool:
            return self._failure is not None or (self._term is not None and not self._term.ended)

        with self._news:
            self._news.wait_for(found, timeout)
            if self._failure is not None:
                raise self._failure
            return self._term if found() else None

    def close(self) -> None:
        """Resign, and end the thread; within seconds, whatever the store does."""
        self._closing.set()
        # On a thread: this may run in a signal handler that has interrupted a call to the store.
        closer = threading.Thread(target=self._election.close, name="fencepost-campaign-end", daemon=True)
        closer.start()
        closer.join(_PARTING)
        self._thread.join(_PARTING)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._closing.is_set():
                try:
                    self._lead()
                except (BackendError, LeaseLost, Refused) as error:
                    _log.error("election of %r: %s; running again in %g s", self._election.name, error, _AGAIN)
                    self._closing.wait(_AGAIN)
        except BaseException as error:
            _log.exception("election of %r: this candidate gives up", self._election.name)
            failure = error
        with self._news:
            self._term, self._failure = None, failure
            self._news.notify_all()

    def _lead(self) -> None:
        with closing(iter(self._election)) as terms:
            for term in terms:
                if self._elected is not None:
                    self._elected(term)
                with self._news:
                    self._term = term
                    self._news.notify_all()
                term.ended.wait()
                if term.lost and not self._closing.is_set():
                    self._tell_loss(term)

    def _tell_loss(self, term: Term) -> None:
        try:
            term.check()
        except LeaseLost as lost:
            _log.warning(
                "this process no longer leads %r, epoch %d: %s; another candidate may lead now, and this one waits to "
                "be elected again. Unless the lock was broken or the process paused on purpose, it could not renew for "
                "its ttl of %g s: give it a longer ttl",
                *(term.name, term.token, lost.reason, term.ttl),
            )
