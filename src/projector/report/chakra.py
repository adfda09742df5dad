"""The step of a projection as execution traces of Chakra, a file for each device.

The schema is ``et_def.proto`` of mlcommons/chakra: messages behind their lengths, metadata first.
Times are whole microseconds, so that nodes that follow one another sum to the step.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from projector.files import made_folder, not_written, write_whole
from projector.projection.performance import PerformanceProjection
from projector.projection.timeline import columns
from projector.projection.timeline.build import Detail, build_timeline
from projector.report.exports import head_of
from projector.report.step_names import load_timeline_names
from projector.report.step_trace import Head, Work, group_of, works_of

MOST_NODES: Final = 4_000_000
"""Of all files together, some 400 MB."""

_LOAD, _STORE, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = range(2, 8)
"""``NodeType`` of the schema."""

_ALIKE: Final[tuple[str, Any]] = ("", None)


class _Node(NamedTuple):
    """A node of the devices of a pipeline rank; times in microseconds."""

    start: int
    end: int
    lane: tuple[int, int]
    name: str
    kind: int
    facts: dict[str, Any]
    other: tuple[str, Any] = _ALIKE
    """Attribute of each device alone, and the group or the pipeline rank that it names."""


def write_chakra(result: PerformanceProjection, folder: str | Path) -> None:
    """Write ``step.N.et`` of each device N, and ``comm_groups.json``, into a folder."""
    key, target = "chakra", made_folder(folder, key="chakra")
    most = MOST_NODES * result.degrees["pp"] // result.gpus
    timeline = build_timeline(result, Detail(most=most))
    head = head_of(result, timeline)
    if head.other["blocks"] != head.other["blocks_in_detail"]:
        why = f"more than {MOST_NODES:,} nodes; give a smaller global_batch_size or cluster.nodes"
        raise not_written(target, why, key=key)
    ranks = [list(_linked(nodes)) for nodes in _nodes(works_of(timeline), head)]
    groups: dict[str, dict[int, tuple[int, ...]]] = {}
    for name, offsets in head.members[0].groups.items():
        of_device = groups[name] = {}
        for device in range(result.gpus):
            if device not in of_device:
                group = tuple(device + offset for offset in offsets)
                of_device |= dict.fromkeys(group, group)
    known = dict.fromkeys(group for each in groups.values() for group in each.values())
    numbers = {group: str(number) for number, group in enumerate(known, 1)}
    listed = json.dumps(dict(enumerate(known, 1)))
    write_whole(target / "comm_groups.json", listed.encode(), key=key)
    metadata = (_message({1: "0.0.4"}, {}), _ALIKE)
    for device in range(result.gpus):
        stages = groups["PP"][device] if len(ranks) > 1 else (device,)
        parts: list[bytes] = []
        for shared, (name, of) in (metadata, *ranks[stages.index(device)]):
            own: dict[str, Any] = {name: numbers[groups[of][device]]} if name == "pg_name" else {}
            if name.startswith("comm_"):
                own = {"comm_src": device, "comm_dst": device, name: stages[of]}
            message = shared + _message({}, own)
            parts += [_varint(len(message)), message]
        write_whole(target / f"step.{device}.et", b"".join(parts), key=key)


def _nodes(works: Sequence[Work], head: Head) -> list[list[_Node]]:
    """Return the nodes of each pipeline rank; what it receives stands for the wait for it."""
    names, found = load_timeline_names(), [list[_Node]() for _ in head.members]
    rank_of = {(work.stage, work.microbatch): work.rank for work in works}
    messages: dict[tuple[str, int, int], tuple[dict[str, int], int]] = {}
    idle: dict[int, int] = {}
    for work in sorted(works, key=lambda work: (work.track != columns.PP, work.start_ps)):
        start, end = (round(ps / 10**6) for ps in (work.start_ps, work.start_ps + work.duration_ps))
        if work.label in ("pipeline.wait", "message.wait", "send.wait"):
            idle.setdefault(work.rank, start)
            continue
        kind, size, other = _COMPUTE, round(work.bytes), _ALIKE
        facts = {"num_ops": round(work.flop), "tensor_size": size}
        if work.track == columns.PP:
            to = (work.stage + (1 if work.label == "send.forward" else -1), work.microbatch)
            facts = {"comm_size": size, "comm_tag": len(messages)}
            messages[work.label, *to] = facts, work.rank
            kind, other = _SEND, ("comm_dst", rank_of[to])
        elif work.communicates:
            known, group = names.collective(work.label), group_of(work)
            sent, _ = known.messages(size, len(head.members[work.rank].groups[group]))
            facts = {"comm_type": known.chakra, "comm_size": sent}
            kind, other = _COLLECTIVE, ("pg_name", group)
        elif work.track == columns.COPY:
            kind = _STORE if work.phase == columns.FORWARD else _LOAD
        mine = found[work.rank]
        if work.track not in (columns.DP, columns.PP, columns.COPY):
            back = work.recompute or work.phase in (columns.BACKWARD, columns.WEIGHT)
            since, way = idle.pop(work.rank, start), "backward" if back else "forward"
            if came := messages.pop((f"send.{way}", work.stage, work.microbatch), None):
                lane, sender = (columns.PP, -1), ("comm_src", came[1])
                mine.append(_Node(since, start, lane, f"receive.{way}", _RECEIVE, came[0], sender))
        mine.append(_Node(start, end, (work.track, work.lane), work.label, kind, facts, other))
    return [sorted(nodes, key=lambda node: node.start) for nodes in found]


def _linked(nodes: Sequence[_Node]) -> Iterator[tuple[bytes, tuple[str, Any]]]:
    """Yield what the devices of a rank share of each node, and the attribute of each alone.

    A node depends on the last that had ended on each lane: on reductions only where it begins with
    their end or updates. Where it begins later than all of these, a wait of the host is between.
    """
    linked: list[_Node] = []
    lanes: dict[tuple[int, int], list[int]] = {}
    seen: dict[Any, int] = {}
    for node in nodes:
        deps, takes_all = [], node.lane[0] in (columns.DP, columns.OPTIMIZER)
        for lane, numbers in lanes.items():
            for one in numbers[:-9:-1]:
                aside = lane[0] == columns.DP and "reduce" in linked[one].name and not takes_all
                if (node.start if aside else 0) <= linked[one].end <= node.start:
                    deps += [one] if seen.get((node.lane, lane)) != one else []
                    seen[node.lane, lane] = one
                    break
        ready = max((linked[one].end for one in deps), default=0)
        wait = _Node(ready, node.start, (columns.WAIT, -1), "wait", _COMPUTE, {})
        for step in (wait, node) if ready < node.start else (node,):
            own = [b"", b""]
            for one in deps:
                own[linked[one].lane != step.lane] += _varint(one)
            fields = {1: len(linked), 2: step.name, 3: step.kind, 4: own[0], 5: own[1]}
            fields |= {6: step.start, 7: step.end - step.start}
            of_host = step.lane[0] == columns.WAIT
            yield _message(fields, {"is_cpu_op": of_host, **step.facts}), step.other
            deps = [len(linked)]
            linked.append(step)
        lanes.setdefault(node.lane, []).append(len(linked) - 1)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _message(fields: dict[int, Any], facts: dict[str, Any]) -> bytes:
    """Return fields by number, whole numbers or texts and messages, and attributes of a node."""
    kinds, parts = {bool: 27, int: 9, str: 29}, []
    named = (_message({1: name, kinds[type(of)]: of}, {}) for name, of in facts.items())
    for number, value in (*fields.items(), *((10, each) for each in named)):
        parts.append(_varint(number << 3 | 2 * (not isinstance(value, int))))
        text = value.encode() if isinstance(value, str) else value
        parts += [_varint(value)] if isinstance(value, int) else [_varint(len(text)), text]
    return b"".join(parts)
