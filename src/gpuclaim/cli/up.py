"""`gpuclaim up` (R73): a whole cloud on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import click

from gpuclaim.local import build, cloud, kubevirt, offers, toolchain, tour
from gpuclaim.local.cloud import Cloud, CloudError, Stage
from gpuclaim.local.process import ProcessError
from gpuclaim.local.simulated_node import UNHEALTHY
from gpuclaim.local.toolchain import ToolchainError

_EXPECTED: Final = (
    CloudError,
    ProcessError,
    ToolchainError,
    build.BuildError,
    kubevirt.KubeVirtError,
    tour.TourError,
)
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ROWS: Final = 9
_WIDTH: Final = 80
_INTERRUPTED: Final = 130  # what a shell says of a program that Ctrl-C ended


@click.command()
@click.option("--nodes", type=click.IntRange(1, 250), help="How many nodes. By default 3; every third serves vGPUs.")
@click.option("--gpus", type=click.IntRange(1, 64), help="GPUs of each node. By default 4, or 2 where they are vGPUs'.")
@click.option("--scenario", type=click.Choice(["tour"]), help="Play a story on it: tour shows what gpuclaim does.")
@click.option("--exit", "end", is_flag=True, help="End when it stands and the scenario is over.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="The apiserver's port."
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="GPUCLAIM_RUN",
    show_envvar=True,
    help="The run folder: kubeconfig, logs, state; emptied at the start. By default one for each user.",
)
def up(nodes: int | None, gpus: int | None, scenario: str | None, end: bool, port: int, directory: Path | None) -> None:
    """Start a whole cloud on this machine, ready to order GPUs from; Ctrl-C ends it.

    Kubernetes, KubeVirt's controller and gpuclaim are the real ones. The GPU nodes are simulated: their hardware and
    kubelet, and KubeVirt's virt-handler on them, so VMs "run" without a guest. Each start begins anew. It needs no
    root. The first start builds Kubernetes and KubeVirt from source, once, for some minutes.
    """
    try:
        with cloud.run_folder((directory or toolchain.cache_dir() / "up").absolute()) as folder:
            _build()
            _log_into(folder / "logs" / "up.log")
            plans = offers.layout(nodes, gpus)
            ended = asyncio.run(_Run(folder, plans, port, scenario, end=end).run())
    except* (*_EXPECTED, BrokenPipeError) as group:
        # A part that failed may have taken others with it: the first one says why.
        first = _leaves(group)[0]
        if isinstance(first, BrokenPipeError):
            raise first from None  # nobody reads any more; click ends on it without a word
        raise click.ClickException(str(first)) from None
    if not ended:
        raise click.exceptions.Exit(_INTERRUPTED)


class _Run:
    """One run, from the first process to the last."""

    def __init__(
        self, folder: Path, plans: Sequence[offers.NodePlan], port: int, scenario: str | None, *, end: bool
    ) -> None:
        self._folder = folder
        self._plans = plans
        self._port = port
        self._scenario = scenario
        self._end = end
        self._stopping = False
        self._stands = False
        self._told = False

    def _say_link(self, link: str) -> None:
        # The first one is among what there is to try.
        if self._told:
            click.echo(f"The page is open. A link for another browser: {link}")

    async def run(self) -> bool:
        """Run until the end is asked for; whether it ever stood."""
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._stop, task)
        began = time.monotonic()
        try:
            async with cloud.running(
                self._folder, self._plans, port=self._port, done=_say_stage, linked=self._say_link
            ) as stands:
                click.echo(f"Ready in {time.monotonic() - began:.1f} s.\n")
                self._stands = True
                if self._scenario:
                    await tour.play(stands, click.echo, pause=not self._end and _at_terminal())
                _say_what_stands(stands)
                if not self._end:
                    _say_what_to_try(stands)
                    click.echo("\nCtrl-C ends all of it.")
                    self._told = True
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        return self._stands

    def _stop(self, task: asyncio.Task[bool]) -> None:
        if self._stopping:
            # Asked again: at once. The kernel ends what this process has started.
            os._exit(_INTERRUPTED)
        self._stopping = True
        task.cancel()
        try:
            click.echo("\nStopping …")
        except OSError:
            # The terminal, or the program that read this, has gone before. Nothing is flushed there at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _build() -> None:
    """Builds what the cache lacks, on the main thread: there a signal ends Go too."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        build.command("etcd", progress=_say_progress)
        build.ensure(kubevirt.component(), _say_progress)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log_into(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _say_progress(line: str) -> None:
    click.echo(line)


def _say_stage(stage: Stage) -> None:
    click.echo(f"  {stage.name:<34}{stage.seconds:5.1f} s")


def _say_what_stands(stands: Cloud) -> None:
    first, second = cloud.TENANTS
    click.echo(_table(stands.plans))
    click.echo(f"\nTenants: {first}, with a budget of {cloud.BUDGET} {offers.H200.name}, and {second}, without one.\n")
    what = (
        f"Real: Kubernetes {stands.version}, virt-controller of KubeVirt {kubevirt.VERSION}, gpuclaim's controller and"
        " agents. Simulated: the nodes' hardware and kubelet, and KubeVirt's virt-handler: a VM that runs has no guest."
    )
    click.echo(textwrap.fill(what, _WIDTH, break_on_hyphens=False))


def _say_what_to_try(stands: Cloud) -> None:
    what = "Or look at it, in a browser; the link is good once. Act there as the hoster or as one of the tenants:"
    click.echo(f"\n{textwrap.fill(what, _WIDTH)}\n  {stands.link}")
    click.echo("\nIn another terminal:\n")
    if missing := [name for name in ("kubectl", "kubectl-gpu") if shutil.which(name) is None]:
        click.echo(f"  export PATH={cloud.shown(stands.programs)}:$PATH  # for {' and '.join(missing)}")
    click.echo(f"  export KUBECONFIG={cloud.shown(stands.control_plane.kubeconfig)}")
    click.echo(f"  export GPUCLAIM_LEDGER={shlex.quote(stands.ledger)}\n")
    order, too_many, vm = (cloud.shown(stands.examples / f"{name}.yaml") for name in ("order", "too-many", "vm"))
    for why, command in (
        ("the catalogue", "kubectl gpu classes"),
        ("an order: bound at once", f"kubectl create -n tenant-a -f {order}"),
        ("what it holds, and where", "kubectl gpu claims -n tenant-a -o wide"),
        ("one that is refused, and why", f"kubectl create -n tenant-b -f {too_many}"),
        ("a VM on the node of its hold", f"kubectl create -n tenant-a -f {vm}"),
        ("its pod", "kubectl get pods -n tenant-a -o wide"),
        ("a GPU fails, as its driver sees it", f"kubectl annotate node gpu-1 {UNHEALTHY}=0000:18:00.0"),
        ("every GPU, and what has become of it", "kubectl gpu nodes"),
        ("the same, live", "kubectl gpu top"),
        ("how long GPUs were held and used", "kubectl gpu usage"),
        ("what is wrong with the installation", "kubectl gpu doctor -n tenant-a"),
        ("what would move if a node were emptied", "gpuclaim plan --cluster --drain gpu-1 -o table"),
    ):
        click.echo(f"  # {why}\n  {command}")
    click.echo(f"\nLogs: {cloud.shown(stands.control_plane.directory / 'logs')}")
    click.echo("What it is good for, told step by step: gpuclaim up --scenario tour")


def _table(plans: Sequence[offers.NodePlan]) -> str:
    rows = [("NODE", "GPUS", "TO ORDER", "WHAT IT IS")]
    shown = plans if len(plans) <= _ROWS else plans[: _ROWS - 1]
    rows += [
        (plan.name, str(plan.gpus), f"{plan.orderable} {plan.offer.name}", plan.offer.display_name) for plan in shown
    ]
    if len(plans) > len(shown):
        rows.append((f"and {len(plans) - len(shown)} more like these", "", "", ""))
    return "\n".join(f"{name:<8}{gpus:<6}{order:<10}{what}".rstrip() for name, gpus, order, what in rows)
