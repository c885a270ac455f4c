"""What to say, and what to do, when the apiserver does not give what was asked for. Pure."""

from __future__ import annotations

import re

from gpuclaim.api import names
from gpuclaim.api.core import Outcome
from gpuclaim.api.reasons import Refusal
from gpuclaim.views.text import safe

_WEBHOOK = re.compile(r'^.*admission webhook "[^"]*" denied the request: ', re.DOTALL)


def refusal(status: Outcome) -> Refusal | None:
    """The reason for which an order was refused (R42); None where the answer is another."""
    return Refusal(status.reason) if status.reason in set(Refusal) else None


def said(status: Outcome) -> str:
    """What the apiserver said, without the name of the webhook that said it, on one safe line."""
    return safe(_WEBHOOK.sub("", status.message))


def sentence(status: Outcome) -> str:
    """What an answer of the apiserver means to who runs a command, and what to do about it."""
    words = said(status)
    details = status.details
    kind = details.kind if details is not None else ""
    if refusal(status) in {Refusal.UNKNOWN_CLASS, Refusal.CLASS_CLOSED}:
        return f"{words} `kubectl gpu classes` shows what there is"
    if refusal(status) is not None:
        return words
    if status.code == 401:
        return "the apiserver does not accept your credentials (401): log in again, or choose another --context"
    if status.code == 403 and status.reason == "Forbidden":
        return f"you may not do that: {words}. Ask whoever runs the cluster for the right"
    if status.code == 404 and (not kind or not (details is not None and details.name)):
        return (
            f"the cluster does not serve {names.GROUP}/{names.VERSION}: gpuclaim is not installed there, or this is the"
            " wrong --context. `gpuclaim crds | kubectl apply -f -` installs the API,"
            " `kubectl gpu doctor` looks further"
        )
    if status.code == 404 and details is not None:
        return f"there is no {safe(kind)} {safe(details.name)!r} here; -n chooses another namespace"
    if "failed calling webhook" in words or "failed to call webhook" in words:
        return (
            f"no gpuclaim controller answers, so orders are refused for now: {words}."
            " `kubectl gpu doctor` looks further"
        )
    return words or f"the apiserver answered with {status.code}"
