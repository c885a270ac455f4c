"""The policy that gives claims their finalizer."""

from __future__ import annotations

from gpuclaim.admission import holding, webhooks
from gpuclaim.admission.webhooks import Endpoint

OWNER = {"apiVersion": "v1", "kind": "X", "name": "gpuclaim", "uid": "1"}


def test_the_policy_goes_with_the_webhooks_and_never_refuses_an_order() -> None:
    policy, binding = holding.policies(OWNER)
    assert [each["metadata"]["ownerReferences"] for each in (policy, binding)] == [[OWNER], [OWNER]]
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_the_webhook_is_asked_where_the_policy_did_nothing() -> None:
    policy, _ = holding.policies(OWNER)
    mutating, _ = webhooks.configurations(Endpoint(url="https://127.0.0.1:1"), b"CA", ["a.b/c"])
    (asked,) = [each for each in mutating["webhooks"] if each["name"] == webhooks.HOLDS]
    assert asked["failurePolicy"] == "Fail"
    assert asked["matchConditions"] == policy["spec"]["matchConditions"]
