"""Every schedule by its name. A further one is a function of `orders` and one entry here."""

import difflib
import operator
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

from projector.arrays import Ints
from projector.config.training import AUTO, chunks_of, schedule_name, spellings
from projector.errors import ScheduleError, shown
from projector.schedule import order as orders
from projector.schedule.orders import dualpipe, forward_backward, zerobubble
from projector.schedule.planning.costs import Costs, uniform_costs

MAX_OPERATIONS = 2**24
"""Longest step; PP 64, VPP 2 and 1,024 microbatches have 2**18.6."""

MOST_LISTED, MOST_PLANNED = 2**23, 2**19
"""Longest order that is listed, or planned: about a second of a core, and 400 MB."""

MOST_COMPARED = 2**13
"""Longest order that a comparison of all schedules searches for: up to here twenty seconds of a
core are enough, and 64 ranks with 512 microbatches take a minute."""

MOST = {"pp": 1024, "vpp": 64}
"""As in a job: time and memory of a replay grow with their squares."""


def _each(pp: int, vpp: int) -> tuple[int, int]:  # noqa: ARG001
    """Each microbatch repeats, once every rank has begun with one."""
    return 1, pp


def _each_later(pp: int, vpp: int) -> tuple[int, int]:  # noqa: ARG001
    """Each microbatch repeats, once a second warm-up is whole, or both chunks have enough."""
    return 1, 2 * pp - 1


class Entry(NamedTuple):
    """One schedule."""

    name: str
    description: str
    check: Callable[..., None]
    """Raises :class:`ScheduleError` where the schedule cannot run."""
    order: Callable[..., orders.Order] | None = None
    """The order, where it is the same for all times and memories."""
    plan: Callable[[int, int, int, Costs], orders.Order] | None = None
    """The order that suits some times and memories; raises where the memory is too small."""
    most_held: Callable[[int], int] | None = None
    """Microbatches, of all chunks, that a planned order lets each of ``pp`` ranks hold at most,
    where the room for them is not the only limit."""
    chunks: Callable[[int], int] = lambda vpp: vpp
    """Chunks a rank for this schedule, from those that another schedule uses for the same work."""
    stages: Callable[[int, int], Ints] = orders.round_robin_stages
    """Virtual stages of each rank, from ``pp`` and ``vpp``: ``int64[pp, chunks]``."""
    directions: int = 1
    """Copies of the model that run at once."""
    splits_backward: bool = True
    """Whether the gradients of the weights are operations of their own."""
    on_request: bool = False
    """Whether it takes seconds to plan, so that a search leaves it out, and a comparison of all
    schedules does with more than `MOST_COMPARED` operations."""
    grouped: bool = False
    """Whether ``check``, ``order`` and ``repeats`` also take the size of a group."""
    repeats: Callable[..., tuple[int, int]] = lambda *_: (0, 1)
    """From ``pp`` and ``vpp``: every how many microbatches and from how many on a longer order has
    one more period, as `Series` says; every 0 where it has none."""

    @property
    def planned(self) -> bool:
        """Whether the order depends on times and memory."""
        return self.plan is not None

    @property
    def most(self) -> int:
        """Longest order that is listed; those that repeat themselves list a few periods."""
        # That of 1F1B-V looks for its slots, one by one.
        return MOST_PLANNED if self.planned or self.name == "1f1b-v" else MOST_LISTED


def _planner(where: str, *arguments: Any) -> Callable[[int, int, int, Costs], orders.Order]:
    """Return a function of a module of orders, imported when it is called: it loads numba."""

    def plan(pp: int, vpp: int, microbatches: int, costs: Costs) -> orders.Order:
        module, name = where.split(".")
        planner = getattr(import_module(f"projector.schedule.orders.{module}"), name)
        order: orders.Order = planner(*arguments, pp, vpp, microbatches, costs)
        return order

    return plan


