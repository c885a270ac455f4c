"""The webhook configuration: what is asked about, and what never waits for us (R40, R43a)."""

from __future__ import annotations

import base64

from gpuclaim.admission import webhooks
from gpuclaim.admission.webhooks import Endpoint

CA = b"-----BEGIN CERTIFICATE-----\n"


def test_both_webhooks_fail_closed_and_reserve_nothing_on_a_dry_run() -> None:
    made = webhooks.configuration(Endpoint(url="https://127.0.0.1:1"), CA, ["a.b/c"])
    assert [webhook["rules"][0]["resources"] for webhook in made["webhooks"]] == [["gpuclaims"], ["pods"]]
    for webhook in made["webhooks"]:
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["sideEffects"] == "NoneOnDryRun"
        assert webhook["rules"][0]["operations"] == ["CREATE"]
        assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == CA


def test_an_url_outside_a_cluster_and_a_service_in_one() -> None:
    outside = webhooks.configuration(Endpoint(url="https://127.0.0.1:1"), CA, [])["webhooks"][0]["clientConfig"]
    assert outside["url"] == "https://127.0.0.1:1/orders"
    inside = webhooks.configuration(Endpoint(service=("ns", "gpuclaim", 443)), CA, [])["webhooks"][1]["clientConfig"]
    assert inside["service"] == {"namespace": "ns", "name": "gpuclaim", "port": 443, "path": "/pods"}
    assert "url" not in inside


def test_pods_are_asked_about_only_for_the_classes_resources() -> None:
    assert webhooks.asks_for([]) == "false"
    expression = webhooks.asks_for(["nvidia.com/b", "nvidia.com/a", "nvidia.com/a"])
    assert expression.count("['nvidia.com/a', 'nvidia.com/b']") == 4
    # The same classes give the same text, in whatever order they are read: it is compared with what was written.
    assert expression == webhooks.asks_for(["nvidia.com/a", "nvidia.com/b"])
