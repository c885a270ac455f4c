"""Any history of objects and orders: what must hold of the books and of every verdict."""

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuclaim.api import core, model, types
from gpuclaim.placement import invariants
from gpuclaim.placement.books import Books, Known
from gpuclaim.placement.orders import Order, Verdict
from gpuclaim.placement.scenario import key_of
from gpuclaim.placement.verdict import decide, place_set
from unit.placement.build import GPU, NOW, claim, cls, device, namespace, node, order, pod, quota, report

OTHER, VGPU = "example.com/h200", "nvidia.com/A16-4Q"
CLASSES = ("whole", "twin", "slice")
NODES = ("n-1", "n-2", "n-3")
TENANTS = ("root", "tenant-a", "tenant-b")
SETS = ("vm1", "vm2", None)

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def nodes(draw: Draw) -> list[Known]:
    name = draw(st.sampled_from(NODES))
    devices = []
    for number in range(draw(st.integers(0, 4))):
        offer = draw(st.sampled_from([(GPU,), (GPU, OTHER), (VGPU,)]))
        per = 2 if offer == (VGPU,) else 1
        health = draw(st.sampled_from([types.Health.HEALTHY, types.Health.HEALTHY, types.Health.UNHEALTHY]))
        users = draw(st.sampled_from([(), (("tenant-a", "p-0"),)]))
        devices.append(device(number, *((r, per, len(users)) for r in offer), health=health, users=users))
    allocatable = {resource: draw(st.integers(1, 8)) for resource in (GPU, OTHER, VGPU)}
    taints = [core.Taint(key="d", effect="NoSchedule")] if draw(st.integers(0, 4)) == 0 else []
    late = draw(st.sampled_from([0, 0, 0, 14, 16]))
    return [
        node(name, allocatable, ready=draw(st.integers(0, 6)) > 0, taints=taints),
        report(
            name,
            devices,
            at=NOW - dt.timedelta(minutes=late),
            excluded=draw(st.sampled_from([(), (0,)])),
            cordoned=draw(st.integers(0, 6)) == 0,
        ),
    ]


@st.composite
def other(draw: Draw) -> list[Known]:
    match draw(st.integers(0, 4)):
        case 0:
            name = draw(st.sampled_from(CLASSES))
            tolerant = [types.Toleration(key="d", operator=types.TolerationOperator.EXISTS)]
            resource = {"whole": GPU, "twin": draw(st.sampled_from([OTHER, GPU])), "slice": VGPU}[name]
            return [
                cls(
                    name,
                    resource,
                    mode="vgpu" if name == "slice" else "passthrough",
                    most=draw(st.sampled_from([None, 2, 3])),
                    closed=draw(st.integers(0, 9)) == 0,
                    tolerations=draw(st.sampled_from([(), tolerant])),
                )
            ]
        case 1:
            key = draw(st.sampled_from(["whole", "total"]))
            return [quota({key: draw(st.integers(0, 8))}, namespace=draw(st.sampled_from(TENANTS)))]
        case 2:
            name = draw(st.sampled_from(TENANTS))
            return [namespace(name, *draw(st.sampled_from([(), ("root",)])))]
        case 3:
            request = {draw(st.sampled_from([GPU, OTHER, VGPU])): draw(st.integers(0, 3))}
            return [
                pod(
                    f"p-{draw(st.integers(0, 2))}",
                    draw(st.sampled_from(SETS)),
                    draw(st.sampled_from([*NODES, ""])),
                    request,
                    namespace=draw(st.sampled_from(TENANTS)),
                    phase=draw(st.sampled_from(["Running", "Running", "Failed"])),
                )
            ]
        case _:
            return [
                claim(
                    f"c-{draw(st.integers(0, 5))}",
                    draw(st.sampled_from([*NODES, None])),
                    draw(st.integers(1, 3)),
                    of=draw(st.sampled_from(CLASSES)),
                    set_name=draw(st.sampled_from(SETS)),
                    namespace=draw(st.sampled_from(TENANTS)),
                    refused=draw(st.sampled_from([{}, {"n-1": NOW + dt.timedelta(minutes=2)}])),
                )
            ]


OBJECTS = st.lists(st.one_of(nodes(), other(), other()), max_size=25).map(
    lambda lists: [o for one in lists for o in one]
)
ORDERS = st.builds(
    lambda count, of, set_name, tenant: order(count, of=of, set_name=set_name, namespace=tenant),
    st.integers(1, 5),
    st.sampled_from(CLASSES),
    st.sampled_from(SETS),
    st.sampled_from(TENANTS),
)
COMMON = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def state_of(objects: list[Known]) -> dict[tuple[str, str, str], Known]:
    return {key_of(obj): obj for obj in objects}


