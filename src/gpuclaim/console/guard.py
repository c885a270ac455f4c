"""What a browser is told to refuse, and which requests are refused here: headers, origins, tokens of forms. Pure."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import urllib.parse
from collections.abc import Mapping
from typing import Final

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'; trusted-types gpuclaim; require-trusted-types-for 'script'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer a browser says "Origin: null" of our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Server": "gpuclaim",
}
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
TOKEN_MAX: Final = 16 * 1024
_PORTS: Final = {"http": 80, "https": 443}


def headers(*, https: bool) -> Mapping[str, str]:
    """The headers of every answer. What an answer says itself stays: a file may be kept, a page never."""
    own = {"Cache-Control": "no-store"}
    if https:
        own["Strict-Transport-Security"] = "max-age=31536000"
    return _HEADERS | own


def origin(url: str) -> str:
    """The origin of an URL, as a browser names it: scheme, host, and the port unless it is the scheme's."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port if parts.port not in {None, _PORTS.get(parts.scheme)} else None
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


def loopback(host: str) -> bool:
    """Whether a host is this machine's own: to its browsers that is as good as https."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_fault(host: str, own: str) -> str:
    """Why a request for `host` is none for us; empty where it is.

    A name of somebody else's may lead here (DNS rebinding).
    """
    scheme = own.partition(":")[0]
    return "" if origin(f"{scheme}://{host.lower()}") == own else f"this page is at {own}"


def origin_fault(method: str, sent: Mapping[str, str], own: str) -> str:
    """Why a request does not come from our own pages; empty where it does, or only reads.

    Browsers say where a POST comes from, all of them in Origin, newer ones in Sec-Fetch-Site too. One that says nothing
    is refused.
    """
    if method in _SAFE_METHODS:
        return ""
    site, sender = sent.get("Sec-Fetch-Site"), sent.get("Origin")
    if site is not None and site != "same-origin":
        return "it comes from another site"
    if sender is not None:
        return "" if sender == own else "it comes from another site"
    return "" if site is not None else "it does not say where it comes from"


def same(given: str, wanted: str) -> bool:
    """Whether a secret is the one that is wanted, in a time that says nothing of it."""
    return bool(wanted) and hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def signed(value: str, key: bytes) -> str:
    """What only the holder of the key can say of a value: the token of a form that nobody's session stands behind."""
    return hmac.new(key, value.encode(errors="replace"), hashlib.sha256).hexdigest()


def local_path(wanted: str, base: str) -> str:
    """The path to go on to: the wanted one where it is a page of ours, else the first page. Never another site's."""
    parts = urllib.parse.urlsplit(wanted)
    strange = parts.scheme or parts.netloc or "\\" in wanted or not wanted.isprintable() or " " in wanted
    if strange or not wanted.startswith(f"{base}/") or wanted.startswith("//"):
        return f"{base}/"
    return wanted


def token_fault(token: str) -> str:
    """Why this cannot be a bearer token, as a sentence; empty where it can (RFC 6750)."""
    if not token:
        return "Give a token."
    if len(token) > TOKEN_MAX:
        return "That is too long for a token."
    if not token.isascii() or not token.isprintable() or " " in token:
        return "A token has no spaces and no special characters: copy all of it, and nothing else."
    return ""


def bearer(header: str) -> str:
    """The token of an Authorization header; empty where it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def sender(peer: str, forwarded: str, proxies: int) -> str:
    """Whose address a request is from, behind so many proxies of ours that each add the one before (X-Forwarded-For).

    What a visitor wrote into the header itself stands further left and does not count.
    """
    listed = [part.strip() for part in forwarded.split(",") if part.strip()]
    return listed[-proxies] if 0 < proxies <= len(listed) else peer


def public_fault(url: str) -> str:
    """Why the page cannot be offered at this URL, as a sentence; empty where it can."""
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in _PORTS and parts.hostname and not (parts.query or parts.fragment or parts.username)
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        return "must be https://HOST[:PORT][/PATH]"
    if parts.scheme == "http" and not loopback(parts.hostname or ""):
        return "must be https: over http everybody on the way reads the visitors' tokens"
    return ""
