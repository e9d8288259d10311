"""The OpenTelemetry hook, with the real SDK: the same counts as Prometheus, and spans that tell a lock's life."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import fencepost
from fencepost.errors import StaleToken
from fencepost.events import Event
from fencepost.guards import memory
from fencepost.guards.policy import Policy
from fencepost.hooks.instruments import INSTRUMENTS
from fencepost.hooks.otel import Telemetry
from fencepost.rule import Stamp


class Seen:
    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.hook = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters)

    def finished(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def points(self) -> dict[str, Any]:
        """Each metric's data points, by its name."""
        data: Any = self.reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.tracers.shutdown()
    seen.meters.shutdown()


def test_a_lock_s_life_is_two_spans_under_the_caller_s(seen: Seen) -> None:
    tracer = seen.tracers.get_tracer("test")
    with (
        fencepost.connect("memory://", hooks=[seen.hook]) as locks,
        tracer.start_as_current_span("work") as work,
        locks.lock("thing") as lease,
    ):
        lease.renew()
        token = lease.token
    (acquire,), (hold,) = seen.finished("lock acquire"), seen.finished("lock hold")
    for span in (acquire, hold):
        assert span.parent is not None
        assert span.parent.span_id == work.get_span_context().span_id
        assert span.attributes is not None
        assert (span.attributes["fencepost.name"], span.attributes["fencepost.token"]) == ("thing", token)
    assert acquire.end_time == hold.start_time
    assert [event.name for event in hold.events] == ["renewed"]
    assert hold.status.is_ok
    assert not seen.hook._holds


def test_a_lost_lease_and_an_acquire_in_vain_are_errors(seen: Seen) -> None:
    with fencepost.connect("memory://", hooks=[seen.hook]) as locks:
        lease = locks.acquire("thing", renew=False)
        assert locks.acquire("other").release()
        with pytest.raises(fencepost.NotAcquired):
            locks.acquire("thing", timeout=0.01)
        seen.hook(Event(kind="lost", name="thing", source="memory", holder=lease.holder, detail="replaced"))
    assert [span.status.is_ok for span in seen.finished("lock acquire")] == [True, True, False]
    lost = [span for span in seen.finished("lock hold") if not span.status.is_ok]
    assert [span.status.description for span in lost] == ["lost: replaced"]


def test_a_decision_is_an_event_of_the_current_span(seen: Seen) -> None:
    guard = memory.MemoryGuard[bytes]([seen.hook], Policy(ceiling="off"))
    guard.write("thing", b"1", Stamp(2**63 - 1, 1, "ann"))
    with seen.tracers.get_tracer("test").start_as_current_span("work"), pytest.raises(StaleToken):
        guard.write("thing", b"2", Stamp(4, 1, "old"))
    (event,) = seen.finished("work")[0].events
    assert event.attributes is not None
    assert event.attributes["fencepost.verdict"] == "stale"
    assert event.attributes["fencepost.seen"] == 2**63 - 1


def test_the_counts_are_those_of_prometheus_and_no_attribute_names_a_lock(seen: Seen) -> None:
    guard = memory.MemoryGuard[bytes](hooks=[seen.hook])
    guard.write("thing", b"1", Stamp(5, 1, "ann"))
    with pytest.raises(StaleToken):
        guard.write("thing", b"2", Stamp(4, 1, "old"))
    with fencepost.connect("memory://", hooks=[seen.hook]) as locks:
        locks.acquire("thing").release()
    points = seen.points()
    names = {f"fencepost_{name}".removesuffix("_total").removesuffix("_seconds") for name in INSTRUMENTS}
    assert set(points) <= names
    assert [point.value for point in points["fencepost_resource_writes_accepted"]] == [1]
    assert [(dict(p.attributes), p.value) for p in points["fencepost_fencing_reject"]] == [({"verdict": "stale"}, 1)]
    assert points["fencepost_lock_acquire_latency"][0].count == 1
    assert {key for each in points.values() for point in each for key in point.attributes} <= {"verdict", "result"}


def test_leases_dropped_without_release_do_not_pile_up(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.hooks.otel._OPEN", 3)
    for number in range(5):
        seen.hook(Event(kind="acquired", name="thing", source="memory", holder=f"h{number}", token=number + 1))
    assert len(seen.hook._holds) == 3
    assert len(seen.finished("lock hold")) == 2
