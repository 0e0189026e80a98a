"""Prometheus metrics of the server process; ``GET /metrics`` prints them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All series of one server. An instance has its own registry, so tests can make as many as they like."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.requests = Counter(
            "nodus_http_requests_total",
            "HTTP requests by route, method and status.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.duration_s = Histogram(
            "nodus_http_request_duration_seconds",
            "Time to the end of the response.",
            ["route", "method"],
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30),
            registry=self.registry,
        )
        self.in_flight = 0
        """Requests being answered now."""
        Gauge("nodus_http_requests_in_flight", "Requests being answered now.", registry=self.registry).set_function(
            lambda: self.in_flight
        )
        self.watches = Gauge("nodus_watches", "Open watch streams.", registry=self.registry)
        self.stored_bytes = Gauge(
            "nodus_stored_bytes", "Bytes of blobs, checkpoints, workspaces, logs and models.", registry=self.registry
        )
        self.objects = Gauge("nodus_objects", "Stored objects by kind.", ["kind"], registry=self.registry)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request; its series are looked up once, which costs more than counting does."""
        found = self._series.get((route, method, status))
        if found is None:
            found = self.requests.labels(route, method, str(status)), self.duration_s.labels(route, method)
            self._series[route, method, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def render(self, objects: Mapping[str, int] | None = None) -> bytes:
        """The text form that Prometheus scrapes.

        Args:
            objects: how many objects there are now, by kind.
        """
        for kind, count in (objects or {}).items():
            self.objects.labels(kind).set(count)
        return generate_latest(self.registry)
