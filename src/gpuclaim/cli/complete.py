"""Completion: of names that the cluster or the kubeconfig has, and for kubectl (`kubectl_complete-gpu`).

Kubectl runs a program of that name on PATH with the words after `kubectl gpu`, the last of them being typed, and reads
candidates, a line each with a tab before what they are, and `:` with a number that says what the shell may add:
https://github.com/kubernetes/kubernetes/blob/v1.37.2/staging/src/k8s.io/kubectl/pkg/cmd/plugin_completion.go.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import click
from click.shell_completion import CompletionItem, ShellComplete

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_FILES: Final = 0
"""The shell may offer files as well (cobra's ShellCompDirectiveDefault)."""
_NO_FILES: Final = 4
_SECONDS: Final = 3.0
"""Nobody waits longer for a word."""


def candidates(group: click.Group, words: Sequence[str]) -> tuple[list[CompletionItem], bool]:
    """What the last of the words may become, and whether it may be a file's name as well."""
    *before, incomplete = words or ("",)
    found = ShellComplete(group, {}, group.name or "", "").get_completions(list(before), incomplete)
    plain = [item for item in found if item.type == "plain"]
    return plain, len(plain) < len(found)


def kubectl() -> None:
    """The program `kubectl_complete-gpu`."""
    from gpuclaim.cli.main import kubectl_gpu

    found, files = candidates(kubectl_gpu, sys.argv[1:])
    for item in found:
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_FILES if files else _NO_FILES}")


def objects(plural: str) -> Completer:
    """Completes names of our objects (gpuclasses, gpuclaims, gpunodes) or of namespaces in the cluster; silently."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        taken = {name for value in ctx.params.values() if isinstance(value, tuple) for name in value}
        return [
            CompletionItem(name) for name in _names(ctx, plural) if name.startswith(incomplete) and name not in taken
        ]

    return complete


def contexts(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the contexts of the kubeconfig."""
    from gpuclaim.kube import config

    return [
        CompletionItem(name) for name in config.contexts(ctx.params.get("kubeconfig")) if name.startswith(incomplete)
    ]


def _names(ctx: click.Context, plural: str) -> Iterator[str]:
    from gpuclaim.api import core
    from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
    from gpuclaim.kube.blocking import AnswerError, Blocking, NoAnswerError
    from gpuclaim.kube.config import ConfigError, load
    from gpuclaim.kube.resources import resource_of

    kinds: tuple[type[core.Struct], ...] = (GPUClass, GPUClaim, GPUNode, core.Namespace)
    known = {found.plural: found for found in (resource_of(kind) for kind in kinds)}
    resource, given = known[plural], ctx.params
    try:
        config = load(given.get("kubeconfig"), given.get("context"))
        place = (given.get("namespace") or config.namespace) if resource.namespaced else ""
        for item in Blocking(config, seconds=_SECONDS).list(resource, place)["items"]:
            yield str(item["metadata"]["name"])
    except (AnswerError, NoAnswerError, ConfigError):
        return  # a shell that completes has no place for a sentence