def anew(objects: list[Known], now: dt.datetime = NOW) -> Books:
    made = Books()
    for obj in objects:
        made.apply(obj)
    made.advance(now)
    return made


@COMMON
@given(OBJECTS, ORDERS, st.randoms(use_true_random=False))
def test_the_order_in_which_objects_come_does_not_matter(objects: list[Known], new: Order, rng: random.Random) -> None:
    state = list(state_of(objects).values())
    first = anew(state)
    rng.shuffle(state)
    second = anew(state)
    assert invariants.snapshot(first) == invariants.snapshot(second)
    assert decide(first, new, NOW) == decide(second, new, NOW)


@COMMON
@given(OBJECTS, st.lists(st.integers(0, 60), max_size=20), st.integers(0, 4))
def test_books_kept_are_books_made_anew(objects: list[Known], removed: list[int], asked: int) -> None:
    kept = Books()
    state: dict[tuple[str, str, str], Known] = {}
    steps: list[tuple[Known, bool]] = [(obj, True) for obj in objects]
    for index in removed:
        if objects:
            steps.insert((index * 7) % (len(steps) + 1), (objects[index % len(objects)], False))
    for number, (obj, there) in enumerate(steps):
        if there:
            kept.apply(obj)
            state[key_of(obj)] = obj
        else:
            kept.remove(type(obj), obj.metadata.namespace, obj.metadata.name)
            state.pop(key_of(obj), None)
        if asked and number % asked == 0:
            kept.advance(NOW + dt.timedelta(minutes=number % 3))
    kept.advance(NOW)
    assert invariants.snapshot(kept) == invariants.snapshot(anew(list(state.values())))
    assert invariants.wrong_index(kept) == []


@COMMON
@given(OBJECTS, ORDERS, st.integers(0, 3))
def test_every_verdict_agrees_with_every_node_tried(objects: list[Known], new: Order, minutes: int) -> None:
    now = NOW + dt.timedelta(minutes=minutes)
    kept = anew(list(state_of(objects).values()), now)
    before = invariants.snapshot(kept)
    verdict = decide(kept, new, now)
    assert invariants.snapshot(kept) == before
    assert invariants.wrong_verdict(kept, new, verdict, now) == []
    for name in (*NODES, *(t for t in TENANTS if t != new.namespace)):
        assert name not in verdict.message
    largest = [int(cause.message) for cause in verdict.causes if cause.reason == "LargestOrder"]
    if not verdict.admitted and verdict.reason not in ("UnknownClass", "ClassClosed"):
        assert largest[0] < new.count
        more = Order(new.namespace, new.name, new.uid, new.class_name, largest[0] + 1, new.set_name)
        less = Order(new.namespace, new.name, new.uid, new.class_name, max(1, largest[0]), new.set_name)
        assert not decide(kept, more, now).admitted
        assert decide(kept, less, now).admitted is (largest[0] > 0)


def taken(kept: Books, new: Order, verdict: Verdict, stored: bool) -> None:
    kept.reserve(new, verdict, NOW + dt.timedelta(seconds=30))
    if stored:
        for move in verdict.moves:
            old = kept.claim(move.namespace, move.name)
            assert old is not None
            spec = old.spec
            kept.apply(
                claim(
                    move.name, move.to_node, spec.count, of=spec.class_name, set_name=spec.set, namespace=move.namespace
                )
            )
        kept.apply(
            claim(new.name, verdict.node, new.count, of=new.class_name, set_name=new.set_name, namespace=new.namespace)
        )


