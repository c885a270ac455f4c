"""`gpuclaim`, also installed as `kubectl-gpu`."""

from __future__ import annotations

import importlib
from typing import Final

import click

from gpuclaim import __version__

# Name → module of gpuclaim.cli, and the line that --help shows. A command is imported when it is asked for only: the
# apiserver client or the Kubernetes builder would triple the start-up time of the others.
COMMANDS: Final = {
    "up": ("up", "A whole cloud on this machine, ready to order from."),
    "plan": ("plan", "Decide orders against a state, with no cluster."),
    "render": ("render", "Print the template of VMs that have GPUs of a class."),
    "crds": ("crds", "Print the CustomResourceDefinitions."),
    "controller": ("controller", "Run the controller."),
    "usage": ("usage", "Report what was held and used, by tenant, class and month."),
    "agent": ("agent", "Run the node agent, or print one report."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gpuclaim.cli.{COMMANDS[cmd_name][0]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpuclaim")
def main() -> None:
    """Order and hold GPUs for virtual machines on Kubernetes with KubeVirt."""


if __name__ == "__main__":
    main()
