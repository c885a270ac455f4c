"""`gpuclaim controller` (R72)."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import logging
import signal
import sys
import urllib.parse
from pathlib import Path

import click

from gpuclaim.admission.certificates import CertificateError
from gpuclaim.admission.server import PortInUseError
from gpuclaim.cli import logs, options
from gpuclaim.controller import app
from gpuclaim.controller.front import HttpsConfig
from gpuclaim.kube.config import Config, ConfigError, load
from gpuclaim.kube.lease import Timing
from gpuclaim.ledger.errors import LedgerError
from gpuclaim.placement.books import Settings


def _service(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, str, int] | None:
    if value is None:
        return None
    place, _, port = value.partition(":")
    namespace, slash, name = place.partition("/")
    if not (namespace and slash and name and (port or "443").isdigit()):
        raise click.BadParameter("must be NAMESPACE/NAME or NAMESPACE/NAME:PORT")
    return namespace, name, int(port or 443)


def _url(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    parts = urllib.parse.urlsplit(value)
    try:
        usable = not value or (parts.scheme == "https" and parts.hostname and parts.port is not None)
    except ValueError:
        usable = False
    if not usable:
        raise click.BadParameter("must be https://HOST:PORT")
    return value


def _ip(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    try:
        return str(ipaddress.ip_address(value)) if value else ""
    except ValueError:
        raise click.BadParameter("must be an IPv4 or IPv6 address") from None


@click.command()
@options.kubeconfig
@click.option(
    "--webhook-url",
    callback=_url,
    default="",
    help="Outside a cluster: https://HOST:PORT by which the apiserver reaches this process. Port 0 takes a free one.",
)
@click.option(
    "--webhook-service",
    callback=_service,
    metavar="NAMESPACE/NAME[:PORT]",
    help="In a cluster: the Service in front of the controllers.",
)
@click.option(
    "--pod-ip",
    envvar="POD_IP",
    show_envvar=True,
    callback=_ip,
    default="",
    metavar="ADDRESS",
    help="In a cluster: this pod's address. The Service then selects no pods, and the leader makes it lead here;"
    " its port must be named https.",
)
@click.option(
    "--listen",
    callback=options.address,
    default=":9443",
    show_default=True,
    help="Where the webhook listens in a cluster.",
)
@click.option(
    "--webhook-certificate",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where tls.crt, tls.key and ca.crt are, as cert-manager writes them, read again when they change; without it"
    " the webhook makes and rotates its own.",
)
@click.option(
    "--lease-namespace", help="The namespace of the leader's Lease; by default that of the kubeconfig or pod."
)
@click.option(
    "--lease-name",
    default="gpuclaim-controller",
    show_default=True,
    help="The name of the Lease that the leader holds.",
)
@click.option(
    "--identity",
    default=app.default_identity,
    show_default="host name and process id",
    help="This replica's name in the Lease; no two may have the same.",
)
@click.option(
    "--lease-duration",
    type=click.FloatRange(min=1),
    default=15,
    show_default=True,
    help="Seconds that the Lease lasts when it is not renewed: after a leader's death nobody takes orders that long.",
)
@click.option(
    "--evacuate-after",
    type=click.FloatRange(min=0),
    default=60,
    show_default=True,
    help="Seconds that a node may be down, drained or short of GPUs before holds of VMs that are off leave it.",
)
@click.option("--show-counts", is_flag=True, help="The catalogue says how many GPUs of a class are free.")
@click.option(
    "--silent-after",
    type=click.FloatRange(min=1),
    default=900,
    show_default=True,
    help="Seconds after which a node whose agent does not report takes no new hold.",
)
@click.option(
    "--ancestor-label-prefix",
    default="tenant.cozystack.io/",
    show_default=True,
    help="Namespace labels that name the tenants a tenant is inside of begin with this.",
)
@click.option(
    "--exempt-namespace",
    multiple=True,
    help="Pods of this namespace may ask for GPUs without a claim. May be repeated.",
)
@click.option(
    "--ledger",
    envvar="GPUCLAIM_LEDGER",
    default="",
    metavar="URL",
    help="Where usage is recorded: sqlite:///FILE or postgresql://USER@HOST/DATABASE. Default: nowhere, and claims keep"
    " totals alone. Also read from $GPUCLAIM_LEDGER.",
)
@click.option(
    "--metrics-listen",
    callback=options.address,
    metavar="ADDRESS:PORT",
    help="Serve /metrics there, over plain HTTP. By default it is not served.",
)
@click.option(
    "--metrics-tenants",
    is_flag=True,
    help="The metrics tell of each tenant's budget: some series more a quota.",
)
@logs.options
def controller(
    kubeconfig: Path | None,
    context: str | None,
    webhook_url: str,
    webhook_service: tuple[str, str, int] | None,
    pod_ip: str,
    listen: tuple[str, int],
    webhook_certificate: Path | None,
    lease_namespace: str | None,
    lease_name: str,
    identity: str,
    lease_duration: float,
    evacuate_after: float,
    show_counts: bool,
    silent_after: float,
    ancestor_label_prefix: str,
    exempt_namespace: tuple[str, ...],
    ledger: str,
    metrics_listen: tuple[str, int] | None,
    metrics_tenants: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Run the controller: decide orders, bind claims, pin launcher pods.

    Several replicas may run: one leads, the others follow and take over when its lease ends.
    """
    if bool(webhook_url) == bool(webhook_service):
        raise click.UsageError("give one of --webhook-url (outside a cluster) and --webhook-service (in one)")
    logs.start(log_level, log_format)
    try:
        api = load(kubeconfig, context)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    # Short leases leave a smaller margin, never more than a third.
    timing = Timing(duration=lease_duration, retry=min(2.0, lease_duration / 8), margin=min(5.0, lease_duration / 3))
    config = app.ControllerConfig(
        https=HttpsConfig(
            url=webhook_url,
            service=webhook_service,
            address=pod_ip,
            listen=(listen[0] or "0.0.0.0", listen[1]),  # noqa: S104 - as the user asked
            certificate_folder=webhook_certificate,
        ),
        lease_namespace=lease_namespace or api.namespace,
        lease_name=lease_name,
        identity=identity,
        timing=timing,
        show_counts=show_counts,
        ledger=_checked(ledger),
        metrics=metrics_listen,
        metrics_tenants=metrics_tenants,
        evacuate_after=dt.timedelta(seconds=evacuate_after),
        settings=Settings(
            silent_after=dt.timedelta(seconds=silent_after),
            ancestor_label_prefix=ancestor_label_prefix,
            exempt_namespaces=frozenset(exempt_namespace),
        ),
    )
    try:
        asyncio.run(_until_signal(api, config))
    except* (PortInUseError, CertificateError) as group:
        raise click.ClickException(str(group.exceptions[0])) from None


def _checked(ledger: str) -> str:
    if not ledger:
        logging.getLogger(__name__).warning("no --ledger: the usage of a claim goes with it")
        return ""
    from gpuclaim.ledger.store import Ledger

    try:
        Ledger(ledger).close()
    except LedgerError as error:
        raise click.ClickException(str(error)) from None
    return ledger


async def _until_signal(api: Config, config: app.ControllerConfig) -> None:
    task = asyncio.ensure_future(app.run(api, config, ready=lambda: print("ready", file=sys.stdout, flush=True)))
    loop = asyncio.get_running_loop()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
