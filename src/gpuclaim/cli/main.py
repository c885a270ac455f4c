"""`gpuclaim`, also installed as `kubectl-gpu`."""

from __future__ import annotations

import importlib
from typing import Final

import click
from click.shell_completion import CompletionItem

from gpuclaim import __version__

# Name → module of gpuclaim.cli, and the line that --help shows. A command is imported when it is asked for only: the
# apiserver client or the Kubernetes builder would triple the start-up time of the others.
COMMANDS: Final = {
    "classes": ("classes", "Show the catalogue: what can be ordered."),
    "order": ("order", "Order GPUs of a class."),
    "claims": ("claims", "Show what is ordered, and what it holds."),
    "release": ("release", "Give GPUs back."),
    "budget": ("budget", "Show how much may be ordered, and how much is used."),
    "nodes": ("nodes", "Show every node's GPUs and what has become of each."),
    "top": ("top", "Watch the GPUs as they change."),
    "cordon": ("cordon", "Take nodes out of new placement."),
    "uncordon": ("cordon", "Let nodes take new holds again."),
    "exclude": ("cordon", "Take one GPU out of new placement."),
    "include": ("cordon", "Let a GPU that was excluded be held again."),
    "doctor": ("doctor", "Say what is wrong with the installation, and how to mend it."),
    "up": ("up", "A whole cloud on this machine, ready to order from."),
    "plan": ("plan", "Decide orders against a state, with no cluster."),
    "render": ("render", "Print the template of VMs that have GPUs of a class."),
    "crds": ("crds", "Print the CustomResourceDefinitions."),
    "console": ("console", "Serve the page for tenants and the hoster."),
    "controller": ("controller", "Run the controller."),
    "usage": ("usage", "Report what was held and used, by tenant, class and month."),
    "agent": ("agent", "Run the node agent, or print one report."),
}
# What `kubectl gpu` has of them: what a tenant and a hoster do daily. The rest makes parts run, or files.
USERS: Final = (
    "classes",
    "order",
    "claims",
    "release",
    "budget",
    "nodes",
    "top",
    "cordon",
    "uncordon",
    "exclude",
    "include",
    "usage",
    "doctor",
)


class _Lazy(click.Group):
    names: tuple[str, ...] = tuple(COMMANDS)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.names:
            return None
        module = importlib.import_module(f"gpuclaim.cli.{COMMANDS[cmd_name][0]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Click would import every command for its help.
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in self.names if name.startswith(incomplete)]
        return found + super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.names])


class _Users(_Lazy):
    names = USERS


_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Lazy, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="gpuclaim")
def main() -> None:
    """Order and hold GPUs for virtual machines on Kubernetes with KubeVirt."""


@click.group(cls=_Users, name="gpu", context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="kubectl-gpu")
def kubectl_gpu() -> None:
    """Order and hold GPUs for virtual machines."""


if __name__ == "__main__":
    main()
