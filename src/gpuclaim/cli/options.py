"""Options that several commands have, and the shapes of their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuclaim.cli import complete

F = TypeVar("F", bound=Callable[..., Any])


def kubeconfig(command: F) -> F:
    """The options --kubeconfig and --context, as `kube.config.load` takes them."""
    command = click.option("--context", help="The kubeconfig's context to use.", shell_complete=complete.contexts)(
        command
    )
    path = click.Path(path_type=Path)
    return click.option("--kubeconfig", type=path, help="How to reach the apiserver; else as kubectl does.")(command)


def address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Where to listen, as (host, port); the host is empty for every address, None where nothing was given.

    Raises:
        click.BadParameter: it is not ADDRESS:PORT, [ADDRESS]:PORT or :PORT.
    """
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter("must be ADDRESS:PORT, [ADDRESS]:PORT or :PORT")
    return host.strip("[]"), int(port)
