"""R43: the requirement goes into every node selector term, and into none that cannot match."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.admission.pin import pin
from gpuclaim.api.types import TaintEffect, Toleration, TolerationOperator

HERE = {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def applied(spec: dict[str, Any], *tolerations: Toleration) -> dict[str, Any]:
    """The spec with the patch made. Every operation is an add of a member of the spec."""
    changed = dict(spec)
    for operation in pin({"spec": spec}, "gpu-1", tolerations):
        assert operation["op"] == "add"
        changed[operation["path"].removeprefix("/spec/")] = operation["value"]
    return changed


def terms(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert isinstance(found, list)
    return found


def test_a_pod_without_affinity_gets_one_term() -> None:
    assert terms(applied({"containers": []})) == [{"matchFields": [HERE]}]


def test_every_term_is_narrowed_since_terms_are_ored() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    disk = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["gpu-9"]}]}
    spec = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [zone, disk]}}}}
    assert terms(applied(spec)) == [{**zone, "matchFields": [HERE]}, {"matchFields": [*disk["matchFields"], HERE]}]


def test_a_term_that_matches_nothing_goes_on_matching_nothing() -> None:
    never: list[dict[str, Any]] = [{}, {"matchExpressions": []}]
    spec = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": never}}}}
    assert terms(applied(spec)) == [{}, {"matchExpressions": []}]


def test_the_rest_of_the_affinity_stays() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}]
    spec = {
        "affinity": {
            "podAntiAffinity": {REQUIRED: [{"topologyKey": "kubernetes.io/hostname"}]},
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
        }
    }
    affinity = applied(spec)["affinity"]
    assert affinity["podAntiAffinity"] == spec["affinity"]["podAntiAffinity"]
    assert affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert terms({"affinity": affinity}) == [{"matchFields": [HERE]}]


def test_tolerations_are_added_once() -> None:
    dedicated = Toleration(key="dedicated", value="gpu", effect=TaintEffect.NO_SCHEDULE)
    everything = Toleration(operator=TolerationOperator.EXISTS)
    own = {"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
    spec = {"tolerations": [own]}
    assert applied(spec, dedicated, everything, everything)["tolerations"] == [own, {"operator": "Exists"}]


_requirement = st.fixed_dictionaries({"key": st.sampled_from("ab"), "operator": st.just("Exists")})
_field = st.fixed_dictionaries(
    {"key": st.just("metadata.name"), "operator": st.sampled_from(["In", "NotIn"]), "values": st.just(["gpu-2"])}
)
_term = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(_requirement, max_size=2), "matchFields": st.lists(_field, max_size=2)}
)


def _matches(term: dict[str, Any], node: str) -> bool:
    """Whether the term can match the node by its name: k8s.io/component-helpers/scheduling/corev1/nodeaffinity."""
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return False
    return all((node in f["values"]) == (f["operator"] == "In") for f in term.get("matchFields") or ())


@given(st.lists(_term, max_size=4))
def test_no_other_node_matches_and_none_that_matched_not(before: list[dict[str, Any]]) -> None:
    spec = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": before}}}} if before else {}
    once = applied(spec)
    after = terms(once)
    assert not any(_matches(term, "gpu-2") or _matches(term, "gpu-3") for term in after)
    assert any(_matches(term, "gpu-1") for term in after) == (
        not before or any(_matches(term, "gpu-1") for term in before)
    )
    assert applied(once) == once
