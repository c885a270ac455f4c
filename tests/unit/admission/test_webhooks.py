"""The webhook configuration: what is asked about, and what never waits for us (R40, R43a)."""

from __future__ import annotations

import base64
from typing import Any

from gpuclaim.admission import guard, webhooks
from gpuclaim.admission.webhooks import Endpoint
from gpuclaim.api import names

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
        webhooks.VM_PODS: ("MutatingWebhookConfiguration", ["pods"]),
        webhooks.MACHINES: ("MutatingWebhookConfiguration", ["virtualmachines"]),
        # Only in the validating phase has an order its UID.
        webhooks.MACHINE_ORDERS: ("ValidatingWebhookConfiguration", ["virtualmachines"]),
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
    for name in (webhooks.PODS, webhooks.VM_PODS):
        (condition,) = configured(Endpoint(url="https://127.0.0.1:1"))[name]["matchConditions"]
        assert condition["expression"] == guard.asks_for(["a.b/c"])


def test_a_pod_of_a_set_is_asked_about_once_and_another_not_at_all() -> None:
    made = configured(Endpoint(url="https://127.0.0.1:1"))
    asked = {name: made[name]["objectSelector"]["matchExpressions"] for name in (webhooks.PODS, webhooks.VM_PODS)}
    for labels, expected in (
        ({}, []),
        ({"app": "x"}, []),
        ({names.SET_LABEL: "a"}, [webhooks.PODS]),
        ({names.VM_NAME_LABEL: "a"}, [webhooks.VM_PODS]),
        ({names.SET_LABEL: "a", names.VM_NAME_LABEL: "b"}, [webhooks.PODS]),
    ):
        assert [
            name
            for name, terms in asked.items()
            if all((term["key"] in labels) is (term["operator"] == "Exists") for term in terms)
        ] == expected


def test_of_vms_only_orders_are_asked_about() -> None:
    made = configured(Endpoint(url="https://127.0.0.1:1"))
    for name in (webhooks.MACHINES, webhooks.MACHINE_ORDERS):
        assert made[name]["objectSelector"]["matchExpressions"] == [{"key": names.CLASS_LABEL, "operator": "Exists"}]
