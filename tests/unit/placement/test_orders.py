"""What becomes of an order (R31-R34, R36b, R42)."""

import datetime as dt

from gpuclaim.api import core, types
from gpuclaim.placement.books import Books, Settings
from gpuclaim.placement.orders import Move, Verdict
from gpuclaim.placement.verdict import decide, largest_order, place_set
from unit.placement.build import (
    GPU,
    NOW,
    SOON,
    ask,
    books,
    claim,
    cls,
    device,
    gpus,
    namespace,
    node,
    order,
    pod,
    quota,
    report,
)

L4 = "x.io/l4"


def causes(verdict: Verdict) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for cause in verdict.causes:
        found.setdefault(cause.reason, []).append(cause.message)
    return found


def largest(verdict: Verdict) -> str:
    return causes(verdict)["LargestOrder"][0]


# --- classes and counts -----------------------------------------------------------------------------------------------


def test_unknown_closed_and_leaving_classes() -> None:
    seen = books(cls("shut", closed=True), gpus("n", 2))
    assert ask(seen, of="nope").reason == "UnknownClass"
    assert "'nope'" in ask(seen, of="nope").message
    assert ask(seen, of="shut").reason == "ClassClosed"
    leaving = cls()
    meta = core.ObjectMeta(name="h200", deletion_timestamp=NOW)
    seen.apply(types.GPUClass(metadata=meta, spec=leaving.spec))
    assert ask(seen).reason == "ClassClosed"


def test_the_most_of_a_class_is_by_set_and_counts_reservations() -> None:
    seen = books(cls(most=3), cls("other"), gpus("n", 8), claim("a", "n", 1, set_name="vm"))
    first = ask(seen, 1, name="b", set_name="vm")
    seen.reserve(order(1, name="b", set_name="vm"), first, SOON)
    refused = ask(seen, 2, name="c", set_name="vm")
    assert (refused.reason, largest(refused)) == ("AboveMaxCount", "1")
    assert "at most 3, and set 'vm' already holds 2" in refused.message
    assert ask(seen, 1, name="c", set_name="vm").admitted
    assert ask(seen, 3, name="c", set_name="vm2").admitted
    assert ask(seen, 5, name="c", set_name="vm", of="other").admitted


def test_an_order_does_not_count_against_itself() -> None:
    seen = books(cls(most=2), gpus("n", 2), quota({"total": 2}))
    mine = order(2)
    verdict = decide(seen, mine, NOW)
    seen.reserve(mine, verdict, SOON)
    assert decide(seen, mine, NOW) == verdict
    seen.apply(claim("new", None, 2))
    assert decide(seen, mine, NOW) == verdict
    seen.apply(claim("new", "n", 2))
    assert decide(seen, mine, NOW) == verdict
    assert not ask(seen, name="other").admitted


# --- best fit ----------------------------------------------------------------------------------------------------


def test_best_fit_and_ties_by_name() -> None:
    seen = books(cls(), gpus("n-8", 8), gpus("n-4b", 4), gpus("n-4a", 4), gpus("n-2", 2))
    assert [ask(seen, count).node for count in (1, 2, 3, 4, 5, 8)] == ["n-2", "n-2", "n-4a", "n-4a", "n-8", "n-8"]


def test_insufficient_capacity_says_what_would_fit() -> None:
    seen = books(cls(), gpus("secret-node", 3), gpus("secret-node-2", 2))
    refused = ask(seen, 4)
    assert (refused.reason, largest(refused)) == ("InsufficientCapacity", "3")
    assert refused.message == (
        "4 GPUs of class 'h200' cannot be ordered: there are not as many free on one node."
        " The largest order of 'h200' that would be taken now is 3."
    )
    for name in ("secret-node", "secret-node-2"):
        seen.apply(claim(f"x-{name}", name, 3))
    assert "No order of 'h200' would be taken now." in ask(seen, 1).message


