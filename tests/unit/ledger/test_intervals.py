"""What intervals follow from a claim's states; for any history they sum up to the time that a plain count says."""

from __future__ import annotations

import datetime as dt
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUClaimStatus, Usage, UsageInterval, UsageKind
from gpuclaim.ledger import intervals
from gpuclaim.ledger.intervals import Key, PodEnd, Record

UNBOUND = GPUClaimStatus()
HELD, ATTACHED = UsageKind.HELD, UsageKind.ATTACHED
T0 = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def claim(status: GPUClaimStatus = UNBOUND) -> GPUClaim:
    meta = ObjectMeta(name="vm1", namespace="tenant-a", uid="u")
    return GPUClaim(metadata=meta, spec=GPUClaimSpec(class_name="h200", count=2, set="vm"), status=status)


def spans(records: list[Record]) -> list[tuple[str, str, int, int]]:
    """(kind, node, first second, second after the last) from T0 on."""
    return [
        (r.kind, r.node_name, int((r.started_at - T0).total_seconds()), int((r.ended_at - T0).total_seconds()))
        for r in records
    ]


def waiting(status: GPUClaimStatus) -> list[tuple[str, str, int, int]]:
    return spans(intervals.unrecorded(claim(status)))


def held(node: str = "gpu-1", seconds: float = 0) -> GPUClaimStatus:
    return intervals.placed(GPUClaimStatus(), node, at(seconds))


def test_a_record_says_whose_and_what() -> None:
    status = intervals.detached(intervals.attached(held(), "p", "uid-p", at(10)), at(70))
    assert intervals.unrecorded(claim(status)) == [
        Record(
            claim_uid="u",
            kind=ATTACHED,
            started_at=at(10),
            ended_at=at(70),
            seconds=60,
            namespace="tenant-a",
            name="vm1",
            class_name="h200",
            count=2,
            set_name="vm",
            node_name="gpu-1",
        )
    ]
    assert status.usage is not None
    assert (status.attachment, status.usage.attached_seconds) == (None, 60)


def test_a_move_ends_an_interval_on_the_old_node_and_not_the_hold() -> None:
    status = intervals.placed(held(), "gpu-2", at(100))
    assert waiting(status) == [("Held", "gpu-1", 0, 100)]
    assert (status.node_name, status.held_since, status.node_since) == ("gpu-2", T0, at(100))
    assert spans(intervals.running(claim(status), at(150))) == [("Held", "gpu-2", 100, 150)]
    assert intervals.placed(status, "gpu-2", at(160)) == status
    status = intervals.released(status, at(200), at(230))
    assert waiting(status)[1:] == [("Held", "gpu-2", 100, 200)]
    assert status.usage is not None
    assert (status.held_since, status.node_since, status.usage.held_seconds) == (None, None, 200)


def test_a_move_ends_the_use_of_a_pod_that_was_not_seen_to_end() -> None:
    status = intervals.placed(intervals.attached(held(), "p", "uid-p", at(10)), "gpu-2", at(100))
    assert waiting(status) == [("Attached", "gpu-1", 10, 100), ("Held", "gpu-1", 0, 100)]
    assert status.attachment is None


@pytest.mark.parametrize(("ended", "end"), [(at(60), 60), (None, 500), (at(5), None), (at(900), 500)])
def test_the_end_of_a_pod_that_is_seen_late_is_what_the_pod_says_within_reason(
    ended: dt.datetime | None, end: int | None
) -> None:
    status = intervals.detached(intervals.attached(held(), "p", "uid-p", at(10)), at(500), ended=ended)
    assert waiting(status) == ([("Attached", "gpu-1", 10, end)] if end is not None else [])


@pytest.mark.parametrize(("scheduled", "start"), [(at(12), 12), (None, 50), (at(-5), 0), (at(70), 50)])
def test_a_pod_that_is_seen_late_is_attached_since_it_was_scheduled(scheduled: dt.datetime | None, start: int) -> None:
    status = intervals.attached(held(), "p", "uid-p", at(50), scheduled=scheduled)
    assert status.attachment is not None
    assert status.attachment.since == at(start)


def end(uid: str, since: int, until: int, node: str = "gpu-1") -> PodEnd:
    return PodEnd(uid, uid, node, at(since), at(until))


