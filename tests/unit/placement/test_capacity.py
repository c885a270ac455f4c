"""What a node has free (R30, R30a, R30b)."""

import datetime as dt

import msgspec
import pytest

from gpuclaim.api import core, types
from gpuclaim.api.reasons import HealthyReason
from gpuclaim.placement.ailment import ailment
from gpuclaim.placement.books import Books
from unit.placement.build import GPU, NOW, ask, books, claim, cls, device, node, pod, report

OTHER = "example.com/h200"
GOOD = types.Health.HEALTHY
BAD = types.Health.UNHEALTHY


def free(of: Books, resource: str = GPU, on: str = "n") -> int:
    return of.nodes[on].free.get(resource, 0)


def test_the_lower_of_agent_and_kubelet() -> None:
    assert free(books(cls(), node("n", {GPU: 8}), report("n", 6))) == 6
    assert free(books(cls(), node("n", {GPU: "5"}), report("n", 6))) == 5
    assert free(books(cls(), node("n", {}), report("n", 6))) == 0


@pytest.mark.parametrize("quantity", ["8", 8, "8000m", "0.008k", "8e0"])
def test_allocatable_in_any_form_of_a_quantity(quantity: str | int) -> None:
    assert free(books(cls(), node("n", {GPU: quantity}), report("n", 9))) == 8


def test_unhealthy_and_excluded_devices_count_for_nothing() -> None:
    devices = [device(1, (GPU, 1, 0)), device(2, (GPU, 1, 0), health=BAD), device(3, (GPU, 1, 0))]
    assert free(books(cls(), node("n"), report("n", devices, excluded=[3]))) == 1


def test_pods_without_a_claim_take_from_it_and_ended_ones_do_not() -> None:
    seen = books(cls(), node("n"), report("n"), pod("a", on="n", requests={GPU: 2}))
    assert free(seen) == 6
    seen.apply(pod("b", "no-such-set", "n", {GPU: 1}))
    assert free(seen) == 5
    seen.apply(pod("a", on="n", requests={GPU: 2}, phase="Succeeded"))
    assert free(seen) == 7
    seen.remove(core.Pod, "tenant-a", "b")
    assert free(seen) == 8
    assert not seen.nodes["n"].pods


def test_a_pod_of_a_set_counts_only_with_what_it_takes_beyond_the_hold() -> None:
    seen = books(cls(), node("n"), report("n"), claim("vm", "n", 2), pod("p", "vm", "n", {GPU: 2}))
    assert (free(seen), dict(seen.nodes["n"].foreign)) == (6, {})
    seen.apply(pod("p", "vm", "n", {GPU: 3}))
    assert (free(seen), dict(seen.nodes["n"].foreign)) == (5, {GPU: 1})
    seen.apply(claim("vm-2", "n", 1, set_name="vm"))
    assert (free(seen), dict(seen.nodes["n"].foreign)) == (5, {})


def test_what_a_pod_asks_for_beside_gpus_is_nobodys_business() -> None:
    # As KubeVirt's launcher pods do.
    beside = {"devices.kubevirt.io/kvm": 1, "devices.kubevirt.io/tun": 1}
    seen = books(cls(), node("n"), report("n"), claim("vm", "n", 2), pod("p", "vm", "n", {GPU: 2, **beside}))
    facts = seen.nodes["n"]
    assert (free(seen), dict(facts.foreign), facts.unbacked) == (6, {}, {})
    assert ailment(facts) is HealthyReason.NODE_WELL


def test_gpus_that_no_class_offers_are_foreign_use_and_take_nothing_from_holds() -> None:
    other = "nvidia.com/gpu"
    said = report("n")
    said = msgspec.structs.replace(said, status=msgspec.structs.replace(said.status, resource_names=[GPU, other]))
    seen = books(cls(), node("n"), said, claim("vm", "n", 8), pod("notebook", on="n", requests={other: 1}))
    facts = seen.nodes["n"]
    assert (dict(facts.foreign), facts.unbacked) == ({other: 1}, {})
    assert ailment(facts) is HealthyReason.NODE_WELL


def test_the_hold_of_another_set_does_not_cover_a_pod() -> None:
    seen = books(cls(), node("n"), report("n"), claim("off", "n", 3), pod("p", "vm", "n", {GPU: 2}))
    assert free(seen) == 3


def test_a_foreign_pod_on_an_excluded_device_is_not_subtracted_twice() -> None:
    devices = [device(n, (GPU, 1, 0)) for n in range(7)]
    devices.append(device(7, (GPU, 1, 1), users=[("other", "p")]))
    seen = books(cls(), node("n"), report("n", devices, excluded=[7]), pod("p", on="n", namespace="other"))
    assert free(seen) == 7