def test_the_largest_order_respects_count_and_budget() -> None:
    seen = books(cls(most=6), gpus("n", 8), quota({"h200": 5}))
    assert largest(ask(seen, 7)) == "5"
    assert largest(ask(seen, 6)) == "5"
    seen.apply(quota({"h200": 7}))
    assert largest(ask(seen, 7)) == "6"
    assert largest_order(seen, "h200", NOW) == 6
    assert largest_order(seen, "nope", NOW) == 0


# --- budgets ----------------------------------------------------------------------------------------------------


def test_over_budget_names_key_used_hard_left_and_quota() -> None:
    seen = books(cls(), gpus("n", 8), quota({"h200": 3, "total": 4}), quota({"h200": 2}, "second"), claim("a", "n", 1))
    refused = ask(seen, 3)
    assert refused.reason == "OverBudget"
    assert refused.message == (
        "3 GPUs of class 'h200' cannot be ordered: the budget gpu.cozystack.io/h200 (ResourceQuota 'second') is 2 GPUs"
        " with 1 used, which leaves 1. The largest order of 'h200' that would be taken now is 1."
    )
    assert causes(refused)["OverBudget"] == [
        "key=gpu.cozystack.io/h200 used=1 hard=3 left=2 quota=gpu",
        "key=gpu.cozystack.io/h200 used=1 hard=2 left=1 quota=second",
    ]


def test_a_parents_budget_binds_and_tells_nothing_of_others() -> None:
    seen = books(
        cls(),
        gpus("n", 8),
        namespace("root"),
        namespace("tenant-a", "root", "tenant-a"),
        namespace("tenant-b", "root"),
        quota({"total": 5}, "secret-quota", "root"),
        claim("b", "n", 3, namespace="tenant-b"),
    )
    refused = ask(seen, 3)
    assert (refused.reason, largest(refused)) == ("OverBudget", "2")
    assert "a parent tenant's budget gpu.cozystack.io/total" in refused.message
    said = refused.message + str(refused.causes)
    assert not any(word in said for word in ("secret-quota", "tenant-b", "root", "used=", "hard=", "3 used"))
    assert ask(seen, 2).admitted


def test_an_unrelated_tenant_and_a_sub_tenant() -> None:
    seen = books(cls(), gpus("n", 8), namespace("tenant-a"), namespace("tenant-a-b", "tenant-a"), quota({"h200": 2}))
    seen.apply(claim("x", "n", 1, namespace="tenant-a-b"))
    assert not ask(seen, 2).admitted
    assert ask(seen, 8 - 1, namespace="free").admitted
    # The namespace becomes its own: its holds leave the parent's account.
    seen.apply(namespace("tenant-a-b"))
    assert ask(seen, 2).admitted
    assert seen.budgets.used("tenant-a") == 0


def test_reservations_count_in_budgets_once() -> None:
    seen = books(cls(), gpus("n", 8), quota({"h200": 2}))
    mine = order(1)
    seen.reserve(mine, decide(seen, mine, NOW), SOON)
    assert seen.budgets.used("tenant-a", "h200") == 1
    seen.apply(claim("new", None, 1))
    assert seen.budgets.used("tenant-a", "h200") == 1
    seen.apply(claim("new", "n", 1))
    assert seen.budgets.used("tenant-a", "h200") == 1
    seen.remove(types.GPUClaim, "tenant-a", "new")
    assert seen.budgets.accounts() == {}


def test_a_quota_that_goes_or_cannot_be_read() -> None:
    seen = books(cls(), gpus("n", 8), quota({"h200": "2.5"}))
    assert ask(seen, 2).admitted
    assert not ask(seen, 3).admitted
    seen.apply(quota({"h200": "?"}))
    assert not ask(seen, 1).admitted
    seen.remove(core.ResourceQuota, "tenant-a", "gpu")
    assert ask(seen, 3).admitted


def test_the_label_scheme_of_ancestors_is_a_setting() -> None:
    labels = {"example.com/inside-root": ""}
    inner = core.Namespace(metadata=core.ObjectMeta(name="tenant-a", labels=labels))
    settings = Settings(ancestor_label_prefix="example.com/inside-")
    seen = books(cls(), gpus("n", 8), inner, quota({"total": 1}, namespace="root"), settings=settings)
    assert ask(seen, 2).reason == "OverBudget"


