"""Where pods of a set go, and which are turned away (R43, R44)."""

import datetime as dt

from gpuclaim.api import core, types
from gpuclaim.placement.books import Books, Settings
from gpuclaim.placement.orders import Move, Pin, PodRefused
from gpuclaim.placement.pods import decide_pod
from unit.placement.build import GPU, NOW, SOON, books, claim, cls, gpus, pod

TOLERATION = types.Toleration(key="d", operator=types.TolerationOperator.EXISTS)
SPREAD = types.Toleration(key="e", value="x")


def reason(of: Books, new: core.Pod) -> str:
    found = decide_pod(of, new, NOW)
    assert isinstance(found, PodRefused), found
    assert found.message
    return found.reason.value


def held() -> Books:
    return books(
        cls(tolerations=[TOLERATION]),
        cls("twin", tolerations=[SPREAD, TOLERATION]),
        gpus("n-1", 4),
        claim("vm", "n-1", 2),
        claim("more", "n-1", 1, of="twin", set_name="vm"),
    )


def test_a_pod_is_pinned_to_the_node_of_its_set_with_the_tolerations_of_its_classes() -> None:
    for count in (1, 3):
        assert decide_pod(held(), pod("p", "vm", requests={GPU: count}), NOW) == Pin("n-1", (TOLERATION, SPREAD))
    assert isinstance(decide_pod(held(), pod("p", "vm", "n-1"), NOW), Pin)


def test_pods_that_ask_for_no_class_are_not_our_business() -> None:
    assert decide_pod(held(), pod("p", "vm", requests={}), NOW) is None
    assert decide_pod(held(), pod("p", "vm", requests={"devices.kubevirt.io/kvm": 1}), NOW) is None
    exempt = books(cls(), settings=Settings(exempt_namespaces=frozenset({"tenant-a"})))
    assert decide_pod(exempt, pod("p"), NOW) is None


def test_no_claim() -> None:
    assert reason(held(), pod("p")) == "NoClaim"
    assert reason(held(), pod("p", "nobody")) == "NoClaim"
    assert reason(held(), pod("p", "vm", namespace="tenant-b")) == "NoClaim"


def test_not_bound_moving_split_or_being_deleted() -> None:
    seen = held()
    seen.apply(claim("third", None, set_name="vm"))
    assert reason(seen, pod("p", "vm")) == "SetNotBound"
    seen.apply(claim("third", "n-2", set_name="vm"))
    assert reason(seen, pod("p", "vm")) == "SetNotBound"
    seen.apply(claim("third", "n-1", set_name="vm"))
    seen.reserve_moves("t", [Move("tenant-a", "vm", "n-1", "n-2")], SOON)
    assert reason(seen, pod("p", "vm")) == "SetNotBound"
    seen.release("t")
    assert isinstance(decide_pod(seen, pod("p", "vm"), NOW), Pin)
    assert reason(books(cls(), gpus("n", 4), claim("vm", "n", deleted=True)), pod("p", "vm")) == "SetNotBound"


def test_in_use_by_another_live_pod() -> None:
    seen = held()
    seen.apply(pod("first", "vm", "n-1"))
    assert reason(seen, pod("p", "vm")) == "SetInUse"
    assert isinstance(decide_pod(seen, pod("first", "vm"), NOW), Pin), "the same pod once more"
    assert reason(seen, pod("first", "vm", uid="made-anew")) == "SetInUse"
    seen.apply(pod("first", "vm", "n-1", phase="Failed"))
    assert isinstance(decide_pod(seen, pod("p", "vm"), NOW), Pin)
    seen.apply(pod("helper", "vm", "n-1", requests={}))
    assert isinstance(decide_pod(seen, pod("p", "vm"), NOW), Pin), "a pod without GPUs does not have the set"
    seen.reserve_pod("tenant-a", "vm", "uid-pod-other", SOON)
    assert reason(seen, pod("p", "vm")) == "SetInUse"
    seen.apply(pod("other", "vm", "n-1"))
    assert reason(seen, pod("p", "vm")) == "SetInUse"
    seen.apply(pod("other", "vm", "n-1", phase="Succeeded"))
    assert isinstance(decide_pod(seen, pod("p", "vm"), NOW), Pin)


def test_above_the_hold() -> None:
    assert reason(held(), pod("p", "vm", requests={GPU: 4})) == "AboveHold"
    leaving = held()
    leaving.apply(claim("more", "n-1", 1, of="twin", set_name="vm", deleted=True))
    assert reason(leaving, pod("p", "vm", requests={GPU: 3})) == "AboveHold"
    assert isinstance(decide_pod(leaving, pod("p", "vm", requests={GPU: 2}), NOW), Pin)


def test_another_node_named_in_the_pod() -> None:
    assert reason(held(), pod("p", "vm", "n-2")) == "WrongNode"


def test_a_node_under_a_refusal_is_left_for_one_that_fits() -> None:
    until = NOW + dt.timedelta(minutes=1)
    seen = books(cls(), gpus("n-1", 4), claim("vm", "n-1", 2, refused={"n-1": until}))
    assert reason(seen, pod("p", "vm")) == "NodeUnderRefusal"
    assert isinstance(decide_pod(seen, pod("p", "vm"), until), Pin)
    for obj in gpus("n-2", 2):
        seen.apply(obj)
    assert decide_pod(seen, pod("p", "vm"), NOW) == Pin("n-2", (), (Move("tenant-a", "vm", "n-1", "n-2"),))
