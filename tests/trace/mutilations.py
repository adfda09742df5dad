"""Traces spoilt in many ways, each by a seed, and what reading them must still give."""

import gzip
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from projector.errors import ConfigError
from projector.trace.events import Trace
from projector.trace.read import load_trace

DATA = Path(__file__).parent / "data"
NAMES = ("a100_ddp2", "b200_eager_rank0", "mi250_toy", "mi300x_resnet_ddp8")
EXCERPT = 40_000
"""Bytes of events that are taken of a large trace, so that thousands can be read."""

_EVENT = re.compile(rb",\s*(?=\{\s*\"ph\")")


@cache
def excerpt(name: str) -> bytes:
    """Return a real trace with some of its events, valid in itself."""
    with gzip.open(DATA / f"{name}.json.gz") as file:
        data = file.read()
    begin = data.index(b'"traceEvents"')
    if len(data) <= 2 * EXCERPT:
        return data
    kernel = data.index(b'"kernel"', begin)
    starts = [match.end() for match in _EVENT.finditer(data, kernel - EXCERPT, kernel + EXCERPT)]
    opened = data[: data.index(b"[", begin) + 1]
    events = data[starts[0] : starts[-1]].rstrip().removesuffix(b",")
    return opened + events + b'\n], "traceName": "excerpt"}\n'


def _place(random_: random.Random, data: bytes) -> int:
    return random_.randrange(len(data))


def _cut_off(r: random.Random, data: bytes) -> bytes:
    return data[: _place(r, data)]


def _take_out(r: random.Random, data: bytes) -> bytes:
    at = _place(r, data)
    return data[:at] + data[at + r.randrange(1, 400) :]


def _put_in(r: random.Random, data: bytes) -> bytes:
    at = _place(r, data)
    return data[:at] + r.randbytes(r.randrange(1, 40)) + data[at:]


def _flip(r: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    for _ in range(r.randrange(1, 30)):
        spoilt[_place(r, data)] = r.randrange(256)
    return bytes(spoilt)


def _repeat(r: random.Random, data: bytes) -> bytes:
    at = _place(r, data)
    return data[:at] + data[max(at - r.randrange(1, 3000), 0) :]


def _zeros(r: random.Random, data: bytes) -> bytes:
    at, size = _place(r, data), r.randrange(1, 5000)
    return data[:at] + bytes(size) + data[at + size :]


VALUES = (
    b"null", b"NaN", b"-1", b"1e400", b"-1e30", b"inf", b"-nan", b'"text"', b"[]", b"{}", b"true",
    b"123456789012345678901234567890", b'"\\ud800"', b'"0xff"', b"[" * 2000, b"9" * 5000, b'"',
    b"1.5", b"-0.0", b"1711964646123456.789", b'"stream 7"', b"\\", b"}", b"]", b"],",
    b'{"ph": "B"}',
)  # fmt: skip


def _value(r: random.Random, data: bytes) -> bytes:
    """Give some keys another value."""
    for _ in range(r.randrange(1, 4)):
        found = [*re.finditer(rb'": *([^,{\[\n}]+)', data)]
        if not found:
            return data
        match = r.choice(found)
        data = data[: match.start(1)] + r.choice(VALUES) + data[match.end(1) :]
    return data


def _key(r: random.Random, data: bytes) -> bytes:
    """Take keys away or rename them."""
    found = [*re.finditer(rb'"(ph|cat|name|pid|tid|ts|dur|args|traceEvents)"', data)]
    if not found:
        return data
    match = r.choice(found)
    return data[: match.start(1)] + r.choice((b"", b"ph", b"x", b"ts")) + data[match.end(1) :]


def _swap(r: random.Random, data: bytes) -> bytes:
    """Exchange brackets, commas and quotes."""
    found = [*re.finditer(rb'[\[\]{},:"]', data)]
    if not found:
        return data
    match = r.choice(found)
    return (
        data[: match.start()] + r.choice((b"[", b"]", b"{", b"}", b",", b'"')) + data[match.end() :]
    )


WAYS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _cut_off, _take_out, _put_in, _flip, _repeat, _zeros, _value, _value, _key, _swap,
)  # fmt: skip


def mutilate(seed: int) -> tuple[bytes, str]:
    """Return a spoilt trace and how its file is named."""
    r = random.Random(seed)
    data = excerpt(NAMES[seed % len(NAMES)])
    for _ in range(r.choice((1, 1, 1, 2, 5))):
        data = r.choice(WAYS)(r, data) or b"{"
    if seed % 5:
        return data, "t.json"
    packed = gzip.compress(data, 1)
    if r.random() < 0.7:
        packed = r.choice((_cut_off, _flip, _zeros, _put_in, _repeat))(r, packed)
    return packed, "t.json.gz"


def read_mutilated(seed: int, folder: Path) -> Trace | None:
    """Read a spoilt trace, check that what is found of it makes sense, and return it.

    Returns
    -------
    Trace or None
        None where nothing was found and an error said why.
    """
    data, name = mutilate(seed)
    path = folder / name
    path.write_bytes(data)
    try:
        trace = load_trace(path)
    except ConfigError as caught:
        error = caught
    else:
        check(trace)
        return trace
    assert error.key == "trace"
    assert str(path) in error.message
    return None


def check(trace: Trace) -> None:
    """Check that what was found in a file makes sense."""
    (rank,) = trace.ranks
    events = rank.events
    assert len(events)
    for column in events.__slots__:
        assert getattr(events, column).dtype == np.int64
        assert len(getattr(events, column)) == len(events)
    assert events.start_ps.min() >= 0
    assert events.duration_ps.min() >= 0
    assert (events.start_ps + events.duration_ps).max() < 2**63 - 1
    assert events.kind.min() >= 0
    assert events.kind.max() <= 7
    assert 0 <= events.name.min() <= events.name.max() < len(rank.names)
    assert -1 <= events.detail.min() <= events.detail.max() < len(rank.details)
    for text in (*rank.names, *rank.devices, *(p.text + p.where for p in trace.problems)):
        text.encode()
