"""The Grafana dashboard, made of the controller's metrics: rows of panels, two to a row. `make crds` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "gpuclaim" / "files" / "dashboard.json"

_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}

# (row, [(title, what it says, unit, [(query, legend)])])
ROWS: Final = (
    (
        "GPUs",
        [
            (
                "GPUs by class",
                "What there is, what is held, and what is in use.",
                "short",
                [
                    ("max by (class) (gpuclaim_class_capacity_gpus)", "{{class}} capacity"),
                    ("max by (class) (gpuclaim_class_held_gpus)", "{{class}} held"),
                    ("max by (class) (gpuclaim_class_attached_gpus)", "{{class}} attached"),
                ],
            ),
            (
                "To order",
                "Free GPUs, and the largest order that would be taken.",
                "short",
                [
                    ("max by (class) (gpuclaim_class_free_gpus)", "{{class}} free"),
                    ("max by (class) (gpuclaim_class_largest_order_gpus)", "{{class}} largest order"),
                ],
            ),
            (
                "Out of order",
                "GPUs that are unhealthy, and GPUs that pods use without a claim.",
                "short",
                [
                    ("max by (class) (gpuclaim_class_unhealthy_gpus)", "{{class}} unhealthy"),
                    ("max by (class) (gpuclaim_class_foreign_gpus)", "{{class}} foreign use"),
                ],
            ),
            (
                "Nodes",
                "Nodes with GPUs by what is true of them.",
                "short",
                [("max by (state) (gpuclaim_nodes) > 0", "{{state}}")],
            ),
        ],
    ),
    (
        "Orders",
        [
            (
                "Orders a second",
                "Answers by verdict and reason; dry runs left out.",
                "ops",
                [
                    (
                        'sum by (verdict, reason) (rate(gpuclaim_orders_total{dry_run="false"}[$__rate_interval]))',
                        "{{verdict}} {{reason}}",
                    )
                ],
            ),
            (
                "Pods a second",
                "Pods of sets that were pinned or turned away.",
                "ops",
                [("sum by (verdict, reason) (rate(gpuclaim_pods_total[$__rate_interval]))", "{{verdict}} {{reason}}")],
            ),
            (
                "Time of a webhook's answer",
                "The 50th and the 99th percentile.",
                "s",
                [
                    (
                        f"histogram_quantile({quantile}, sum by (le, webhook)"
                        " (rate(gpuclaim_webhook_seconds_bucket[$__rate_interval])))",
                        f"{{{{webhook}}}} p{quantile:.0%}".rstrip("%"),
                    )
                    for quantile in (0.5, 0.99)
                ],
            ),
            (
                "Time of a decision",
                "What placement takes of it, 99th percentile.",
                "s",
                [
                    (
                        "histogram_quantile(0.99, sum by (le, about)"
                        " (rate(gpuclaim_decision_seconds_bucket[$__rate_interval])))",
                        "{{about}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Claims and budgets",
        [
            (
                "Claims that wait",
                "Stored claims without a node, and deleted ones that still hold.",
                "short",
                [
                    ("max by (class, reason) (gpuclaim_waiting_claims)", "{{class}} {{reason}}"),
                    ("max by (reason) (gpuclaim_releasing_claims) > 0", "deleted, {{reason}}"),
                ],
            ),
            (
                "Claims on nodes that are not well",
                "And nodes that sets are kept from, since kubelet turned their pods away.",
                "short",
                [
                    ("max by (reason) (gpuclaim_unhealthy_claims)", "{{reason}}"),
                    ("max by (reason) (gpuclaim_refusals)", "turned away, {{reason}}"),
                ],
            ),
            (
                "Budgets",
                "Budgets by how much of them is used.",
                "short",
                [("max by (class, state) (gpuclaim_budgets)", "{{class}} {{state}}")],
            ),
            (
                "What happened to claims",
                "Moves, refusals by nodes and the like, in an hour.",
                "short",
                [("sum by (reason) (increase(gpuclaim_claim_events_total[1h])) > 0", "{{reason}}")],
            ),
        ],
    ),
    (
        "The controller",
        [
            (
                "Who leads",
                "1 for the leader.",
                "short",
                [("max by (pod) (gpuclaim_leader)", "{{pod}}")],
            ),
            (
                "Behind",
                "Changes that do not come in, a late loop, and the ledger.",
                "s",
                [
                    ("max by (kind) (gpuclaim_watch_broken_seconds) > 0", "watch of {{kind}}"),
                    ("max by (pod) (gpuclaim_loop_lag_seconds)", "loop of {{pod}}"),
                    ("max(gpuclaim_ledger_lag_seconds)", "ledger"),
                ],
            ),
            (
                "Work that waits",
                "By queue, and intervals for the ledger.",
                "short",
                [
                    ("max by (queue) (gpuclaim_queue_depth)", "{{queue}}"),
                    ("max(gpuclaim_ledger_waiting_intervals)", "intervals"),
                ],
            ),
            (
                "Oldest report",
                "Of any agent. After 15 minutes its node takes no new hold.",
                "s",
                [("max(gpuclaim_oldest_report_age_seconds)", "age")],
            ),
        ],
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, inside in ROWS:
        panels.append({"type": "row", "title": row, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        for number, (title, text, unit, queries) in enumerate(inside):
            place = {"x": 12 * (number % 2), "y": y + 1 + 8 * (number // 2), "w": 12, "h": 8}
            panels.append(_panel(title, text, unit, queries, place))
        y += 1 + 8 * ((len(inside) + 1) // 2)
    return {
        "uid": "gpuclaim",
        "title": "gpuclaim",
        "tags": ["gpu"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, 1)],
    }


def _panel(title: str, text: str, unit: str, queries: list[tuple[str, str]], place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(queries)
        ],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
