"""The guard's policies: what they are about, and that they are always the same for the same classes (R44)."""

from __future__ import annotations

from typing import Any

from gpuclaim.admission import guard
from gpuclaim.api import names


def made(resources: list[str], exempt: tuple[str, ...] = ()) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in guard.policies(resources, exempt)}


def test_the_same_classes_give_the_same_text_in_whatever_order_they_are_read() -> None:
    # It is compared with what was written.
    assert guard.policies(["x/b", "x/a", "x/a"], ["n", "m"]) == guard.policies(iter(["x/a", "x/b"]), ["m", "n", "n"])
    assert "['x/a', 'x/b']" in guard.asks_for(["x/b", "x/a"])


def test_without_classes_no_pod_is_looked_into() -> None:
    assert guard.asks_for([]) == "false"


def test_the_policy_about_known_classes_fails_closed_and_needs_nothing_but_itself() -> None:
    policy = made(["x/a"])["ValidatingAdmissionPolicy", guard.KNOWN]
    assert policy["failurePolicy"] == "Fail"
    assert "paramKind" not in policy
    assert "paramRef" not in made(["x/a"])["ValidatingAdmissionPolicyBinding", guard.KNOWN]


def test_the_policy_about_new_classes_never_stops_a_cluster_that_serves_no_classes() -> None:
    policy = made(["x/a"])["ValidatingAdmissionPolicy", guard.NEW]
    assert policy["failurePolicy"] == "Ignore"
    binding = made(["x/a"])["ValidatingAdmissionPolicyBinding", guard.NEW]
    assert binding["paramRef"] == {
        "selector": {"matchExpressions": [{"key": names.GUARDED_LABEL, "operator": "DoesNotExist"}]},
        "parameterNotFoundAction": "Allow",
    }
    assert (
        made(["x/a"])["ValidatingAdmissionPolicy", guard.NEW] == made(["x/b"])["ValidatingAdmissionPolicy", guard.NEW]
    )


def test_both_say_the_same_and_spare_the_same_namespaces() -> None:
    found = made(["x/a"], ("gpu-operator",))
    known, new = (found["ValidatingAdmissionPolicy", name] for name in (guard.KNOWN, guard.NEW))
    assert known["validations"] == new["validations"]
    for name in (guard.KNOWN, guard.NEW):
        (term,) = found["ValidatingAdmissionPolicyBinding", name]["matchResources"]["namespaceSelector"][
            "matchExpressions"
        ]
        assert term == {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["gpu-operator"]}


def test_a_vms_order_does_not_change_and_no_class_is_needed_to_say_so() -> None:
    found = made([], ("gpu-operator",))
    policy = found["ValidatingAdmissionPolicy", guard.VM_ORDERS]
    assert policy["failurePolicy"] == "Fail"
    (validation,) = policy["validations"]
    assert all(label in validation["expression"] for label in (names.CLASS_LABEL, names.COUNT_LABEL))
    # An order is an order in every namespace.
    assert "matchResources" not in found["ValidatingAdmissionPolicyBinding", guard.VM_ORDERS]
