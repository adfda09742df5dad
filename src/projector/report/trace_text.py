"""Events of Chrome's trace format as text, with times to the picosecond.

Viewers multiply a time by 1,000 and cut it to whole nanoseconds, each number for itself, and draw
what then seems to overlap as if one were inside the other. A time is therefore written with a fifth
of a picosecond more, so that the product of floating-point numbers never falls below a whole
nanosecond that it should reach. Who rounds to picoseconds reads the exact time.
"""

import json
from functools import cache

_PS_PER_US = 10**6

GRID_PS = 1
"""Grid of the times, as the head of a file says."""

_NS_PS = 1000


def us(time_ps: int) -> str:
    """Return a time of 0 or more in microseconds."""
    whole, rest = divmod(time_ps, _PS_PER_US)
    return f"{whole}.{rest:06d}2"


def whole_ns(time_ps: int) -> int:
    """Return a time cut to nanoseconds, in picoseconds.

    Where one event stands around others, both grids must agree that it does.
    """
    return time_ps // _NS_PS * _NS_PS


@cache
def quoted(text: str) -> str:
    """Return a text as JSON; names repeat, so each is made once."""
    return json.dumps(text, ensure_ascii=False)


def complete(
    category: str, name: str, where: tuple[int, int], span_ps: tuple[int, int], args: str
) -> str:
    """Return an event with a start and a duration, on a thread of a process."""
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {quoted(name)}, "pid": {where[0]}, '
        f'"tid": {where[1]}, "ts": {us(span_ps[0])}, "dur": {us(span_ps[1])}, '
        f'"args": {{{args}}}}}'
    )


def arrow(category: str, number: int, where: tuple[int, int], time_ps: int, *, ends: bool) -> str:
    """Return one end of an arrow; it binds to the event that it lies in."""
    phase = '"f", "bp": "e"' if ends else '"s"'
    return (
        f'{{"ph": {phase}, "id": {number}, "pid": {where[0]}, "tid": {where[1]}, '
        f'"ts": {us(time_ps)}, "cat": "{category}", "name": "{category}"}}'
    )


def counter(name: str, process: int, time_ps: int, values: dict[str, float]) -> str:
    """Return what a counter has from a point in time on."""
    return (
        f'{{"ph": "C", "name": {quoted(name)}, "pid": {process}, "ts": {us(time_ps)}, '
        f'"args": {json.dumps(values)}}}'
    )


def about(what: str, process: int, thread: int, key: str, value: str | int) -> str:
    """Return a name or a place of a process or thread; ``what`` is such as ``thread_name``."""
    return (
        f'{{"ph": "M", "name": "{what}", "pid": {process}, "tid": {thread}, '
        f'"args": {{"{key}": {json.dumps(value, ensure_ascii=False)}}}}}'
    )