SCHEDULES: dict[str, Entry] = {
    entry.name: entry._replace(chunks=partial(chunks_of, entry.name))
    for entry in (
        Entry(
            "gpipe",
            "all forwards, then all backwards",
            partial(orders.one_chunk, "gpipe"),
            forward_backward.gpipe,
            splits_backward=False,
        ),
        Entry(
            "1f1b",
            "one forward, one backward",
            partial(orders.one_chunk, "1f1b"),
            forward_backward.one_f_one_b,
            splits_backward=False,
            repeats=_each,
        ),
        Entry(
            "interleaved",
            "1F1B over several chunks a rank, in Megatron's order",
            forward_backward.check_interleaved,
            forward_backward.interleaved,
            splits_backward=False,
            grouped=True,
            repeats=forward_backward.repeat_groups,
        ),
        Entry(
            "1f1b-v",
            "1F1B over two chunks a rank in a V, two thirds of the memory of 1F1B",
            partial(orders.two_chunks, "1f1b-v"),
            forward_backward.one_f_one_b_v,
            splits_backward=False,
            stages=lambda pp, _: orders.v_shape(pp),
            repeats=_each_later,
        ),
        Entry(
            "zerobubble",
            "ZB-H1: gradients of the weights fill bubbles, memory of 1F1B",
            partial(orders.one_chunk, "zerobubble"),
            zerobubble.order,
            repeats=_each,
        ),
        Entry(
            "zerobubble-h2",
            "ZB-H2: twice the warm-up and memory of ZB-H1, no bubble inside a rank",
            partial(orders.one_chunk, "zerobubble-h2"),
            zerobubble.order_h2,
            repeats=_each_later,
        ),
        Entry(
            "zbv-formatted",
            "ZB-V: two chunks a rank in a V, handcrafted, memory of 1F1B",
            partial(orders.two_chunks, "zbv-formatted"),
            zerobubble.order_v,
            stages=lambda pp, _: orders.v_shape(pp),
            repeats=_each_later,
        ),
        *(
            Entry(
                f"zbv-greedy-{mode}",
                f"two chunks a rank in a V, W where it fits, {memory}",
                partial(orders.two_chunks, f"zbv-greedy-{mode}"),
                plan=_planner("zbv_greedy.plan", mode),
                most_held=partial(orders.microbatches_held, mode),
                stages=lambda pp, _: orders.v_shape(pp),
            )
            for mode, memory in (
                ("min", "about a third of the memory of 1F1B"),
                ("half", "about half the memory of 1F1B"),
                ("zb", "the memory of 1F1B"),
            )
        ),
        Entry(
            "dualpipe",
            "two copies of the model, fed from either end: twice the weights, one microbatch more",
            dualpipe.check,
            dualpipe.order,
            stages=lambda pp, _: orders.v_shape(pp),
            directions=2,
            repeats=dualpipe.repeats,
        ),
        Entry(
            "seaailab",
            "zero bubble planned with the times and memory at hand",
            partial(orders.one_chunk, "seaailab"),
            plan=_planner("seaailab.plan"),
        ),
        Entry(
            "seaailab-ilp",
            "the same, made better by an integer linear program in limited time",
            partial(orders.one_chunk, "seaailab-ilp"),
            plan=_planner("seaailab.plan_searched"),
            on_request=True,
        ),
    )
}


def resolve(name: str, vpp: int = 1) -> Entry:
    """Return the schedule of a name; ``auto`` is 1f1b, or interleaved with virtual stages."""
    called = schedule_name(str(name))
    if called == AUTO:
        return SCHEDULES["1f1b" if vpp == 1 else "interleaved"]
    if called in SCHEDULES:
        return SCHEDULES[called]
    known = [AUTO, *SCHEDULES]
    names = spellings()
    close = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f" (did you mean {names[close[0]]!r}?)" if close else ""
    msg = f"there is no schedule {name!r}{hint}; choose one of {', '.join(known)}"
    raise ScheduleError(msg, key="schedule", value=name, allowed=known)