def test_a_foreign_pod_on_an_unhealthy_device_still_takes_from_what_the_scheduler_counts() -> None:
    devices = [device(n, (GPU, 1, 0)) for n in range(7)]
    devices.append(device(7, (GPU, 0, 1), health=BAD, users=[("other", "p")]))
    seen = books(cls(), node("n", {GPU: 7}), report("n", devices), pod("p", on="n", namespace="other"))
    assert free(seen) == 6


def test_who_uses_an_excluded_device_must_be_known_to_be_given_credit() -> None:
    devices = [device(n, (GPU, 1, 0)) for n in range(7)]
    nobody = device(7, (GPU, 1, 1))
    gone = device(7, (GPU, 1, 1), users=[("other", "gone")])
    mine = device(7, (GPU, 1, 1), users=[("tenant-a", "vm-pod")])
    for last in (nobody, gone):
        seen = books(cls(), node("n"), report("n", [*devices, last], excluded=[7]), pod("p", on="n", namespace="other"))
        assert free(seen) == 6
    # A hold is a right to a good GPU, whichever device its pod has just now.
    seen = books(
        cls(), node("n"), report("n", [*devices, mine], excluded=[7]), claim("vm", "n"), pod("vm-pod", "vm", "n")
    )
    assert free(seen) == 6


def test_shared_excluded_parent_credits_what_surely_is_foreign() -> None:
    vgpu = "nvidia.com/NVIDIA_A16-4Q"
    parent = device(1, (vgpu, 4, 3), users=[("other", "a"), ("other", "b")])
    seen = books(
        cls("q4", vgpu, mode="vgpu"),
        node("n", {vgpu: 8}),
        report("n", [parent, device(2, (vgpu, 4, 0))], excluded=[1]),
        pod("a", on="n", requests={vgpu: 2}, namespace="other"),
        pod("b", on="n", requests={vgpu: 1}, namespace="other"),
    )
    assert free(seen, vgpu) == 4


def test_devices_of_one_mdev_parent_add_up_and_types_on_it_do_not_link() -> None:
    small, large = "nvidia.com/A16-4Q", "nvidia.com/A16-8Q"
    seen = books(
        cls("q4", small, mode="vgpu"),
        cls("q8", large, mode="vgpu"),
        node("n", {small: 4, large: 2}),
        report("n", [device(1, (small, 2, 0), (large, 1, 0)), device(2, (small, 2, 0), (large, 1, 0))]),
        claim("a", "n", of="q4"),
    )
    assert (free(seen, small), free(seen, large)) == (3, 2)


def linked(*offers: tuple[tuple[str, int, int], ...]) -> Books:
    devices = [device(n, *resources) for n, resources in enumerate(offers)]
    return books(cls("a", GPU), cls("b", OTHER), node("n", {GPU: 8, OTHER: 8}), report("n", devices))


BOTH = ((GPU, 1, 0), (OTHER, 1, 0))


def test_two_names_on_one_function_are_one_gpu() -> None:
    seen = linked(BOTH, BOTH, BOTH)
    seen.apply(claim("x", "n", 2, of="a"))
    assert (free(seen), free(seen, OTHER)) == (1, 1)


def test_a_name_with_functions_of_its_own_takes_those_first() -> None:
    seen = linked(BOTH, ((GPU, 1, 0),), ((GPU, 1, 0),))
    seen.apply(claim("x", "n", 2, of="a"))
    assert (free(seen), free(seen, OTHER)) == (1, 1)
    seen.apply(claim("y", "n", 1, of="b"))
    assert (free(seen), free(seen, OTHER)) == (0, 0)


def test_hall_over_a_chain_of_names() -> None:
    third = "x.io/third"
    devices = [device(1, (GPU, 1, 0), (OTHER, 1, 0)), device(2, (OTHER, 1, 0), (third, 1, 0))]
    seen = books(
        cls("a", GPU),
        cls("b", OTHER),
        cls("c", third),
        node("n", dict.fromkeys((GPU, OTHER, third), 4)),
        report("n", devices),
    )
    seen.apply(claim("x", "n", of="a"))
    assert [free(seen, name) for name in (GPU, OTHER, third)] == [0, 1, 1]
    seen.apply(claim("y", "n", of="b"))
    assert [free(seen, name) for name in (GPU, OTHER, third)] == [0, 0, 0]


def test_foreign_use_under_a_name_without_a_class_takes_the_function() -> None:
    seen = books(cls("a", GPU), node("n", {GPU: 2, OTHER: 2}), report("n", [device(1, *BOTH), device(2, *BOTH)]))
    seen.apply(pod("old", on="n", requests={OTHER: 1}, namespace="other"))
    assert free(seen) == 1


def test_a_vgpu_name_does_not_link() -> None:
    seen = books(
        cls("a", GPU), cls("q", OTHER, mode="vgpu"), node("n", {GPU: 2, OTHER: 2}), report("n", [device(1, *BOTH)])
    )
    seen.apply(claim("x", "n", of="q"))
    assert free(seen) == 1


