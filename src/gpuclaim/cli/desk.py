"""What the commands of `kubectl gpu` share: kubectl's options, the cluster behind them, and what is printed."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

import click

from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.cli import complete, options
from gpuclaim.kube.blocking import AnswerError, Blocking, NoAnswerError, Object
from gpuclaim.kube.config import ConfigError, load
from gpuclaim.kube.resources import Resource, resource_of
from gpuclaim.views import faults, table, text

F = TypeVar("F", bound=Callable[..., Any])

CLASSES: Final = resource_of(GPUClass)
CLAIMS: Final = resource_of(GPUClaim)
NODES: Final = resource_of(GPUNode)
_EVERY: Final = "all namespaces"


@dataclasses.dataclass(frozen=True, slots=True)
class Desk:
    """A cluster, and the namespace that a command is about (empty: all of them)."""

    client: Blocking
    namespace: str

    @property
    def everywhere(self) -> bool:
        """Whether all namespaces are asked for."""
        return not self.namespace


def cluster(*, namespaced: bool = True, everywhere: bool = False) -> Callable[[F], F]:
    """Kubectl's options for where to look; the command gets a `Desk` first, and its failures become sentences."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapped(*args: object, **given: Any) -> None:  # noqa: ANN401 - click's, whatever they are
            kubeconfig, context = given.pop("kubeconfig"), given.pop("context")
            namespace, every = given.pop("namespace", None), given.pop("all_namespaces", False)
            with failures():
                config = load(kubeconfig, context)
                place = "" if every or not namespaced else namespace or config.namespace
                command(Desk(Blocking(config), place), *args, **given)

        decorated: Any = wrapped
        if everywhere:
            decorated = click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")(decorated)
        if namespaced:
            decorated = click.option(
                "-n",
                "--namespace",
                help="The namespace; by default the context's.",
                shell_complete=complete.objects("namespaces"),
            )(decorated)
        return cast("F", options.kubeconfig(decorated))

    return decorate


def output(command: F) -> F:
    """The option -o, as kubectl has it."""
    option = click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["wide", "json", "yaml", "name"]),
        help="By default a table; wide has more columns.",
    )
    return option(command)


def selector(command: F) -> F:
    """The option -l, as kubectl has it."""
    return click.option("-l", "--selector", default="", help="Only objects with these labels: a=b,c!=d.")(command)


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turns what an apiserver, or its absence, raises into a sentence and exit code 1."""
    try:
        yield
    except AnswerError as error:
        raise click.ClickException(faults.sentence(error.status)) from None
    except NoAnswerError as error:
        what = "is it running, and is this the right --context?"
        raise click.ClickException(f"{text.safe(str(error))}: {what}") from None
    except ConfigError as error:
        raise click.ClickException(text.safe(str(error))) from None


def fetch(desk: Desk, resource: Resource, names: Sequence[str], labels: str = "") -> Object:
    """The named objects, or all of them that have the labels, as a list object."""
    if not names:
        return desk.client.list(resource, desk.namespace, labels=labels)
    if labels:
        raise click.UsageError("names and -l exclude each other")
    if resource.namespaced and desk.everywhere:
        raise click.UsageError("an object cannot be named in all namespaces: leave -A or the name away")
    items = [desk.client.get(resource, name, desk.namespace) for name in dict.fromkeys(names)]
    return {"apiVersion": resource.api_version, "kind": "List", "metadata": {}, "items": items}


def show(
    found: Object,
    form: str | None,
    resource: Resource,
    named: Sequence[str],
    header: Sequence[str],
    rows: Iterable[table.Row],
) -> None:
    """Prints a list in the form that was asked for; one object that was named stands alone, as kubectl has it."""
    items = found["items"]
    if form == "name":
        for item in items:
            click.echo(f"{full(resource)}/{text.safe(item['metadata']['name'])}")
    elif form in {"json", "yaml"}:
        dump(items[0] if len(named) == 1 and len(items) == 1 else found, form)
    else:
        show_table(header, rows)


def full(resource: Resource) -> str:
    """The resource as `-o name` writes it: gpuclaim.gpu.cozystack.io."""
    plural = resource.plural
    singular = plural[:-2] if plural.endswith("sses") else plural[:-1]
    return f"{singular}.{resource.api_version.partition('/')[0]}"


def dump(obj: Object, form: str) -> None:
    """Prints an object as JSON or YAML; both write what a terminal would obey as escapes."""
    if form == "json":
        click.echo(json.dumps(obj, indent=4))
    else:
        import yaml

        click.echo(yaml.dump(obj, sort_keys=False, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)), nl=False)


def show_table(header: Sequence[str], rows: Iterable[table.Row]) -> None:
    """Prints a table, cut to a terminal's width, whole elsewhere."""
    click.echo(table.render(header, rows, columns(), paint), color=colours())


def columns() -> int | None:
    """The terminal's width; None where the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def colours() -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR says otherwise (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(value: str, colour: str) -> str:
    """The value in the colour, where colours are used."""
    return click.style(value, fg=colour) if colours() else value


def folded(line: str, wide: int | None = None) -> str:
    """A sentence on as many lines as the terminal needs; `wide` columns, by default those of the output."""
    return "\n".join(text.folded(line, columns() if wide is None else wide))


def note(line: str) -> None:
    """A sentence beside the result, on the standard error; folded to the terminal."""
    click.echo(folded(line, shutil.get_terminal_size().columns if sys.stderr.isatty() else 0), err=True)


def nothing(desk: Desk, what: str) -> None:
    """Kubectl's words where a list is empty."""
    note(f"No {what} found in {f'namespace {desk.namespace}' if desk.namespace else _EVERY}.")


def now() -> dt.datetime:
    """This moment, with its zone."""
    return dt.datetime.now(dt.UTC)


class Seconds(click.ParamType[float]):
    """A duration as kubectl takes it: 30s, 5m, 1h; a bare number is of seconds."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if not isinstance(value, str):
            return value
        unit = {"s": 1, "m": 60, "h": 3600}.get(value[-1:], 0)
        number = value[:-1] if unit else value
        if not number.isdigit() or int(number) < 1:
            self.fail(f"{value!r} is no duration such as 30s, 5m or 1h", param, ctx)
        return float(int(number) * (unit or 1))