def test_pods_that_nobody_saw_run_or_end_are_caught_up_with_once() -> None:
    runs = intervals.attached(held(seconds=5), "p", "p", at(10))
    ends = [end("r", 60, 70), end("p", 10, 30), end("q", 31, 50), end("old", 1, 4), end("s", 71, 80, "gpu-2")]
    status = intervals.caught_up(runs, ends, at(100))
    assert waiting(status) == [
        ("Attached", "gpu-1", 10, 30),
        ("Attached", "gpu-1", 31, 50),
        ("Attached", "gpu-1", 60, 70),
    ]
    assert intervals.caught_up(status, ends, at(200)) == status
    assert (
        intervals.caught_up(intervals.released(status, at(90), at(100)), [end("t", 91, 95)], at(100)).attachment is None
    )


def test_two_pods_never_use_the_same_second() -> None:
    status = intervals.detached(intervals.attached(held(), "p", "uid-1", at(10)), at(50))
    status = intervals.attached(status, "q", "uid-2", at(51), scheduled=at(40))
    assert status.attachment is not None
    assert status.attachment.since == at(50)


def test_a_deleted_claim_is_paid_for_until_its_deletion_or_the_end_of_its_pod() -> None:
    off = intervals.released(held(), at(100), at(4000))
    assert waiting(off) == [("Held", "gpu-1", 0, 100)]
    ran = intervals.detached(intervals.attached(held(), "p", "uid", at(10)), at(4000), ended=at(130))
    on = intervals.released(ran, at(100), at(4000))
    assert waiting(on) == [("Attached", "gpu-1", 10, 130), ("Held", "gpu-1", 0, 130)]
    assert on.node_name == "gpu-1"  # R10a: it holds until it is gone
    assert intervals.released(on, at(100), at(5000)) == on
    assert intervals.running(claim(on), at(5000)) == []
    assert waiting(intervals.placed(on, "gpu-2", at(5000))) == waiting(on)


def test_a_pod_that_starts_while_a_released_claim_waits_for_the_ledger_holds_it_again() -> None:
    off = intervals.released(held(), at(100), at(200))
    status = intervals.attached(off, "p", "uid", at(300))
    assert spans(intervals.running(claim(status), at(310))) == [
        ("Held", "gpu-1", 300, 310),
        ("Attached", "gpu-1", 300, 310),
    ]
    status = intervals.released(intervals.detached(status, at(400), ended=at(350)), at(100), at(400))
    assert waiting(status) == [
        ("Held", "gpu-1", 0, 100),
        ("Attached", "gpu-1", 300, 350),
        ("Held", "gpu-1", 300, 350),
    ]
    assert status.usage is not None
    assert (status.usage.held_seconds, status.usage.attached_seconds) == (150, 50)


def test_without_a_ledger_only_totals_are_kept() -> None:
    status = intervals.detached(intervals.attached(held(), "p", "uid", at(10)), at(70), keep=False)
    status = intervals.released(status, at(100), at(100), keep=False)
    assert waiting(status) == []
    assert status.usage is not None
    assert (status.usage.held_seconds, status.usage.attached_seconds) == (100, 60)


def test_what_the_ledger_has_leaves_the_claim() -> None:
    status = intervals.released(intervals.attached(held(), "p", "uid", at(10)), at(100), at(100))
    first, second = intervals.unrecorded(claim(status))
    assert waiting(intervals.without(claim(status), {first})) == spans([second])
    assert intervals.without(claim(status), set()) is status
    assert intervals.without(claim(), {first}) == GPUClaimStatus()


def span(kind: UsageKind, since: int, until: int, node: str = "gpu-1") -> UsageInterval:
    return UsageInterval(kind=kind, node_name=node, since=at(since), until=at(until))


def test_too_many_intervals_are_joined_with_their_seconds_and_a_joined_one_is_another_record() -> None:
    kept = [span(HELD, 0, 5), span(ATTACHED, 0, 1), span(ATTACHED, 2, 5)]
    assert intervals.joined(kept, span(ATTACHED, 9, 10), most=3) == [*kept, span(ATTACHED, 9, 10)]
    joined = intervals.joined(kept, span(ATTACHED, 9, 10), most=2)
    grown = msgspec.structs.replace(kept[2], until=at(10), seconds=4)
    assert joined == [*kept[:2], grown]
    # The ledger may have it as it was: that is not what waits now.
    usage = Usage(unrecorded=kept)
    had = set(intervals.unrecorded(claim(GPUClaimStatus(usage=usage))))
    now = claim(GPUClaimStatus(usage=msgspec.structs.replace(usage, unrecorded=joined)))
    left = intervals.without(now, had).usage
    assert left is not None
    assert left.unrecorded == [grown]


# --- for any history --------------------------------------------------------------------------------------------------

