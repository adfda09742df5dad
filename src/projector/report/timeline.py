"""A pipeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is Chrome's trace events as JSON: the pipeline is a process, each rank a thread, each
operation a complete event; arrows are messages between ranks, counters what the ranks hold.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.distribution import package_version
from projector.errors import ConfigError
from projector.files import check_place, written_whole
from projector.schedule.order import BACKWARD, FORWARD
from projector.schedule.registry import most_runnable, placement
from projector.schedule.replay.run import PipelineRun

KEY = "timeline"
"""Option that names the file."""

MOST_OPERATIONS = 1 << 20
"""Operations of a schedule that a file takes; they are 0.4 GB of text. Half as many took 8 s of a
processor and 0.7 GB of memory."""

PROCESS = 1
"""Number of the process; viewers give 0 a meaning of its own."""

_PS_PER_US = 1e6
_BIND_PS = 10_000
"""How far inside its operation an arrow begins: viewers look for the operation it stands in, with
nanoseconds for a grid."""

_PIECES = 10_000
"""Of a trace that are compressed at once."""

_KINDS = ("F", "B", "W")


def write_timeline(run: PipelineRun, path: str | Path, title: str = "") -> None:
    """Write the trace of a run, whole, compressed for ``.gz``, titled by the name of a job."""
    check_place(path, key=KEY)
    _check_size(run)
    write_text(Path(path), [timeline_text(run, title)])


def _check_size(run: PipelineRun) -> None:
    setting, (pp, chunks) = run.chosen.setting, run.activation_bytes.shape
    each = pp * chunks * (3 if placement(*setting[:3]).splits_backward else 2)
    count = each * run.chosen.microbatches
    if count > MOST_OPERATIONS:
        most = most_runnable(setting, setting.microbatches * MOST_OPERATIONS // count)
        fewer = f"{most:,} microbatches or fewer" if most else "fewer ranks or smaller groups"
        msg = (
            f"{KEY}: {setting.microbatches:,} microbatches on {pp} ranks with {setting.vpp} chunks "
            f"have {count:,} operations, of which a file takes {MOST_OPERATIONS:,} at most; give "
            f"{fewer}"
        )
        raise ConfigError(msg, key="microbatches", value=setting.microbatches, allowed=fewer)


def write_text(target: Path, text: Iterable[str]) -> None:
    """Write a trace, compressed if named ``.gz``: the same trace gives the same file."""
    pieces = iter(text)
    # Neither time nor name is in the head.
    compressor = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16)
    with written_whole(target, key=KEY) as stream:
        while some := "".join(islice(pieces, _PIECES)).encode():
            stream.write(compressor.compress(some) if target.suffix == ".gz" else some)
        if target.suffix == ".gz":
            stream.write(compressor.flush())


def timeline_text(run: PipelineRun, title: str = "") -> str:
    """Return the trace, one event a line."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in trace_events(run, title))
    about = json.dumps(_about(run), ensure_ascii=False)
    return f'{{"displayTimeUnit": "ms",\n"otherData": {about},\n"traceEvents": [\n{lines}\n]}}\n'


def trace_events(run: PipelineRun, title: str = "") -> Iterator[dict[str, Any]]:
    """Yield names, operations, counters and arrows; times in microseconds from the first start."""
    yield from _names(run, title)
    yield from _operations(run)
    yield from _counters(run)
    yield from _arrows(run)


def _about(run: PipelineRun) -> dict[str, Any]:
    order = run.order
    return {
        "producer": f"projector {package_version()}",
        "schedule": run.schedule,
        "pp": order.pp,
        "chunks": order.vpp,
        "microbatches": order.microbatches * order.directions,
        "makespan_s": run.makespan_s,
        "bubble_fraction": run.bubble_fraction,
    }