class Setting(NamedTuple):
    """A schedule and the sizes it runs with."""

    name: str
    pp: int
    vpp: int
    microbatches: int
    group_size: int | None = None
    """None where the schedule has no groups, or groups of ``pp``."""

    @property
    def planned(self) -> bool:
        """Whether the order depends on times and memory."""
        return SCHEDULES[self.name].planned

    def order(self, costs: Costs | None = None) -> orders.Order:
        """Return the order, for these costs where it is planned."""
        return build(self.name, self.pp, self.vpp, self.microbatches, costs, self.group_size)

    def series(self) -> orders.Series:
        """Return the orders of all lengths of a schedule that is not planned."""
        return series(self.name, self.pp, self.vpp, self.group_size)


def check(
    name: str, pp: int, vpp: int, microbatches: int, group_size: int | None = None
) -> Setting:
    """Return what runs where a schedule is asked for, or raise an error that says why it cannot."""

    def offered(most: int) -> Any:
        entry = resolve(name, vpp)
        groups = (group_size,) if entry.grouped and _is_count(group_size) else ()
        most = most_runnable(Setting(entry.name, pp, vpp, most, *groups), most) or most
        try:
            return check(name, pp, vpp, most, group_size).microbatches
        except ScheduleError as error:
            return error.allowed if error.key == "microbatches" else most

    check_sizes(pp, vpp, microbatches, offered)
    if group_size is not None and not _is_count(group_size):
        msg = f"group_size must be an integer >= 1, not {group_size!r}"
        raise ScheduleError(msg, key="group_size", value=group_size, allowed="an integer >= 1")
    pp, vpp, microbatches = (operator.index(each) for each in (pp, vpp, microbatches))
    entry = resolve(name, vpp)
    group = (operator.index(group_size),) if entry.grouped and group_size is not None else ()
    entry.check(pp, vpp, microbatches, *group)
    setting = Setting(entry.name, pp, vpp, microbatches, *group)
    each = 3 * pp * vpp
    listed = microbatches if entry.planned else setting.series().with_period(microbatches)
    if each * min(listed, microbatches) > entry.most:
        most = entry.most // each
        msg = (
            f"schedule {entry.name} is laid out operation by operation, up to {entry.most:,} of "
            f"them, but {microbatches:,} microbatches on {pp} ranks with {vpp} chunks have "
            f"{each * microbatches:,}"
        )
        if group and group[0] > most:
            # Ramps of five groups, periods, and what is left; see `Series.with_period`.
            most //= 7 + orders.Series.MIN_PERIODS
            msg += f", and no period of groups of {group[0]:,} is shorter; give {most:,} or fewer"
            raise ScheduleError(msg, key="group_size", value=group[0], allowed=f"{pp}..{most}")
        most = most_runnable(setting, most if group else most - most % pp or most)
        msg += f"; {most:,} microbatches show the same" if most else ", and it runs no fewer"
        allowed = most or "fewer ranks or chunks"
        raise ScheduleError(msg, key="microbatches", value=microbatches, allowed=allowed)
    return setting


def most_runnable(setting: Setting, most: int) -> int:
    """Return the most microbatches, up to ``most``, that a schedule can run; 0 where it has none.

    All else in the setting must be right: then no more than ``pp`` numbers are refused in turn.
    """
    name, pp, vpp, _, *group = setting
    for count in range(most, max(0, most - pp), -1):
        with suppress(ScheduleError):
            SCHEDULES[name].check(pp, vpp, count, *filter(None, group))
            return count
    return 0