NODES = ("gpu-1", "gpu-2", "gpu-3")
steps = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.sampled_from(["pod", "pod ends", "move", "ledger", "controller down", "controller up"]),
        st.integers(0, 2),
    ),
    max_size=40,
)


class World:
    """A claim as the controller keeps it, a ledger, and a count of every second beside them."""

    def __init__(self) -> None:
        self.now = 0
        self.claim = claim(intervals.placed(GPUClaimStatus(), NODES[0], T0))
        self.ledger: dict[Key, Record] = {}
        self.counted = {HELD: 0, ATTACHED: 0}
        self.pod: str | None = None
        self.scheduled: int | None = None
        self.pods = 0
        self.up = True
        self.ended: list[PodEnd] = []

    def put(self, status: GPUClaimStatus) -> None:
        self.claim = msgspec.structs.replace(self.claim, status=status)

    def pass_time(self, seconds: int) -> None:
        self.counted[HELD] += seconds
        self.counted[ATTACHED] += seconds if self.pod is not None else 0
        self.now += seconds

    def see(self) -> None:
        """What the binder does when it looks at the claim."""
        if not self.up:
            return
        now = at(self.now)
        status = intervals.caught_up(self.claim.status, self.ended, now)
        if self.pod is not None and status.attachment is None:
            assert self.scheduled is not None
            status = intervals.attached(status, self.pod, self.pod, now, scheduled=at(self.scheduled))
        self.put(status)

    def do(self, what: str, number: int) -> None:
        match what:
            case "pod" if self.pod is None and self.up:
                # No pod of a set starts while no controller pins it.
                self.pods += 1
                self.pod, self.scheduled = f"pod-{self.pods}", self.now
                if number == 0:
                    return  # The controller learns of it later.
            case "pod ends" if self.pod is not None:
                assert self.scheduled is not None
                node = self.claim.status.node_name or ""
                self.ended.append(PodEnd(self.pod, self.pod, node, at(self.scheduled), at(self.now)))
                self.pod = self.scheduled = None
            case "move" if self.pod is None and self.up:
                self.see()
                self.put(intervals.placed(self.claim.status, NODES[number], at(self.now)))
            case "ledger" if self.up:
                found = intervals.unrecorded(self.claim)
                for record in found:
                    old = self.ledger.get(record.key)
                    if old is None or old.ended_at < record.ended_at:
                        self.ledger[record.key] = record
                if number:  # else: the leader changes before the claim says so; it is recorded again
                    self.put(intervals.without(self.claim, set(found)))
            case "controller down":
                self.see()
                self.up = False
            case "controller up":
                self.up = True
        self.see()

    def recorded(self, kind: UsageKind) -> int:
        """Seconds of the ledger's, the waiting and the running intervals."""
        all_of_them = {r.key: r for r in intervals.running(self.claim, at(self.now))}
        all_of_them |= self.ledger
        all_of_them |= {r.key: r for r in intervals.unrecorded(self.claim)}
        found = sorted((r for r in all_of_them.values() if r.kind is kind), key=lambda r: r.started_at)
        assert all(a.ended_at <= b.started_at for a, b in itertools.pairwise(found))
        return sum(record.seconds for record in found)


@pytest.mark.parametrize("most", [1, 2, 1000])
@given(history=steps, deleted_after=st.none() | st.integers(0, 50))
def test_for_any_history_the_intervals_sum_up_to_the_time_that_was(
    most: int, history: list[tuple[int, str, int]], deleted_after: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        plain = intervals.joined
        patched.setattr(intervals, "joined", lambda kept, new: plain(kept, new, most))
        world = World()
        for seconds, what, number in history:
            world.pass_time(seconds)
            world.do(what, number)
        world.do("controller up", 0)
        assert {kind: world.recorded(kind) for kind in (HELD, ATTACHED)} == world.counted
        if deleted_after is None:
            return
        # Deleted, with the controller down; its pod ends; the controller sees all of it a while later.
        deleted = world.now
        world.up = False
        if world.pod is not None:
            world.pass_time(deleted_after)
            world.do("pod ends", 0)
        world.now += 1000
        world.up = True
        status = intervals.caught_up(world.claim.status, world.ended, at(world.now))
        world.put(intervals.released(status, at(deleted), at(world.now)))
        assert {kind: world.recorded(kind) for kind in (HELD, ATTACHED)} == world.counted
        usage = world.claim.status.usage
        totals = (usage.held_seconds, usage.attached_seconds) if usage is not None else (0, 0)
        assert totals == (world.counted[HELD], world.counted[ATTACHED])
