"""The webhook configuration: what is asked about, and what never waits for us (R40, R43a)."""

from __future__ import annotations

import base64
from typing import Any

from gpuclaim.admission import webhooks
from gpuclaim.admission.webhooks import Endpoint

CA = b"-----BEGIN CERTIFICATE-----\n"


def configured(endpoint: Endpoint) -> dict[str, dict[str, Any]]:
    """The webhooks by name."""
    made = webhooks.configurations(endpoint, CA, ["a.b/c"])
    return {webhook["name"]: webhook | {"in": each["kind"]} for each in made for webhook in each["webhooks"]}


def test_every_webhook_fails_closed_and_reserves_nothing_on_a_dry_run() -> None:
    made = configured(Endpoint(url="https://127.0.0.1:1"))
    assert {name: (webhook["in"], webhook["rules"][0]["resources"]) for name, webhook in made.items()} == {
        webhooks.HOLDS: ("MutatingWebhookConfiguration", ["gpuclaims"]),
        webhooks.PODS: ("MutatingWebhookConfiguration", ["pods"]),
        # Only in the validating phase has an order its UID.
        webhooks.ORDERS: ("ValidatingWebhookConfiguration", ["gpuclaims"]),
    }
    for webhook in made.values():
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["sideEffects"] == "NoneOnDryRun"
        assert webhook["rules"][0]["operations"] == ["CREATE"]
        assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == CA


def test_an_url_outside_a_cluster_and_a_service_in_one() -> None:
    outside = configured(Endpoint(url="https://127.0.0.1:1"))[webhooks.ORDERS]["clientConfig"]
    assert outside["url"] == "https://127.0.0.1:1/orders"
    inside = configured(Endpoint(service=("ns", "gpuclaim", 443)))[webhooks.PODS]["clientConfig"]
    assert inside["service"] == {"namespace": "ns", "name": "gpuclaim", "port": 443, "path": "/pods"}
    assert "url" not in inside


def test_pods_are_asked_about_only_for_the_classes_resources() -> None:
    assert webhooks.asks_for([]) == "false"
    expression = webhooks.asks_for(["nvidia.com/b", "nvidia.com/a", "nvidia.com/a"])
    assert expression.count("['nvidia.com/a', 'nvidia.com/b']") == 4
    # The same classes give the same text, in whatever order they are read: it is compared with what was written.
    assert expression == webhooks.asks_for(["nvidia.com/a", "nvidia.com/b"])
