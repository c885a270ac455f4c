"""Writes docs/reference/api.md from the CRDs: `make docs`. A test says when it is out of date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuclaim.api import crd

HEAD = """# The API

Group `gpu.cozystack.io`, version `v1alpha1`. Made from the CRDs by `make docs`; `kubectl explain` says the same.
`[]` is an item of a list. What must hold beyond a field's own shape stands under **rules**.
"""
FILE = Path(__file__).with_name("api.md")


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for kind in crd.KINDS for line in _kind(kind))]) + "\n"


def _kind(kind: crd.Kind) -> Iterator[str]:
    schema = crd.schema(kind)
    scope = "namespaced" if kind.namespaced else "cluster-scoped"
    yield f"## {kind.type.__name__}\n"
    yield f"{schema['description']} {scope.capitalize()}; `kubectl get {kind.plural}`, short `{kind.short[0]}`.\n"
    yield "| field | type | shape | what it is |"
    yield "| --- | --- | --- | --- |"
    for part in ("spec", "status"):
        yield from _fields(part, schema["properties"][part])
    rules = [rule["message"] for _, found in _walk("", schema) for rule in found.get("x-kubernetes-validations", ())]
    if rules:
        yield "\n**Rules**\n"
        yield from (f"- {message}" for message in dict.fromkeys(rules))
    yield ""


def _fields(path: str, schema: dict[str, Any]) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        need = " **required**" if name in required else ""
        said = field.get("description", "").replace("|", "\\|").replace("\n", " ")
        yield f"| `{here}`{need} | {_type(field)} | {_shape(field)} | {said} |"
        yield from _fields(here + ("[]" if field["type"] == "array" else ""), field.get("items", field))


def _walk(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _walk(f"{path}.{name}", field)
    if "items" in schema:
        yield from _walk(f"{path}[]", schema["items"])


def _type(field: dict[str, Any]) -> str:
    if field["type"] == "array":
        keys = field.get("x-kubernetes-list-map-keys")
        return f"list of {field['items']['type']}s" + (f", by {', '.join(keys)}" if keys else "")
    return "time" if field.get("format") == "date-time" else str(field["type"])


def _shape(field: dict[str, Any]) -> str:
    parts = []
    if "enum" in field:
        parts.append(" or ".join(f"`{value}`" for value in field["enum"]))
    if "minimum" in field:
        parts.append(f"≥ {field['minimum']}")
    if "maxLength" in field:
        parts.append(f"≤ {field['maxLength']} characters")
    if "maxItems" in field:
        parts.append(f"≤ {field['maxItems']}")
    if "default" in field:
        parts.append(f"default {field['default']}")
    return ", ".join(parts)


if __name__ == "__main__":
    FILE.write_text(page())
