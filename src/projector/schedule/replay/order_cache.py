"""What was made of orders lately is kept, as much of it as a processor has room for."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

from projector.schedule.order import Order

P = ParamSpec("P")
T = TypeVar("T")

MOST_OPERATIONS = 1 << 22
"""Operations of all orders that one function keeps results of: some tens of megabytes each, and
enough for every number of microbatches that a sweep meets."""


def of_order(_: object, order: Order) -> int:
    """Return the operations of the one argument of a function."""
    return len(order.kind)


def kept_by_operations(
    operations: Callable[..., int], most: int = MOST_OPERATIONS
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep the results of a function of hashable arguments, the latest first.

    Parameters
    ----------
    operations : callable
        Takes a result and the arguments; returns the operations of the order that it is about.
    most : int
        Operations of all results together; a larger one alone is kept as well.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        results: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        lock = Lock()
        total = 0

        @wraps(function)
        def keeping(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal total
            key = (args, tuple(sorted(kwargs.items())))
            with lock:
                if key in results:
                    results.move_to_end(key)
                    return results[key][0]
            result = function(*args, **kwargs)
            size = operations(result, *args, **kwargs)
            with lock:
                if key in results:
                    return results[key][0]
                results[key] = (result, size)
                total += size
                while total > most and len(results) > 1:
                    _, (_, old) = results.popitem(last=False)
                    total -= old
            return result

        return keeping

    return decorate
