"""What the console is told when it starts."""

from __future__ import annotations

import dataclasses
import enum
import secrets
from collections.abc import Mapping

from gpuclaim.kube.config import Config


class Login(enum.StrEnum):
    """How a visitor proves who they are."""

    KUBECONFIG = "kubeconfig"
    """By a link that is printed where the console was started: it acts with that kubeconfig's credentials."""
    TOKEN = "token"  # noqa: S105 - a word
    """By a bearer token, typed into a form."""
    PROXY = "proxy"
    """By a bearer token that a proxy in front sends with every request, after it has asked an identity provider."""


def secret_path() -> str:
    """A base that nobody guesses: on this machine, cookies go to every port of it, and only this keeps ours to us."""
    return f"/{secrets.token_urlsafe(16)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsoleConfig:
    """What the console is told.

    Attributes:
        login: how visitors come in.
        origin: what a browser calls the page's place: scheme, host and port.
        base: the path that all of the page's begin with, without a slash at its end.
        server: where the apiserver is, without anybody's credentials.
        contexts: for `Login.KUBECONFIG`: whom one may act as, by name; the first is the one to begin with.
        idle: seconds without a request after which a visitor is out.
        longest: seconds after which a visitor is out in any case.
        most_visitors: how many may be in at once.
        most_objects: how many objects of a kind are read for a visitor.
        proxies: how many proxies of ours are in front, each of which adds to X-Forwarded-For.
        logout_url: where who leaves is sent on to, to leave the proxy's session too; empty for nowhere.
        ancestor_label_prefix: namespace labels that name the tenants around a tenant begin with this.
    """

    login: Login
    origin: str
    base: str = ""
    server: Config
    contexts: Mapping[str, Config] = dataclasses.field(default_factory=dict)
    idle: float = 1800
    longest: float = 12 * 3600
    most_visitors: int = 200
    most_objects: int = 20_000
    proxies: int = 0
    logout_url: str = ""
    ancestor_label_prefix: str = "tenant.cozystack.io/"

    @property
    def https(self) -> bool:
        """Whether browsers come by https."""
        return self.origin.startswith("https:")

    @property
    def cookie(self) -> str:
        """The session cookie's name; `__Host-` has browsers refuse one that another host or plain http has set."""
        return "__Host-gpuclaim" if self.https else "gpuclaim"

    @property
    def form_cookie(self) -> str:
        """The name of the cookie beside the login form, where no session stands behind the form."""
        return f"{self.cookie}-form"

    @property
    def cookie_path(self) -> str:
        """Where cookies go. On this machine only below our own path, which nobody else on its ports can guess."""
        return "/" if self.https else f"{self.base}/"
