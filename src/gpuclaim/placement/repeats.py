"""The same order sent again, as when an answer was lost: it is decided before the apiserver looks at its name. Pure."""

from __future__ import annotations

import dataclasses

from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Order, Reservation


def other_try(books: Books, order: Order) -> Reservation | None:
    """What another try of the same order was given, under another UID; None where there is none.

    A name is stored once, so at most one of the tries is: they share what is reserved. One that waits for moves is
    left alone, they are made under its UID. O(what is reserved of the set).
    """
    for reserved in books.reserved_of_set(order.namespace, order.set_name):
        same = reserved.order == dataclasses.replace(order, uid=reserved.uid)
        if same and reserved.uid != order.uid and not reserved.moves:
            return reserved
    return None
