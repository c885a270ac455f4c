"""What a replica counts and measures, and how all of it is written for Prometheus (R52)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gpuclaim import __version__
from gpuclaim.admission import review
from gpuclaim.admission.desk import ALREADY_EXISTS
from gpuclaim.admission.judgement import Judgement, Subject
from gpuclaim.api.reasons import EventReason, MachineRefusal, PodRefusal, Refusal
from gpuclaim.controller.gauges import OTHER, Family, Values

audit = logging.getLogger("gpuclaim.audit")

_DECISION_BUCKETS: Final = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, 5e-2, 0.25, 1.0)
_WEBHOOK_BUCKETS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1.0, 2.5, 5.0, 10.0)
_REASONS: Final = frozenset({*Refusal, *PodRefusal, *MachineRefusal, ALREADY_EXISTS, "ServiceUnavailable", ""})

LEADER: Final = Family("gpuclaim_leader", "1 while this replica holds the lease.")
READY: Final = Family("gpuclaim_ready", "1 while this replica would take an order: it leads, and knows everything.")
QUEUE: Final = Family("gpuclaim_queue_depth", "Objects that wait for the leader's work, or are worked on.", ("queue",))
WATCH_BROKEN: Final = Family(
    "gpuclaim_watch_broken_seconds", "For how long changes of a kind have not come in; 0 while they do.", ("kind",)
)
LOOP_LAG: Final = Family("gpuclaim_loop_lag_seconds", "How late this replica woke for what it does every second.")
CERTIFICATE: Final = Family(
    "gpuclaim_webhook_certificate_expiry_timestamp_seconds",
    "When the webhook's certificate that is shown ends (Unix time).",
)
REPLICA_GAUGES: Final = (LEADER, READY, QUEUE, WATCH_BROKEN, LOOP_LAG, CERTIFICATE)
"""What every replica says of itself."""

INFO: Final = Family("gpuclaim_controller_info", "The controller that runs.", ("version",))
ORDERS: Final = Family(
    "gpuclaim_orders_total",
    "Answers to orders (claims, and VMs that are orders) by verdict and reason; dry runs apart.",
    ("verdict", "reason", "dry_run"),
)
PODS: Final = Family("gpuclaim_pods_total", "Answers to pods of sets by verdict and reason.", ("verdict", "reason"))
EVENTS: Final = Family(
    "gpuclaim_claim_events_total",
    "What happened to claims by the reasons of their Events: moves and nodes' refusals among them.",
    ("reason",),
)
DECISION: Final = Family("gpuclaim_decision_seconds", "Time that placement took for one answer.", ("about",))
WEBHOOK: Final = Family(
    "gpuclaim_webhook_seconds",
    "Time from a question that was read to its answer, moves and waiting included.",
    ("webhook",),
)
COUNTED: Final = (INFO, ORDERS, PODS, EVENTS, DECISION, WEBHOOK)
"""What a replica has counted and measured since its start."""


class Telemetry:
    """The counters of one process; their registry is its own, so that several may stand in one process."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        Gauge(INFO.name, INFO.text, INFO.labels, registry=self.registry).labels(__version__).set(1)
        self._orders = Counter(ORDERS.name, ORDERS.text, ORDERS.labels, registry=self.registry)
        self._pods = Counter(PODS.name, PODS.text, PODS.labels, registry=self.registry)
        self._events = Counter(EVENTS.name, EVENTS.text, EVENTS.labels, registry=self.registry)
        self._decision = Histogram(
            DECISION.name, DECISION.text, DECISION.labels, buckets=_DECISION_BUCKETS, registry=self.registry
        )
        self._webhook = Histogram(
            WEBHOOK.name, WEBHOOK.text, WEBHOOK.labels, buckets=_WEBHOOK_BUCKETS, registry=self.registry
        )
        for reason in EventReason:
            self._events.labels(reason.value)
        for about in Subject:
            self._decision.labels(about.value)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def judged(self, judgement: Judgement) -> None:
        """A question was answered: a line of the audit trail, and a count."""
        audit.info("%s", judgement.line())
        reason = judgement.reason if judgement.reason in _REASONS else OTHER
        if judgement.about is Subject.ORDER:
            self._orders.labels(judgement.ruling.value, reason, str(judgement.dry_run).lower()).inc()
        else:
            self._pods.labels(judgement.ruling.value, reason).inc()
        if judgement.deciding:
            self._decision.labels(judgement.about.value).observe(judgement.deciding)

    def said(self, reasons: Iterable[EventReason]) -> None:
        """Something happened to a claim."""
        for reason in reasons:
            self._events.labels(reason.value).inc()

    def timed(
        self, name: str, handler: Callable[[review.Request], Awaitable[review.Response]]
    ) -> Callable[[review.Request], Awaitable[review.Response]]:
        """The handler, its time measured under the webhook's name."""
        observe = self._webhook.labels(name).observe

        async def answer(request: review.Request) -> review.Response:
            started = time.perf_counter()
            try:
                return await handler(request)
            finally:
                observe(time.perf_counter() - started)

        return answer

    def page(self, values: Values, accept: str = "") -> tuple[bytes, str]:
        """All counts with these values, as the text that `accept` (an HTTP header) asks for, and its media type."""
        encode, media = exposition.choose_encoder(accept)
        return encode(_Together(self.registry, values)), media


class _Together(CollectorRegistry):
    """What is counted, and what is so now."""

    def __init__(self, counted: Collector, values: Mapping[Family, Mapping[tuple[str, ...], float]]) -> None:
        super().__init__()
        self._counted = counted
        self._now = values

    def collect(self) -> Iterator[Metric]:
        yield from self._counted.collect()
        for gauge, found in self._now.items():
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels)
            for labels, value in sorted(found.items()):
                family.add_metric(labels, value)
            yield family