# --- sets ----------------------------------------------------------------------------------------------------


def two_kinds() -> Books:
    both = [device(1, (GPU, 1, 0)), device(2, (GPU, 1, 0)), device(3, (L4, 1, 0))]
    return books(cls(), cls("l4", L4), gpus("n-1", 2), node("n-2", {GPU: 2, L4: 1}), report("n-2", both))


def test_a_new_member_goes_where_the_set_stands() -> None:
    seen = books(cls(), gpus("n-1", 8), gpus("n-2", 2), claim("a", "n-1", 1, set_name="vm"))
    assert ask(seen, 1, set_name="vm") == Verdict(admitted=True, node="n-1")


def test_a_set_that_is_off_moves_whole_to_take_a_member() -> None:
    seen = two_kinds()
    seen.apply(claim("b", "n-1", 1, set_name="vm"))
    seen.apply(claim("a", "n-1", 1, set_name="vm"))
    verdict = ask(seen, 1, of="l4", set_name="vm")
    assert verdict.node == "n-2"
    assert verdict.moves == (Move("tenant-a", "a", "n-1", "n-2"), Move("tenant-a", "b", "n-1", "n-2"))


def test_a_set_with_a_live_pod_stays() -> None:
    for phase in ("", "Pending", "Running", "Unknown"):
        seen = two_kinds()
        seen.apply(claim("a", "n-1", 1, set_name="vm"))
        seen.apply(pod("p", "vm", "n-1", phase=phase))
        refused = ask(seen, 1, of="l4", set_name="vm")
        assert (refused.reason, largest(refused)) == ("SetAttached", "0")
        assert ask(seen, 1, set_name="vm").node == "n-1"
    seen.apply(pod("p", "vm", "n-1", phase="Failed"))
    assert ask(seen, 1, of="l4", set_name="vm").node == "n-2"
    seen.reserve_pod("tenant-a", "vm", "uid-p", SOON)
    assert ask(seen, 1, of="l4", set_name="vm").reason == "SetAttached"
    assert ask(seen, 1, SOON, of="l4", set_name="vm").node == "n-2"


def test_two_members_that_arrive_together_end_on_one_node() -> None:
    seen = two_kinds()
    seen.reserve(order(1, name="a", set_name="vm"), ask(seen, 1, name="a", set_name="vm"), SOON)
    assert seen.in_flight("tenant-a", "vm")
    refused = ask(seen, 1, name="b", of="l4", set_name="vm")
    assert refused.reason == "InsufficientCapacity"
    assert ask(seen, 1, name="b", set_name="vm").node == "n-1"
    seen.apply(claim("a", "n-1", 1, set_name="vm"))
    assert not seen.in_flight("tenant-a", "vm")
    assert ask(seen, 1, name="b", of="l4", set_name="vm").node == "n-2"


def test_nodes_under_a_refusal_are_out_for_the_whole_set() -> None:
    until = NOW + dt.timedelta(minutes=3)
    seen = books(cls(), gpus("n-1", 8), gpus("n-2", 8), claim("a", "n-1", 1, set_name="vm", refused={"n-1": until}))
    verdict = ask(seen, 1, set_name="vm")
    assert (verdict.node, [m.name for m in verdict.moves]) == ("n-2", ["a"])
    assert ask(seen, 1, set_name="other").node == "n-1"
    assert ask(seen, 1, until, set_name="vm") == Verdict(admitted=True, node="n-1")


def test_every_class_of_a_set_must_tolerate_the_node_it_moves_to() -> None:
    toleration = types.Toleration(key="d", operator=types.TolerationOperator.EXISTS)
    taint = core.Taint(key="d", effect="NoSchedule")
    seen = books(
        cls(),
        cls("l4", L4, tolerations=[toleration]),
        gpus("n-1", 2),
        node("n-2", {GPU: 2, L4: 1}, taints=[taint]),
        report("n-2", [device(1, (GPU, 1, 0)), device(3, (L4, 1, 0))]),
        claim("a", "n-1", 1, set_name="vm"),
    )
    assert ask(seen, 1, of="l4", set_name="vm").reason == "InsufficientCapacity"
    assert ask(seen, 1, of="l4", set_name="vm2").node == "n-2"
    seen.apply(cls(tolerations=[toleration]))
    assert ask(seen, 1, of="l4", set_name="vm").node == "n-2"


