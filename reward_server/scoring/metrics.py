"""Prometheus metrics of scoring. Labels come from enums only, so a caller cannot make new series."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from reward_server.outcome import Basis, FailureKind, Scored
from reward_server.scoring.record import Unit

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """One set of metrics for one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._scores = Counter(
            "reward_scores",
            "Scores stored, by what they rest on.",
            ["basis"],
            registry=self.registry,
        )
        self._failures = Counter(
            "reward_unscored", "Items unscored, by why.", ["failure"], registry=self.registry
        )
        self._cached = Counter(
            "reward_reused", "Scores answered from an earlier grading.", registry=self.registry
        )
        self._store = Counter(
            "reward_store_failures", "Requests the store failed.", registry=self.registry
        )
        self._seconds = Histogram(
            "reward_request_seconds",
            "Time to answer POST /score.",
            ["status"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.queued = Gauge(
            "reward_queued_items", "Items admitted, unanswered.", registry=self.registry
        )
        self.workers = Gauge("reward_workers", "Grading processes alive.", registry=self.registry)
        self._by_basis = {b: self._scores.labels(b.value) for b in Basis}
        self._by_failure = {f: self._failures.labels(f.value) for f in FailureKind}
        self._by_status = {s: self._seconds.labels(s) for s in ("2xx", "4xx", "5xx")}

    def scored(self, units: list[Unit]) -> None:
        if len(units) == 1 and (only := units[0].ask.grading) is not None:
            if isinstance(only.outcome, Scored):
                self._by_basis[only.outcome.basis].inc()
            else:
                self._by_failure[only.outcome.kind].inc()
            if units[0].ask.cached:
                self._cached.inc()
            return
        tally: Tally[Basis | FailureKind] = Tally()
        cached = 0
        for unit in units:
            if unit.ask.grading is not None:
                outcome = unit.ask.grading.outcome
                tally[outcome.basis if isinstance(outcome, Scored) else outcome.kind] += 1
                cached += unit.ask.cached
        for what, count in tally.items():
            if isinstance(what, Basis):
                self._by_basis[what].inc(count)
            else:
                self._by_failure[what].inc(count)
        if cached:
            self._cached.inc(cached)

    def store_failed(self) -> None:
        self._store.inc()

    def answered(self, status: int, seconds: float) -> None:
        self._by_status[f"{status // 100}xx"].observe(seconds)