@COMMON
@given(
    st.lists(nodes(), min_size=1, max_size=4),
    st.lists(st.tuples(ORDERS, st.booleans(), st.booleans()), min_size=1, max_size=25),
    st.lists(st.tuples(st.sampled_from(TENANTS), st.sampled_from(["whole", "total"]), st.integers(0, 8)), max_size=3),
)
def test_admissions_never_exceed_anything(
    machines: list[list[Known]], orders: list[tuple[Order, bool, bool]], quotas: list[tuple[str, str, int]]
) -> None:
    kept = Books()
    for obj in (
        cls("whole", GPU, most=4),
        cls("twin", OTHER),
        cls("slice", VGPU, mode="vgpu", most=2),
        namespace("tenant-a", "root"),
        namespace("tenant-b", "root"),
        *(obj for machine in machines for obj in machine),
        *(quota({key: hard}, name=f"q{n}", namespace=of) for n, (of, key, hard) in enumerate(quotas)),
    ):
        kept.apply(obj)
    kept.advance(NOW)
    for number, (new, stored, runs) in enumerate(orders):
        new = Order(
            new.namespace, f"c{number}", f"uid-{new.namespace}-c{number}", new.class_name, new.count, new.set_name
        )
        before = invariants.snapshot(kept)
        verdict = decide(kept, new, NOW)
        if not verdict.admitted:
            assert invariants.snapshot(kept) == before
            continue
        running = {(p.namespace, p.set_name) for p in (kept.pod(t, f"run-{s}") for t in TENANTS for s in SETS) if p}
        for move in verdict.moves:
            moved = kept.claim(move.namespace, move.name)
            assert moved is not None
            assert (move.namespace, model.claim_set(moved)) not in running
        taken(kept, new, verdict, stored or bool(verdict.moves))
        for check in (
            invariants.overheld,
            invariants.split_sets,
            invariants.over_budget,
            invariants.above_max_count,
            invariants.wrong_index,
        ):
            assert check(kept) == [], check.__name__
        if runs and stored:
            set_name = new.set_name
            held = kept.set_holds_on(verdict.node or "", new.namespace, set_name)
            kept.apply(pod(f"run-{set_name}", set_name, verdict.node or "", held, namespace=new.namespace))


@COMMON
@given(OBJECTS, st.sampled_from(TENANTS), st.sampled_from(["vm1", "vm2"]))
def test_a_set_is_placed_whole_or_left(objects: list[Known], tenant: str, set_name: str) -> None:
    kept = anew(list(state_of(objects).values()))
    verdict = place_set(kept, tenant, set_name, NOW)
    bound = {c.metadata.name: c.status.node_name for c in kept.claims_of_set(tenant, set_name) if c.status.node_name}
    if verdict.admitted:
        assert {m.name for m in verdict.moves} == {name for name, on in bound.items() if on != verdict.node}
        assert {m.to_node for m in verdict.moves} <= {verdict.node}
    else:
        assert verdict.moves == ()


def naive_free(objects: list[Known], name: str, resource: str) -> int:
    """R30 in the plainest words, for nodes whose names share no functions and whose spare devices nobody uses."""
    there = [o for o in objects if o.metadata.name == name]
    machine = next((o for o in there if isinstance(o, core.Node)), None)
    agent = next((o for o in there if isinstance(o, types.GPUNode)), None)
    if machine is None or agent is None:
        return 0
    out = {e.address for e in agent.spec.excluded}
    good = [d for d in agent.status.devices if d.health is types.Health.HEALTHY and d.address not in out]
    reported = sum(r.allocatable for d in good for r in d.resources if r.name == resource)
    resources = {c.metadata.name: model.resource_name(c) for c in objects if isinstance(c, types.GPUClass)}
    wants: dict[tuple[str, str], list[int]] = {}
    unknown = 0
    for obj in objects:
        if isinstance(obj, types.GPUClaim) and obj.status.node_name == name:
            if obj.spec.class_name not in resources:
                unknown += obj.spec.count
            elif resources[obj.spec.class_name] == resource:
                wants.setdefault((obj.metadata.namespace, model.claim_set(obj)), [0, 0])[0] += obj.spec.count
        elif isinstance(obj, core.Pod) and obj.spec.node_name == name and model.is_live(obj):
            group = (obj.metadata.namespace, model.pod_set(obj.metadata.labels) or f"pod/{obj.metadata.name}")
            wants.setdefault(group, [0, 0])[1] += model.pod_requests(obj).get(resource, 0)
    kubelet = core.whole(machine.status.allocatable.get(resource, 0))
    return min(reported, kubelet) - sum(max(held, used) for held, used in wants.values()) - unknown


@COMMON
@given(OBJECTS)
def test_free_is_what_the_rule_says(objects: list[Known]) -> None:
    state = list(state_of(objects).values())
    kept = anew(state)
    for name, facts in kept.nodes.items():
        for resource, free in facts.free.items():
            if not facts.links and not facts.spares:
                assert free == naive_free(state, name, resource)
            else:
                # Sharing takes away, a spare device in use gives back at most what it is used.
                spare = sum(used for s in facts.spares for r, used in s.used if r == resource)
                assert free <= naive_free(state, name, resource) + spare
