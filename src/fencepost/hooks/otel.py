"""OpenTelemetry spans and metrics of locks and guards, as a hook: ``connect(..., hooks=[Telemetry()])``."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from fencepost.driver.fork import in_child
from fencepost.errors import ConfigError
from fencepost.events import Event
from fencepost.hooks.instruments import INSTRUMENTS, PREFIX, Classes, measure, named

__all__ = ["INSTRUMENTS", "Telemetry"]

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    raise ConfigError(
        "fencepost.hooks.otel needs the package 'opentelemetry-api': pip install 'fencepost[otel]'"
    ) from error

_OPEN = 10_000  # the most open spans: a lease that was dropped without release never ends its own


class Telemetry:
    """Tells OpenTelemetry what happens: the instruments of ``fencepost.hooks.prometheus``, and spans.

    A span ``lock acquire`` covers each acquire that ended, ``lock hold`` the time from then to the release or
    the loss; both are children of the span that was current. A guard's decision is an event of the current
    span. Spans name the lock and the token; metrics never do. The providers are the global ones unless given;
    ``prefix`` and ``classes`` are as for ``fencepost.hooks.prometheus.Metrics``.

    An exporter that adds the units of the Prometheus convention gives the same names as ``fencepost.hooks.prometheus``.
    OpenTelemetry's histograms take no negative numbers, so ``token_gap`` leaves out what was refused as stale.

        locks = fencepost.connect("redis://localhost", hooks=[Telemetry()])
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        prefix: str = PREFIX,
        classes: Callable[[str], str] | None = None,
    ) -> None:
        self._classes = None if classes is None else Classes(classes)
        whole = named(prefix)
        self._tracer = trace.get_tracer("fencepost", tracer_provider=tracer_provider)
        meter = metrics.get_meter("fencepost", meter_provider=meter_provider)
        self._counters: dict[str, metrics.Counter] = {}
        self._histograms: dict[str, metrics.Histogram] = {}
        for name, (text, buckets, _, _) in INSTRUMENTS.items():
            if buckets:
                unit = "s" if name.endswith("_seconds") else ""
                self._histograms[name] = meter.create_histogram(
                    whole[name].removesuffix("_seconds"),
                    unit,
                    text,
                    explicit_bucket_boundaries_advisory=[edge for edge in buckets if edge >= 0],
                )
            else:
                self._counters[name] = meter.create_counter(whole[name].removesuffix("_total"), description=text)
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._holds: OrderedDict[str, Span] = OrderedDict()
        in_child(self, Telemetry._forked)

    def __call__(self, event: Event) -> None:
        common: dict[str, str] = {}
        if self._classes is not None:
            common = {"backend": event.source, "class": self._classes(event.name)}
        for name, value, label in measure(event):
            attributes = {**common, INSTRUMENTS[name].label: label} if label else common
            if counter := self._counters.get(name):
                counter.add(value, attributes)
            elif value >= 0:
                self._histograms[name].record(value, attributes)
        match event.kind:
            case "acquired":
                self._acquired(event)
            case "timeout":
                self._span("lock acquire", event, Status(StatusCode.ERROR, "timeout"))
            case "renewed" | "unrenewed" | "at_risk" | "recovered":
                if span := self._holds.get(event.holder or ""):
                    span.add_event(event.kind, _attributes(event), _nanoseconds(event.at))
            case "released":
                self._end(event, None)
            case "lost":
                self._end(event, Status(StatusCode.ERROR, f"lost: {event.detail}"))
            case "decision" | "override" | "raise_mark" | "lower_mark":
                trace.get_current_span().add_event(
                    f"fencepost.{event.kind}", _attributes(event), _nanoseconds(event.at)
                )

    def _forked(self) -> None:
        self._gate = threading.RLock()  # a thread of the parent may have held it
        self._holds.clear()  # these leases belong to the parent, which ends their spans

    def _acquired(self, event: Event) -> None:
        self._span("lock acquire", event, None)
        span = self._tracer.start_span(
            "lock hold", attributes=_attributes(event, "seconds"), start_time=_nanoseconds(event.at)
        )
        with self._gate:
            self._holds[event.holder or ""] = span
            forgotten = self._holds.popitem(last=False)[1] if len(self._holds) > _OPEN else None
        if forgotten is not None:
            forgotten.end()

    def _span(self, name: str, event: Event, status: Status | None) -> None:
        span = self._tracer.start_span(
            name,
            kind=SpanKind.CLIENT,
            attributes=_attributes(event),
            start_time=_nanoseconds(event.at - (event.seconds or 0.0)),
        )
        if status is not None:
            span.set_status(status)
        span.end(_nanoseconds(event.at))

    def _end(self, event: Event, status: Status | None) -> None:
        with self._gate:
            span = self._holds.pop(event.holder or "", None)
        if span is None:
            return
        if status is not None:
            span.set_status(status)
        span.end(_nanoseconds(event.at))


def _attributes(event: Event, *without: str) -> Mapping[str, Any]:
    """The event's facts; a token fits into OpenTelemetry's 64-bit integers as it is."""
    facts = event.facts() | {name: value for name in ("token", "seen") if (value := getattr(event, name)) is not None}
    return {f"fencepost.{name}": value for name, value in facts.items() if name not in ("kind", "at", *without)}


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
