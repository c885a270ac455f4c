"""Writes api.md from the CRDs, command-line.md from the commands, metrics.md from the metrics: `make docs`.

A test says when they are old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuclaim.admission import judgement
from gpuclaim.agent.pulse import Pulse
from gpuclaim.api import crd, reasons
from gpuclaim.cli.main import COMMANDS, main
from gpuclaim.controller import gauges, telemetry
from gpuclaim.placement import refusals

HEAD = """# The API

Group `gpu.cozystack.io`, version `v1alpha1`. Made from the CRDs by `make docs`; `kubectl explain` has the same fields.
`[]` is an item of a list. What must hold beyond a field's own shape stands under **rules**;
the conditions and their reasons have [a page](reasons.md) of their own.
"""
COMMANDS_HEAD = """# The command line

One program, `gpuclaim`. Made from the commands by `make docs`; `gpuclaim COMMAND --help` says the same.
`gpuclaim --version` prints the version.
"""
METRICS_HEAD = """# Metrics

Made from the code by `make docs`. The controller serves them with `--metrics-listen` (in the chart always, on port
9478), the agent with `--listen`. What the cloud has is told by the leader alone, so that a sum over the replicas is
right; in the seconds between two leaders nobody tells it. A class that shares its resource with another counts the
same GPUs: do not add them up. Labels have few values, however many tenants there are; what is not of a label's
vocabulary counts as `Other`. Tenants' names are in the metrics with `--metrics-tenants` only
(`controller.metrics.tenants`). Pods that the guard turns away never come here: the apiserver counts them, as
`apiserver_validating_admission_policy_check_total{policy="gpuclaim-guard"}`.
[What to do about an alert](../how-to/alerts.md).
"""
HERE = Path(__file__).parent
API, COMMAND_LINE, METRICS = HERE / "api.md", HERE / "command-line.md", HERE / "metrics.md"


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
        said = field["description"].replace("|", "\\|").replace("\n", " ")
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


def command_line() -> str:
    """The page of the commands and their options."""
    context = click.Context(main)
    lines = [COMMANDS_HEAD]
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        lines += _command(name, command)
    return "\n".join(lines)


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join(["gpuclaim", name, *command.collect_usage_pieces(context)])
    yield f"## {name}\n\n`{usage}`\n"
    # After a \\b comes what click leaves as it is: an example.
    for paragraph in (command.help or "").split("\b")[0].strip().split("\n\n"):
        yield " ".join(paragraph.split()) + "\n"
    yield "| option | default | what it does |"
    yield "| --- | --- | --- |"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"gpuclaim {name} {parameter.opts[0]} has no help"
            yield f"| {_names(parameter, context)} | {_default(parameter, context)} | {_cell(parameter.help)} |"
    yield ""


def metrics() -> str:
    """The page of the controller's and the agent's metrics."""
    exposed = {family.name: family for family in telemetry.Telemetry().registry.collect()}
    lines = [METRICS_HEAD, "## The cloud: from the leader alone\n", *_rows(gauges.GAUGES, exposed)]
    lines += ["\n## The replica: from each\n", *_rows((*telemetry.REPLICA_GAUGES, *telemetry.COUNTED), exposed)]
    lines += [
        "\nThe library's own are there too: `process_*` (memory, CPU, open files), `python_info` and `python_gc_*`.",
        "\n## Label values\n",
        "| label | values |",
        "| --- | --- |",
        *(f"| {label} | {', '.join(f'`{each}`' for each in values)} |" for label, values in _LABELS.items()),
        "\n## The agent\n",
        *_rows(_of_agent(), {f.name: f for f in text_string_to_metric_families(Pulse(beat=0).metrics())}),
    ]
    return "\n".join(lines) + "\n"


_LABELS = {
    "`gpuclaim_nodes` state": tuple(gauges.STATES),
    "`gpuclaim_budgets` state": gauges.BUDGET_STATES,
    "verdict": tuple(judgement.Ruling),
    "reason of `gpuclaim_claim_events_total`": tuple(reasons.EventReason),
    "reason of `gpuclaim_orders_total`": (
        "",
        *reasons.Refusal,
        *reasons.MachineRefusal,
        "AlreadyExists",
        "ServiceUnavailable",
    ),
    "reason of `gpuclaim_pods_total`": ("", *reasons.PodRefusal, "ServiceUnavailable"),
    "reason of `gpuclaim_refusals`": ("OutOfResource", *sorted(refusals.REASONS)),
}


def _of_agent() -> Iterator[gauges.Family]:
    for family in text_string_to_metric_families(Pulse(beat=0).metrics()):
        name = family.name + ("_total" if family.type == "counter" else "")
        yield gauges.Family(name, family.documentation, tuple(family.samples[0].labels))


def _rows(families: Iterable[gauges.Family], exposed: Mapping[str, Metric]) -> Iterator[str]:
    yield "| metric | type | labels | what it says |"
    yield "| --- | --- | --- | --- |"
    for each in families:
        known = exposed.get(each.name.removesuffix("_total"))
        kind = known.type if known is not None else "gauge"
        yield f"| `{each.name}` | {kind} | {', '.join(each.labels)} | {_cell(each.text)} |"


def _names(option: click.Option, context: click.Context) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {_cell(_metavar(option, context))}"
    required = " **required**" if option.required else ""
    return f"`{names}{value}`{required}"


def _metavar(option: click.Option, context: click.Context) -> str:
    return "NUMBER" if isinstance(option.type, click.IntRange | click.FloatRange) else option.make_metavar(context)


def _default(option: click.Option, context: click.Context) -> str:
    # Of what is worked out at run time, the words that --help has.
    extra = option.get_help_extra(context)
    parts = [extra["default"].strip("()")] if extra.get("default") else []
    parts += [f"${name}" for name in extra.get("envvars", ())]
    return _cell(", ".join(parts))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    API.write_text(page())
    COMMAND_LINE.write_text(command_line())
    METRICS.write_text(metrics())
