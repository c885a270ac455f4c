"""`gpuclaim console`: the page for tenants and the hoster."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import urllib.parse
from pathlib import Path

import click

from gpuclaim.cli import complete, logs, options
from gpuclaim.console import guard
from gpuclaim.console.app import Console
from gpuclaim.console.config import ConsoleConfig, Login, secret_path
from gpuclaim.console.server import Certificate, ListenError, bound, serving
from gpuclaim.kube.config import Config, ConfigError, load


def _public(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value and (fault := guard.public_fault(value)):
        raise click.BadParameter(fault)
    return value.rstrip("/")


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="How to reach the apiserver; else as kubectl does.")
@click.option(
    "--context",
    "contexts",
    multiple=True,
    shell_complete=complete.contexts,
    help="The kubeconfig's context to use. Repeated, the page lets one choose whom to act as.",
)
@click.option(
    "--login",
    type=click.Choice([each.value for each in Login]),
    default=Login.KUBECONFIG.value,
    show_default=True,
    help="kubeconfig: by a link that is printed, with that kubeconfig's rights, on this machine only. token: by a form."
    " proxy: by the Authorization header that a proxy in front sends, such as oauth2-proxy.",
)
@click.option(
    "--listen",
    callback=options.address,
    default="127.0.0.1:8090",
    show_default=True,
    help="Where to listen; port 0 takes a free one.",
)
@click.option(
    "--public-url",
    callback=_public,
    default="",
    metavar="URL",
    help="What browsers call it: https://HOST[:PORT][/PATH]. Needed unless it listens on this machine's own address.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A certificate chain in PEM, read again when it changes; without it a proxy in front must speak https.",
)
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), help="Its private key in PEM.")
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=1),
    default=None,
    show_default="30, and 720 with --login kubeconfig",
    help="Minutes without a click after which a visitor is out.",
)
@click.option(
    "--session-hours",
    type=click.FloatRange(min=0.1),
    default=12,
    show_default=True,
    help="Hours after which a visitor is out in any case.",
)
@click.option(
    "--max-visitors",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="How many may be in at once.",
)
@click.option(
    "--max-objects",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="How many objects of a kind are read for a visitor.",
)
@click.option(
    "--proxies",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many proxies of yours are in front; what each adds to X-Forwarded-For is believed, for limits on logins.",
)
@click.option(
    "--logout-url", default="", metavar="URL", help="Where who logs out is sent on to, such as /oauth2/sign_out."
)
@click.option(
    "--ancestor-label-prefix",
    default="tenant.cozystack.io/",
    show_default=True,
    help="Namespace labels that name the tenants around a tenant begin with this; as the controller has it.",
)
@logs.options
def console(
    kubeconfig: Path | None,
    contexts: tuple[str, ...],
    login: str,
    listen: tuple[str, int],
    public_url: str,
    tls_certificate: Path | None,
    tls_key: Path | None,
    idle_timeout: float | None,
    session_hours: float,
    max_visitors: int,
    max_objects: int,
    proxies: int,
    logout_url: str,
    ancestor_label_prefix: str,
    log_level: str,
    log_format: str,
) -> None:
    """Serve the page on which tenants order GPUs and the hoster looks at nodes and devices.

    It has no rights of its own: whatever it shows and does, it does with the visitor's. On one's own machine it prints
    a link that lets one browser in, once, with the kubeconfig's rights.
    """
    logs.start(log_level, log_format)
    how = Login(login)
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    own = guard.loopback(listen[0])
    if how is Login.KUBECONFIG and not own:
        raise click.UsageError("--login kubeconfig listens on 127.0.0.1 or ::1 only: who reaches it acts as you")
    if how is not Login.KUBECONFIG and len(contexts) > 1:
        raise click.UsageError("several --context go with --login kubeconfig")
    if not public_url and not own:
        raise click.UsageError("say by --public-url what browsers call it")
    idle = 60 * (idle_timeout if idle_timeout is not None else 720 if how is Login.KUBECONFIG else 30)
    try:
        server = load(kubeconfig, contexts[0] if contexts else None, anonymous=True)
        known = _identities(kubeconfig, contexts) if how is Login.KUBECONFIG else {}
        listener = bound(*listen)
    except (ConfigError, ListenError) as error:
        raise click.ClickException(str(error)) from None
    url = urllib.parse.urlsplit(public_url or _own_url(listener, https=tls_certificate is not None))
    config = ConsoleConfig(
        login=how,
        origin=guard.origin(url.geturl()),
        base=url.path.rstrip("/") or (secret_path() if how is Login.KUBECONFIG else ""),
        server=server,
        contexts=known,
        idle=idle,
        longest=session_hours * 3600,
        most_visitors=max_visitors,
        most_objects=max_objects,
        proxies=proxies,
        logout_url=logout_url,
        ancestor_label_prefix=ancestor_label_prefix,
    )
    certificate = Certificate(tls_certificate, tls_key) if tls_certificate is not None and tls_key is not None else None
    try:
        asyncio.run(_serve(config, listener, certificate))
    except ListenError as error:
        raise click.ClickException(str(error)) from None


def _identities(kubeconfig: Path | None, contexts: tuple[str, ...]) -> dict[str, Config]:
    return {name or "kubeconfig": load(kubeconfig, name or None) for name in contexts or ("",)}


def _own_url(listener: socket.socket, *, https: bool) -> str:
    host, port = listener.getsockname()[:2]
    named = f"[{host}]" if ":" in host else host
    return f"{'https' if https else 'http'}://{named}:{port}"


async def _serve(config: ConsoleConfig, listener: socket.socket, certificate: Certificate | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as opened:
        await opened.enter_async_context(serving(Console(config, tell_link=_tell), listener, certificate))
        if config.login is not Login.KUBECONFIG:
            _tell(f"{config.origin}{config.base}/")
        await stop.wait()


def _tell(link: str) -> None:
    print(link, file=sys.stdout, flush=True)
