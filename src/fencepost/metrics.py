"""Prometheus metrics of both halves, as a hook: ``connect(..., hooks=[Metrics()])``."""

from fencepost.errors import ConfigError
from fencepost.events import Event
from fencepost.rule import Verdict

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ModuleNotFoundError as error:
    raise ConfigError(
        "fencepost.metrics needs the package 'prometheus_client': pip install 'fencepost[metrics]'"
    ) from error

_LATENCY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_HELD = (0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 1800, 3600)
_SLACK = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
# Below 0: refused as stale. 0: the same lease again. 1: the next one. A leap is an issuer gone wild.
_GAP = (-1, 0, 1, 10, 100, 1e3, 1e6, 1e9, 1e12)


class Metrics:
    """Counts what happens to locks and at guards. No label ever names a lock, a holder or a token.

    Make one for each registry (prometheus_client's own by default); a second one in the same registry
    is a ValueError of prometheus_client.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self._attempts = counter("lock_acquire_attempts_total", "Acquires begun.")
        self._acquired = counter("lock_acquire_success_total", "Acquires that got the lock.")
        self._timeouts = counter("lock_acquire_timeouts_total", "Acquires that waited in vain.")
        self._latency = histogram("lock_acquire_latency_seconds", "How long getting a lock took.", _LATENCY)
        self._held = histogram("lock_held_seconds", "How long locks were held until their release.", _HELD)
        self._renewals = counter("lock_renew_total", "Renewals, by the store's answer: renewed or unknown.", "result")
        self._slack = histogram(
            "lock_renew_slack_ratio", "Share of the ttl that was left when a lease was renewed.", _SLACK
        )
        self._not_owner = counter("release_by_non_owner_total", "Releases of a lock held no longer.")
        self._expired = counter("lease_expired_while_executing_total", "Leases lost while their holder worked.")
        self._rejects = counter("fencing_reject_total", "Accesses refused by a guard, by verdict.", "verdict")
        self._would = counter(
            "fencing_would_reject_total", "Accesses a guard let pass against the rule, by verdict.", "verdict"
        )
        self._stale = counter("resource_stale_token_rejections_total", "Accesses refused for an older token.")
        self._bare = counter("critical_write_without_token_total", "Writes to a guarded resource without a token.")
        self._writes = counter("resource_writes_accepted_total", "Writes a guard let pass.")
        self._replays = counter("resource_writes_replayed_total", "Repeated writes answered as done.")
        self._gap = histogram("token_gap", "Offered token minus the mark's token.", _GAP)
        for verdict in (Verdict.STALE, Verdict.LATE, Verdict.CLASH, Verdict.REPLAY, Verdict.MISSING):
            self._rejects.labels(verdict)
            self._would.labels(verdict)

    def __call__(self, event: Event) -> None:
        if event.kind == "decision":
            self._decision(event)
        elif event.kind == "attempt":
            self._attempts.inc()
        elif event.kind == "acquired":
            self._acquired.inc()
            self._latency.observe(event.seconds or 0.0)
        elif event.kind == "timeout":
            self._timeouts.inc()
        elif event.kind == "renewed":
            self._renewals.labels("renewed").inc()
            if event.ratio is not None:
                self._slack.observe(event.ratio)
        elif event.kind == "unrenewed":
            self._renewals.labels("unknown").inc()
        elif event.kind == "lost":
            self._expired.inc()
        elif event.kind == "released":
            if event.seconds is not None:
                self._held.observe(event.seconds)
        elif event.kind == "not_owner":
            self._not_owner.inc()

    def _decision(self, event: Event) -> None:
        verdict = event.verdict or Verdict.ADMIT
        if event.token is not None and event.seen is not None:
            self._gap.observe(event.token - event.seen)
        if verdict is Verdict.MISSING and event.action == "write":
            self._bare.inc()
        if event.enforced:
            self._rejects.labels(verdict).inc()
            if verdict is Verdict.STALE:
                self._stale.inc()
            return
        if event.enforced is False:
            self._would.labels(verdict).inc()
        if event.action == "write":
            replayed = verdict is Verdict.REPLAY and event.enforced is None
            (self._replays if replayed else self._writes).inc()