def check_sizes(pp: int, vpp: int, microbatches: int, offered: Callable[[int], Any] = int) -> None:
    """Raise where no schedule could run with such numbers.

    ``offered`` returns the microbatches to try instead, from the most that there may be.
    """
    sizes = {"pp": pp, "vpp": vpp, "microbatches": microbatches}
    for key, value in sizes.items():
        if not _is_count(value):
            msg = f"{key} must be an integer >= 1, not {shown(value)}"
            raise ScheduleError(msg, key=key, value=value, allowed="an integer >= 1")
        if key in MOST and value > MOST[key]:
            msg = f"{key} must be at most {MOST[key]}, not {shown(value)}"
            raise ScheduleError(msg, key=key, value=value, allowed=MOST[key])
    chunks, most = pp * vpp, MAX_OPERATIONS // 3
    if chunks * microbatches > most:
        msg = f"pp * vpp * microbatches = {chunks * microbatches} is too large; at most {most}"
        allowed = offered(most // chunks)
        raise ScheduleError(msg, key="microbatches", value=microbatches, allowed=allowed)


def refuse_long(name: str, pp: int, microbatches: int) -> None:
    """Raise for a schedule that a comparison of all schedules leaves out."""
    operations = 3 * pp * microbatches
    if SCHEDULES[name].on_request and operations > MOST_COMPARED:
        msg = (
            f"takes minutes to plan {operations:,} operations (compared up to {MOST_COMPARED:,}); "
            f"choose schedule {name} alone"
        )
        raise ScheduleError(msg, key="schedule", value=name, allowed=f"schedule = {name}")


def build(
    name: str,
    pp: int,
    vpp: int,
    microbatches: int,
    costs: Costs | None = None,
    group_size: int | None = None,
) -> orders.Order:
    """Return the order of a schedule; the same arguments give the same object.

    Only planned schedules look at ``costs``, those of the ``pp * vpp`` virtual stages; without, all
    stages are equal and memory is unlimited. Only ``interleaved`` looks at ``group_size``, the
    microbatches that a chunk takes before the next chunk's turn, and goes in groups of ``pp``
    without.
    """
    setting = check(name, pp, vpp, microbatches, group_size)
    if not setting.planned:
        costs = None
    elif costs is None:
        costs = uniform_costs(setting.pp, setting.pp * setting.vpp)
    return _build(setting, costs)


@orders.kept_by_operations(lambda order, *_: len(order.kind))
def _build(setting: Setting, costs: Costs | None) -> orders.Order:
    entry, sizes = SCHEDULES[setting.name], setting[1:4]
    if costs is not None and entry.plan is not None:
        return entry.plan(*sizes, costs)
    assert entry.order is not None
    return entry.order(*sizes, *filter(None, [setting.group_size]))


@lru_cache(maxsize=512)
def series(name: str, pp: int, vpp: int, group_size: int | None = None) -> orders.Series:
    """Return the orders of a schedule that is not planned; the same arguments give the same."""
    entry = SCHEDULES[name]
    every, least = entry.repeats(pp, vpp, *filter(None, [group_size]))

    def order(microbatches: int) -> orders.Order:
        return build(name, pp, vpp, microbatches, None, group_size)

    return orders.Series(pp, vpp * entry.directions, order, every, least)


@lru_cache(maxsize=512)
def placement(name: str, pp: int, vpp: int) -> orders.Placement:
    """Return where the stages of a schedule live; the same arguments give the same object."""
    entry = SCHEDULES[name]
    return orders.Placement(entry.stages(pp, vpp), entry.directions, entry.splits_backward)


class ChosenOrder(NamedTuple):
    """What the ranks of some jobs run; the operations are listed only where they are asked for."""

    setting: Setting
    planned: orders.Order | None = None
    """The order, where it was made for the times and memory of the jobs."""

    def order(self) -> orders.Order:
        """Return all operations."""
        return self.setting.order() if self.planned is None else self.planned

    def short(self) -> orders.Order:
        """Return an order of the same ranks that hold as much, with few microbatches."""
        return _short(self.setting) if self.planned is None else self.planned

    @property
    def microbatches(self) -> int:
        """Microbatches that pass through each virtual stage."""
        return self.setting.microbatches // SCHEDULES[self.setting.name].directions


@orders.kept_by_operations(lambda order, _: len(order.kind))
def _short(setting: Setting) -> orders.Order:
    alike = setting.series()
    return alike.order(alike.with_all_peaks(setting.microbatches))


def _is_count(value: Any) -> bool:
    try:
        return operator.index(value) >= 1 and not isinstance(value, bool)
    except TypeError:
        return False