def _names(run: PipelineRun, title: str) -> Iterator[dict[str, Any]]:
    def about(what: str, thread: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": args}

    name = f"pipeline {run.schedule}"
    yield about("process_name", 0, name=f"{title}, {name}" if title else name)
    for rank in range(run.order.pp):
        yield about("thread_name", rank + 1, name=f"rank {rank}")
        yield about("thread_sort_index", rank + 1, sort_index=rank)


def _operations(run: PipelineRun) -> Iterator[dict[str, Any]]:
    order, timeline = run.order, run.timeline
    start_us = timeline.start_ps / _PS_PER_US
    duration_us = _apart(run, start_us, (timeline.end_ps - timeline.start_ps) / _PS_PER_US)
    categories = ("forward", "input gradient" if order.splits_backward else "backward", "weight")
    columns = (
        order.kind, order.rank, order.chunk, order.microbatch, order.stage, start_us, duration_us
    )  # fmt: skip
    for kind, rank, chunk, microbatch, stage, ts, dur in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        name = f"{_KINDS[kind]}{microbatch}"
        yield {
            "ph": "X",
            "name": f"{name} chunk {chunk}" if order.vpp > 1 else name,
            "cat": categories[kind],
            "pid": PROCESS,
            "tid": rank + 1,
            "ts": ts,
            "dur": dur,
            "args": {"microbatch": microbatch, "chunk": chunk, "virtual_stage": stage},
        }


def _apart(
    run: PipelineRun, start_us: NDArray[np.float64], duration_us: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shorten by a nanosecond what would seem to end after the next operation begins.

    Viewers cut times to whole nanoseconds, each number for itself. Two operations that follow
    without a gap can then overlap by one, and are drawn one inside the other.
    """
    start_ns, length_ns = np.floor(start_us * 1e3), np.floor(duration_us * 1e3)
    room_ns = np.diff(start_ns, append=np.inf)
    room_ns[run.order.rank_offset[1:] - 1] = np.inf
    return np.maximum(np.where(length_ns > room_ns, duration_us - 1e-3, duration_us), 0.0)


def _counters(run: PipelineRun) -> Iterator[dict[str, Any]]:
    unit, scale = ("microbatches", 1.0) if run.static_bytes is None else ("GiB", 2.0**30)
    for rank in range(run.order.pp):
        curve = run.memory_curve(rank)
        # Of what changes at one time, the last value stands.
        last = np.append(np.diff(curve.time_ps) > 0, [True])
        for ts, held in zip(
            (curve.time_ps[last] / _PS_PER_US).tolist(),
            (curve.bytes[last] / scale).tolist(),
            strict=True,
        ):
            yield {
                "ph": "C",
                "name": f"memory of rank {rank}",
                "pid": PROCESS,
                "ts": ts,
                "args": {unit: held},
            }


def _arrows(run: PipelineRun) -> Iterator[dict[str, Any]]:
    """Join each operation to that on another rank which waits for its message."""
    sender, receiver = messages(run)
    order, timeline = run.order, run.timeline
    length_ps = timeline.end_ps - timeline.start_ps
    sent_us = (timeline.end_ps - np.minimum(length_ps // 2, _BIND_PS))[sender] / _PS_PER_US
    received_us = timeline.start_ps[receiver] / _PS_PER_US
    rank = order.rank
    columns = (order.kind[sender], rank[sender], rank[receiver], sent_us, received_us)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (kind, first, second, sent, received) in enumerate(rows):
        name = "activations" if kind == FORWARD else "gradients"
        common = {"name": name, "cat": "p2p", "id": number, "pid": PROCESS}
        yield {"ph": "s", **common, "tid": first + 1, "ts": sent}
        yield {"ph": "f", "bp": "e", **common, "tid": second + 1, "ts": received}


def messages(run: PipelineRun) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which operations send to which on another rank, as rows of the order.

    F sends to the F of the next virtual stage of its copy of the model, B to the B of the one
    before.
    """
    order = run.order
    stages, microbatches, length = order.pp * order.vpp, order.microbatches, order.num_stages
    row = np.full((3, stages, microbatches), -1, np.int64)
    row[order.kind, order.stage, order.microbatch] = np.arange(len(order.kind))
    stage = np.arange(stages)
    has_next = (stage + 1) % length != 0
    lower, upper = stage[has_next], stage[has_next] + 1
    sender = np.concatenate([row[FORWARD, lower].ravel(), row[BACKWARD, upper].ravel()])
    receiver = np.concatenate([row[FORWARD, upper].ravel(), row[BACKWARD, lower].ravel()])
    away = order.rank[sender] != order.rank[receiver]
    sender, receiver = sender[away], receiver[away]
    by_time = np.argsort(run.timeline.end_ps[sender], kind="stable")
    return sender[by_time], receiver[by_time]
