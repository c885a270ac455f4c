"""Prometheus' text format, read by its own library."""

from __future__ import annotations

from prometheus_client import parser


def samples(text: str) -> dict[str, float]:
    """Each series as `name{label="value"}`, its labels sorted, → its number."""
    return {
        _series(each.name, each.labels): each.value
        for family in parser.text_string_to_metric_families(text)
        for each in family.samples
    }


def _series(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name
