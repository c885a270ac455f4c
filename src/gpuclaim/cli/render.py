"""`gpuclaim render` (R76)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from gpuclaim.admission import machines
from gpuclaim.api import model, names
from gpuclaim.api.types import GPUClass
from gpuclaim.cli import options
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.config import ConfigError, load


@click.command()
@click.option("--class", "class_name", required=True, metavar="NAME", help="The GPUClass.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs of each VM.")
@click.option(
    "--set",
    "set_name",
    metavar="NAME",
    help="The VM uses GPUs that are ordered apart, with GPUClaims of this set; without, each VM is an order itself.",
)
@click.option("-f", "--file", metavar="FILE", help="Read the class from this file; - is standard input.")
@options.kubeconfig
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="The format."
)
def render(
    class_name: str,
    count: int,
    set_name: str | None,
    file: str | None,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
) -> None:
    """Print the template of VMs that have GPUs of a class.

    It is what a VirtualMachinePool has as spec.virtualMachineTemplate, to be merged with the VM's own fields. The class
    is read from the cluster, or from a file.
    """
    if file is not None and (kubeconfig is not None or context is not None):
        raise click.UsageError("give either --file, or --kubeconfig and --context")
    cls = _of_file(file, class_name) if file is not None else asyncio.run(_of_cluster(kubeconfig, context, class_name))
    limit = model.max_count(cls)
    if limit is not None and count > limit:
        raise click.ClickException(
            f"one VM may have at most {limit} GPUs of class {class_name!r}, and {count} are asked for"
        )
    if not model.resource_name(cls):
        raise click.ClickException(f"class {class_name!r} has a source that this version of gpuclaim does not know")
    try:
        template = machines.template(cls, count, set_name)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if cls.spec.closed:
        click.echo(f"Warning: class {class_name!r} is closed to new orders.", err=True)
    if output == "json":
        click.echo(json.dumps(template, indent=2))
    else:
        click.echo(yaml.safe_dump(template, sort_keys=False), nl=False)


def _of_file(file: str, class_name: str) -> GPUClass:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        documents = list(yaml.safe_load_all(data))
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise click.ClickException(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    found = [each for document in documents for each in _classes(document)]
    for each in found:
        if (each.get("metadata") or {}).get("name") == class_name:
            try:
                return msgspec.convert(each, GPUClass)
            except msgspec.ValidationError as error:
                raise click.ClickException(f"{file}: GPUClass {class_name!r}: {error}") from None
    there = ", ".join(sorted(str((each.get("metadata") or {}).get("name")) for each in found)) or "none"
    raise click.ClickException(f"{file}: there is no GPUClass {class_name!r} in it (of classes, it has: {there})")


def _classes(document: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any YAML
    if not isinstance(document, dict):
        return []
    if isinstance(document.get("items"), list):
        return [each for item in document["items"] for each in _classes(item)]
    named = isinstance(document.get("metadata") or {}, dict)
    return [document] if named and (document.get("apiVersion"), document.get("kind")) == _KIND else []


_KIND = (names.API_VERSION, "GPUClass")


async def _of_cluster(kubeconfig: Path | None, context: str | None, class_name: str) -> GPUClass:
    try:
        async with Client(load(kubeconfig, context)) as client:
            return await client.get(GPUClass, class_name)
    except ConfigError as error:
        raise click.ClickException(f"{error}, or a file that has the class with --file") from None
    except UnreachableError as error:
        raise click.ClickException(str(error)) from None
    except ApiError as error:
        if error.code == 404:
            raise click.ClickException(f"the cluster has no GPUClass {class_name!r}: {error}") from None
        raise click.ClickException(str(error)) from None
    except msgspec.ValidationError as error:
        raise click.ClickException(f"GPUClass {class_name!r} cannot be read by this version: {error}") from None
