"""`gpuclaim crds` (R70)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml

from gpuclaim.api import crd


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="The format."
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one YAML file for each into this folder instead, as the Helm chart has them.",
)
def crds(names: tuple[str, ...], output: str, into: Path | None) -> None:
    """Print the CustomResourceDefinitions, or those named (gpuclasses, gpuclaims, gpunodes)."""
    known = {definition["spec"]["names"]["plural"]: definition for definition in crd.definitions()}
    unknown = [name for name in names if name.partition(".")[0] not in known]
    if unknown:
        raise click.UsageError(f"there is no CRD {unknown[0]!r}: choose from {', '.join(known)}")
    chosen = {name.partition(".")[0] for name in names} or set(known)
    wanted = {plural: definition for plural, definition in known.items() if plural in chosen}
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        for plural, definition in wanted.items():
            (into / f"{plural}.yaml").write_text(as_yaml(definition))
    elif output == "json":
        click.echo(json.dumps(list(wanted.values()), indent=2))
    else:
        click.echo("---\n".join(as_yaml(definition) for definition in wanted.values()), nl=False)


def as_yaml(definition: dict[str, Any]) -> str:
    """One CRD as YAML, in the order of its keys."""
    return yaml.dump(definition, sort_keys=False, width=120, Dumper=_Plain)


class _Plain(yaml.SafeDumper):
    """Without anchors: equal parts are written out."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True
