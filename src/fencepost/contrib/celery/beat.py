"""Beat with failover: several run, the elected one sends, and the next leader knows what was sent."""

import json
import logging
import os
from datetime import datetime
from typing import Any

from celery.beat import ScheduleEntry
from celery.beat import Scheduler as BaseScheduler

from fencepost.address import masked
from fencepost.contrib.campaign import Campaign
from fencepost.contrib.celery.settings import locks_of, setting
from fencepost.contrib.progress import Progress, open_progress
from fencepost.errors import BackendError, ConfigError, LeaseLost, Refused
from fencepost.sync import Term

_log = logging.getLogger("fencepost")
_STANDBY = 1.0  # seconds until a beat that waits says that it is alive
_PAUSE = 1.0  # seconds until the next try after the store did not answer


class Scheduler(BaseScheduler):  # type: ignore[misc]  # Celery has no types
    """A scheduler for ``celery beat``: of all that run, the elected one sends.

    When each entry was last sent is kept behind a guard, and written under the term's token *before* the message is
    sent. So a beat that was replaced, for example because its machine was frozen, is refused before it sends, and the
    next one goes on where it stopped: each time of the schedule is sent at most once. It is not sent at all if beat is
    killed between the two steps.

    Settings: ``fencepost_url`` is where the election is held, ``fencepost_beat_name`` its name (``celery/beat``),
    ``fencepost_beat_ttl`` its ttl, ``fencepost_beat_state`` where the times are kept: a redis:// URL or a guard,
    ``fencepost_url`` itself unless given.

        app.conf.beat_scheduler = "fencepost.contrib.celery:Scheduler"
    """

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._name: str = setting(app, "fencepost_beat_name", "celery/beat")
        self._campaign: Campaign | None = None
        self._led: Term | None = None
        self._progress = _progress(app, self._name)
        super().__init__(app, *args, **kwargs)

    @property
    def info(self) -> str:
        """For the banner of ``celery beat``."""
        return f"    . election -> {self._name}\n"

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One step: wait to be elected, or send what is due; return how long to sleep."""
        if self._campaign is None:
            ttl = setting(self.app, "fencepost_beat_ttl")
            self._campaign = Campaign(locks_of(self.app), self._name, ttl=ttl)
        term = self._campaign.term(min(self.max_interval, _STANDBY))
        if term is None:
            return 0
        try:
            if term is not self._led:
                self._take_over(term)
            delay: float = super().tick(*args, **kwargs)
            return delay
        except (LeaseLost, Refused) as error:
            _log.warning("beat was replaced: %s", error)
            pause = 0.0
        except BackendError as error:
            _log.error("beat sends nothing for now: %s", error)
            pause = _PAUSE
        self._led = self._heap = None
        try:
            term.resign()
        except BackendError:
            pass  # its ttl ends it
        return pause

    def reserve(self, entry: ScheduleEntry) -> ScheduleEntry:
        """Record, under the term's token, that an entry is sent; if this raises, the entry is not sent."""
        following = next(entry)
        self._note(following)
        self.schedule[entry.name] = following
        return following

    def apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """Send an entry, and let go of its result, which nobody reads here."""
        result = super().apply_async(entry, *args, **kwargs)
        if (backend := getattr(result, "backend", None)) is not None:
            # Celery does this in the result's __del__, by a request to the result backend. There, Python drops the
            # SystemExit that Celery's handler of SIGTERM raises, and beat would go on.
            backend.remove_pending_result(result)
            result.backend = None
        return result

    def close(self) -> None:
        """Resign, and let go of the broker."""
        campaign, self._campaign, self._led = self._campaign, None, None
        try:
            super().close()
        finally:
            if campaign is not None:
                campaign.close()

    def _take_over(self, term: Term) -> None:
        """Go on where the leader before stopped."""
        known = self._progress.read(term)
        self._led, self._heap = term, None
        for name, entry in self.schedule.items():
            if name in known:
                entry.last_run_at, entry.total_run_count = self._recalled(known[name])
            else:  # count from now on, also in the terms after this one
                entry.last_run_at = entry.default_now()
                self._note(entry)
        _log.info("beat leads %r, epoch %d", self._name, term.token)

    def _note(self, entry: ScheduleEntry) -> None:
        assert self._led is not None, "only a leader gets here"
        text = json.dumps([entry.last_run_at.isoformat(), entry.total_run_count])
        self._progress.write(entry.name, text, self._led)

    def _recalled(self, text: str) -> tuple[datetime, int]:
        at, count = json.loads(text)
        last = datetime.fromisoformat(at)
        return last if last.tzinfo is None else last.astimezone(self.app.timezone), count


def _progress(app: Any, name: str) -> Progress:
    state = setting(app, "fencepost_beat_state")
    if state is None:
        url = setting(app, "fencepost_url") or os.environ.get("FENCEPOST_URL", "")
        if not url.startswith(("redis://", "rediss://")) or "?" in url:
            raise ConfigError(
                f"beat keeps when it sent each entry behind a guard, and cannot use fencepost_url={masked(url)!r} for "
                f"that; set fencepost_beat_state to a redis:// URL, or to a guard such as FileGuard or S3Guard"
            )
        state = url
    return open_progress(state, f"fencepost:beat:{name}", "fencepost_beat_state")