def test_many_linked_names_stay_safe_and_quick() -> None:
    names = [f"x.io/r{n}" for n in range(14)]
    devices = [device(n, *((name, 1, 0) for name in names)) for n in range(14)]
    seen = books(
        *(cls(f"c{n}", name) for n, name in enumerate(names)), node("n", dict.fromkeys(names, 14)), report("n", devices)
    )
    for number in range(13):
        seen.apply(claim(f"x{number}", "n", of=f"c{number}"))
    assert free(seen, names[13]) == 1


def test_a_class_may_change_its_resource_while_it_is_held() -> None:
    seen = books(
        cls(),
        node("n", {GPU: 4, OTHER: 4}),
        report("n", [*(device(n, (GPU, 1, 0)) for n in range(4)), *(device(n, (OTHER, 1, 0)) for n in range(8, 12))]),
    )
    seen.apply(claim("x", "n", 3))
    assert (free(seen), free(seen, OTHER)) == (1, 4)
    seen.apply(cls(resource=OTHER))
    assert (free(seen), free(seen, OTHER)) == (4, 1)
    assert seen.holds_on("n") == {OTHER: 3}


def test_the_hold_of_a_class_that_is_gone_counts_against_every_resource() -> None:
    seen = books(
        cls(),
        cls("other", OTHER),
        node("n", {GPU: 4, OTHER: 4}),
        report("n", [*(device(n, (GPU, 1, 0)) for n in range(4)), *(device(n, (OTHER, 1, 0)) for n in range(8, 12))]),
    )
    seen.apply(claim("x", "n", 3))
    seen.remove(types.GPUClass, "", "h200")
    assert (free(seen), free(seen, OTHER)) == (1, 1)
    assert seen.holds_on("n") == {"": 3}
    assert seen.holds_by_node() == {"n": 3}


TAINT = core.Taint(key="dedicated", value="gpu", effect="NoSchedule")


@pytest.mark.parametrize(
    ("of_node", "of_report"),
    [
        (node("n", ready=False), report("n")),
        (node("n", unschedulable=True), report("n")),
        (node("n", taints=[TAINT]), report("n")),
        (node("n", taints=[core.Taint(key="x", effect="NoExecute")]), report("n")),
        (node("n"), report("n", cordoned=True)),
        (node("n"), report("n", at=NOW - dt.timedelta(minutes=15, seconds=1))),
        (node("n"), report("n", at=None)),
        (node("n", boot="b"), report("n", boot="a")),
    ],
)
def test_takes_no_new_hold(of_node: core.Node, of_report: types.GPUNode) -> None:
    seen = books(cls(), of_node, of_report)
    assert ask(seen).reason == "InsufficientCapacity"
    seen.apply(node("n"))
    seen.apply(report("n"))
    assert ask(seen).admitted


@pytest.mark.parametrize(
    ("of_node", "of_report"),
    [
        (node("n", taints=[core.Taint(key="x", effect="PreferNoSchedule")]), report("n")),
        (node("n"), report("n", at=NOW - dt.timedelta(minutes=15))),
        (node("n"), report("n", at=NOW + dt.timedelta(minutes=5))),
        (node("n", boot="b"), report("n")),
        (node("n"), report("n", boot="a")),
        (node("n", boot="b"), report("n", boot="b")),
    ],
)
def test_takes_new_holds(of_node: core.Node, of_report: types.GPUNode) -> None:
    assert ask(books(cls(), of_node, of_report)).node == "n"


def test_no_toleration_opens_a_cordoned_node() -> None:
    everything = cls(tolerations=[types.Toleration(operator=types.TolerationOperator.EXISTS)])
    unschedulable = core.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    assert not ask(books(everything, node("n", unschedulable=True, taints=[unschedulable]), report("n"))).admitted
    assert ask(books(everything, node("n", taints=[TAINT]), report("n"))).admitted


def test_a_node_falls_silent_and_comes_back_as_time_goes_on() -> None:
    seen = books(cls(), node("n"), report("n"))
    assert ask(seen).admitted
    late = NOW + dt.timedelta(minutes=16)
    assert not ask(seen, now=late).admitted
    assert ask(seen).admitted, "a clock that is set back is followed"
    assert not ask(seen, now=late).admitted
    seen.apply(report("n", at=late))
    assert ask(seen, now=late).admitted
    assert ask(seen, now=late + dt.timedelta(minutes=14)).admitted
    assert not ask(seen, now=late + dt.timedelta(minutes=16)).admitted


def test_a_node_or_report_that_goes_takes_its_capacity_with_it() -> None:
    seen = books(cls(), node("n"), report("n"), claim("x", "n"))
    for kind in (types.GPUNode, core.Node):
        seen.remove(kind, "", "n")
        assert not ask(seen).admitted
    assert seen.holds_by_node() == {"n": 1}
    seen.remove(types.GPUClaim, "tenant-a", "x")
    assert dict(seen.nodes) == {}
