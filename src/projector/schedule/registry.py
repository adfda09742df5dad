"""Every schedule by its name. A further schedule is one file and one line here."""

import difflib
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from projector.errors import ScheduleError

from .costs import Costs, uniform_costs
from .order import Order
from .orders import gpipe, interleaved, one_f_one_b, zerobubble

MAX_OPERATIONS = 2**24
"""Longest order; a line of it takes 700 MB. PP 64, VPP 2 and 1,024 microbatches have 2**18."""


def _as_given(vpp: int) -> int:
    """Keep the chunks that the work comes in."""
    return vpp


def _one(vpp: int) -> int:  # noqa: ARG001  one of the rules of `Entry.chunks`
    """Run the whole work of a rank as one chunk."""
    return 1


class Entry(NamedTuple):
    """One schedule."""

    name: str
    description: str
    check: Callable[[int, int, int], None]
    """Raises :class:`ScheduleError` where the schedule cannot run."""
    order: Callable[[int, int, int], Order] | None = None
    """The order, where it is the same for all times and memories."""
    plan: Callable[[int, int, int, Costs], Order] | None = None
    """The order that suits some times and memories; raises where the memory is too small."""
    chunks: Callable[[int], int] = _as_given
    """Chunks in which it runs the work that another schedule runs in so many."""

    @property
    def planned(self) -> bool:
        """Whether the order depends on times and memory."""
        return self.plan is not None


SCHEDULES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("gpipe", "all forwards, then all backwards", gpipe.check, gpipe.order, chunks=_one),
        Entry(
            "1f1b", "one forward, one backward", one_f_one_b.check, one_f_one_b.order, chunks=_one
        ),
        Entry(
            "interleaved",
            "1F1B over several chunks a rank, in Megatron's order",
            interleaved.check,
            interleaved.order,
        ),
        Entry(
            "zerobubble",
            "ZB-H1: gradients of the weights fill bubbles, memory of 1F1B",
            zerobubble.check,
            zerobubble.order,
            chunks=_one,
        ),
        Entry(
            "zerobubble-h2",
            "ZB-H2: twice the warm-up and memory of ZB-H1, no bubble inside a rank",
            zerobubble.check_h2,
            zerobubble.order_h2,
            chunks=_one,
        ),
    )
}

PLANNED = (
    "zbv-formatted",
    "zbv-greedy-min",
    "zbv-greedy-half",
    "zbv-greedy-zb",
    "dualpipe",
    "seaailab",
    "seaailab-ilp",
)
"""Names that are known and have no order yet."""


def resolve(name: str, vpp: int = 1) -> Entry:
    """Return the schedule of a name; ``auto`` is 1f1b, or interleaved with virtual stages."""
    if name == "auto":
        return SCHEDULES["1f1b" if vpp == 1 else "interleaved"]
    if name in SCHEDULES:
        return SCHEDULES[name]
    known = ["auto", *SCHEDULES]
    if name in PLANNED:
        msg = f"schedule {name} is not available in this version; choose one of {', '.join(known)}"
        raise ScheduleError(msg, key="schedule", value=name, allowed=known)
    close = difflib.get_close_matches(str(name).lower(), [*known, *PLANNED], n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    msg = f"there is no schedule {name!r}{hint}; choose one of {', '.join(known)}"
    raise ScheduleError(msg, key="schedule", value=name, allowed=known)


def check(name: str, pp: int, vpp: int, microbatches: int) -> Entry:
    """Return the schedule of a name, or raise an error that says why it cannot run."""
    check_sizes(pp, vpp, microbatches)
    entry = resolve(name, vpp)
    entry.check(pp, vpp, microbatches)
    return entry


def check_sizes(pp: int, vpp: int, microbatches: int) -> None:
    """Raise where no schedule could run with such numbers."""
    sizes = {"pp": pp, "vpp": vpp, "microbatches": microbatches}
    for key, value in sizes.items():
        if not _is_count(value):
            msg = f"{key} must be an integer >= 1, not {value!r}"
            raise ScheduleError(msg, key=key, value=value, allowed="an integer >= 1")
    if 3 * pp * vpp * microbatches > MAX_OPERATIONS:
        msg = (
            f"pp * vpp * microbatches = {pp * vpp * microbatches} is more than a schedule may "
            f"have; at most {MAX_OPERATIONS // 3}"
        )
        raise ScheduleError(
            msg, key="microbatches", value=microbatches, allowed=MAX_OPERATIONS // 3 // (pp * vpp)
        )


def applicable(pp: int, vpp: int, microbatches: int) -> list[str]:
    """Return the names of the schedules that can run."""
    names = []
    for name in SCHEDULES:
        try:
            check(name, pp, vpp, microbatches)
        except ScheduleError:
            continue
        names.append(name)
    return names


def build(name: str, pp: int, vpp: int, microbatches: int, costs: Costs | None = None) -> Order:
    """Return the order of a schedule; the same arguments give the same object.

    ``costs`` are those of the ``pp * vpp`` virtual stages. Only planned schedules look at them;
    without, all stages are equal and memory is unlimited.
    """
    entry = check(name, pp, vpp, microbatches)
    sizes = operator.index(pp), operator.index(vpp), operator.index(microbatches)
    if not entry.planned:
        costs = None
    elif costs is None:
        costs = uniform_costs(sizes[0], sizes[0] * sizes[1])
    return _build(entry.name, *sizes, costs)


@lru_cache(maxsize=128)
def _build(name: str, pp: int, vpp: int, microbatches: int, costs: Costs | None) -> Order:
    entry = SCHEDULES[name]
    if costs is not None and entry.plan is not None:
        return entry.plan(pp, vpp, microbatches, costs)
    assert entry.order is not None
    return entry.order(pp, vpp, microbatches)


def _is_count(value: Any) -> bool:
    try:
        return operator.index(value) >= 1 and not isinstance(value, bool)
    except TypeError:
        return False