def test_a_set_whose_class_is_gone_is_not_moved() -> None:
    seen = two_kinds()
    seen.apply(cls("gone", "x.io/gone"))
    seen.apply(claim("a", "n-1", 1, of="gone", set_name="vm"))
    assert ask(seen, 1, of="l4", set_name="vm").reason == "InsufficientCapacity"
    seen.remove(types.GPUClass, "", "gone")
    assert ask(seen, 1, of="l4", set_name="vm").reason == "InsufficientCapacity"


def test_an_order_for_a_vm_that_runs_already_is_taken_where_it_runs() -> None:
    seen = books(cls(), gpus("n-1", 1), gpus("n-2", 8), pod("p", "vm", "n-2", {GPU: 8}))
    assert seen.nodes["n-2"].free[GPU] == 0
    assert ask(seen, 8, set_name="vm").node == "n-2"
    assert ask(seen, 1, set_name="vm").node == "n-2"
    assert largest(ask(seen, 9, set_name="vm")) == "8"
    assert ask(seen, 1).node == "n-1"


def test_a_pod_that_takes_more_than_its_set_holds_is_covered_by_a_new_member() -> None:
    seen = books(
        cls(), gpus("n", 4), claim("a", "n", 1, set_name="vm"), pod("p", "vm", "n", {GPU: 3}), claim("b", "n", 1)
    )
    assert seen.nodes["n"].free[GPU] == 0
    assert ask(seen, 2, set_name="vm").node == "n"
    refused = ask(seen, 3, set_name="vm")
    assert (refused.reason, largest(refused)) == ("SetAttached", "2")


def test_the_largest_member_of_a_set() -> None:
    seen = books(cls(), gpus("n-1", 4), gpus("n-2", 6), claim("a", "n-1", 3, set_name="vm"))
    assert largest(ask(seen, 9, set_name="vm")) == "3", "six less the three that come along"
    assert ask(seen, 3, set_name="vm").node == "n-2"


def test_a_claim_that_is_being_deleted_holds() -> None:
    seen = books(cls(), gpus("n", 1), claim("a", "n", deleted=True))
    assert not ask(seen).admitted


# --- where a set should stand ------------------------------------------------------------------------------


def test_place_set() -> None:
    seen = books(
        cls(), gpus("n-1", 4), gpus("n-2", 4), claim("a", "n-1", 2, set_name="vm"), claim("b", "n-1", set_name="vm")
    )
    assert place_set(seen, "tenant-a", "vm", NOW) == Verdict(admitted=True, node="n-1")
    seen.apply(node("n-1", {GPU: 4}, ready=False))
    moved = place_set(seen, "tenant-a", "vm", NOW)
    assert (moved.node, [m.name for m in moved.moves]) == ("n-2", ["a", "b"])
    seen.apply(pod("p", "vm", "n-1"))
    assert place_set(seen, "tenant-a", "vm", NOW).reason == "SetAttached"
    seen.remove(core.Pod, "tenant-a", "p")
    seen.apply(claim("x", "n-2", 2))
    assert place_set(seen, "tenant-a", "vm", NOW).reason == "InsufficientCapacity"


def test_a_set_on_two_nodes_is_brought_together_with_the_fewest_gpus() -> None:
    seen = books(
        cls(), gpus("n-1", 4), gpus("n-2", 4), claim("a", "n-1", 1, set_name="vm"), claim("b", "n-2", 2, set_name="vm")
    )
    assert place_set(seen, "tenant-a", "vm", NOW).moves == (Move("tenant-a", "a", "n-1", "n-2"),)
    assert ask(seen, 1, set_name="vm").moves == (Move("tenant-a", "a", "n-1", "n-2"),)
    assert seen.split_sets() == [("tenant-a", "vm")]
