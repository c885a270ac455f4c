"""What a tenant is told (R42): class, count, why not, what would be taken; nothing of nodes or other tenants."""

from __future__ import annotations

from collections.abc import Sequence

from gpuclaim.api.reasons import Refusal
from gpuclaim.placement.budget import Limit
from gpuclaim.placement.orders import Cause, Order, Verdict

LARGEST = "LargestOrder"
BUDGET_LEFT = "BudgetLeft"
_COUNT, _CLASS = "spec.count", "spec.className"


def unknown_class(order: Order) -> Verdict:
    """There is no such class."""
    text = f"There is no GPU class {order.class_name!r}, so the order for {_asked(order, of='it')} cannot be taken."
    return _refuse(Refusal.UNKNOWN_CLASS, _CLASS, text, order, 0, ())


def class_closed(order: Order) -> Verdict:
    """The class takes no new orders (R7)."""
    text = f"{_asked(order)} cannot be ordered: the class is closed to new orders. What is held stays held."
    return _refuse(Refusal.CLASS_CLOSED, _CLASS, text, order, 0, ())


def above_max_count(order: Order, limit: int, held: int, largest: int, limits: Sequence[Limit]) -> Verdict:
    """The set would have more of the class than one set may (R5, R32)."""
    has = f"set {order.set_name!r} already holds {held}" if held else f"set {order.set_name!r} holds none yet"
    text = f"{_asked(order)} cannot be ordered: one set may have at most {limit}, and {has}."
    return _refuse(Refusal.ABOVE_MAX_COUNT, _COUNT, text, order, largest, limits)


def over_budget(order: Order, over: Sequence[Limit], largest: int) -> Verdict:
    """A quota of the tenant, or of a tenant around it, leaves too little (R33)."""
    mine = [limit for limit in over if limit.namespace == order.namespace]
    if mine:
        tightest = min(mine, key=lambda limit: limit.left)
        why = (
            f"the budget {tightest.key} (ResourceQuota {tightest.quota!r}) is {tightest.hard} GPUs"
            f" with {tightest.used} used, which leaves {tightest.left}"
        )
    else:
        why = f"a parent tenant's budget {over[0].key} does not leave that many"
    text = f"{_asked(order)} cannot be ordered: {why}."
    causes = [Cause(Refusal.OVER_BUDGET.value, _COUNT, _figures(limit, order)) for limit in over]
    return _refusal(Refusal.OVER_BUDGET, text, causes, order, largest)


def no_capacity(order: Order, largest: int, limits: Sequence[Limit], *, in_set: bool) -> Verdict:
    """No node takes it as things stand."""
    where = f"together with the rest of set {order.set_name!r} on one node" if in_set else "on one node"
    text = f"{_asked(order)} cannot be ordered: there are not as many free {where}."
    return _refuse(Refusal.INSUFFICIENT_CAPACITY, _COUNT, text, order, largest, limits)


def set_attached(order: Order, largest: int, limits: Sequence[Limit]) -> Verdict:
    """Only the node of the set's running pod could take it, and it cannot (R36b)."""
    text = (
        f"{_asked(order)} cannot be ordered: set {order.set_name!r} is in use by a pod, and where that runs there are"
        " not as many free. Stop the VM to let the set move."
    )
    return _refuse(Refusal.SET_ATTACHED, "spec.set", text, order, largest, limits)


def nowhere(*, attached: bool) -> Verdict:
    """A set that is held already cannot be placed otherwise."""
    reason = Refusal.SET_ATTACHED if attached else Refusal.INSUFFICIENT_CAPACITY
    text = (
        "The set is in use by a pod, so it stays where it is."
        if attached
        else "No node has room for the whole set: it stays where it is for now."
    )
    return Verdict(admitted=False, reason=reason, message=text, causes=(Cause(reason.value, "spec.set", text),))


def _asked(order: Order, of: str = "") -> str:
    return f"{order.count} GPU{'' if order.count == 1 else 's'} of {of or f'class {order.class_name!r}'}"


def _refuse(reason: Refusal, field: str, text: str, order: Order, largest: int, limits: Sequence[Limit]) -> Verdict:
    causes = [Cause(reason.value, field, text)]
    mine = [limit for limit in limits if limit.namespace == order.namespace]
    if mine:
        tightest = min(mine, key=lambda limit: limit.left)
        text += f" The budget {tightest.key} leaves {tightest.left} of {tightest.hard}."
        causes += [Cause(BUDGET_LEFT, _COUNT, _figures(limit, order)) for limit in mine]
    return _refusal(reason, text, causes, order, largest)


def _refusal(reason: Refusal, text: str, causes: list[Cause], order: Order, largest: int) -> Verdict:
    if reason not in (Refusal.UNKNOWN_CLASS, Refusal.CLASS_CLOSED):
        text += (
            f" The largest order of {order.class_name!r} that would be taken now is {largest}."
            if largest
            else f" No order of {order.class_name!r} would be taken now."
        )
    causes.append(Cause(LARGEST, _COUNT, str(largest)))
    return Verdict(admitted=False, reason=reason, message=text, causes=tuple(causes))


def _figures(limit: Limit, order: Order) -> str:
    if limit.namespace != order.namespace:
        # Its figures are the sum over tenants that this one may not know.
        return f"key={limit.key} parent=true"
    return f"key={limit.key} used={limit.used} hard={limit.hard} left={limit.left} quota={limit.quota}"
