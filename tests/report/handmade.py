"""A small timeline made by hand: two layers of forward and backward with gathers beside them."""

import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np

from projector.operations.table import OperationTable
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline import columns as c

US = 10**6


def _table():
    plain = {}
    for name, field in OperationTable.__dataclass_fields__.items():
        if name != "labels":
            plain[name] = np.full(0, field.metadata["default"])
    return OperationTable(**plain, labels=())


def activity(label, term, start, duration, **more):
    """Return a row: times in picoseconds; launched 5 us before it starts unless stated."""
    row = dict.fromkeys(c.Timeline.__dataclass_fields__, 0)
    row |= {
        "label": label, "term": BREAKDOWN.index(term), "start_ps": start, "duration_ps": duration,
        "exposed_ps": duration, "layer": -1, "stage": 0, "chunk": 0, "microbatch": 0,
        "alone_ps": duration, "prepare_ps": start - 6 * US, "launch_ps": start - 5 * US,
        "launch_end_ps": start - 3 * US, "launches": 1.0, "recompute": False, "row": -1,
    }  # fmt: skip
    return row | more


def wait(label, term, start, duration, **more):
    """Return a row in which nothing runs."""
    nothing = dict.fromkeys(("prepare_ps", "launch_ps", "launch_end_ps"), -1)
    return activity(label, term, start, duration, track=c.WAIT, **nothing, **more)


_TYPES = {"launches": np.float64, "flop": np.float64, "bytes": np.float64, "recompute": np.bool_}
_COLUMNS = [
    "rank", "track", "lane", "label", "term", "phase", "layer", "stage", "chunk", "microbatch",
    "start_ps", "duration_ps", "exposed_ps", "slowdown_ps", "slowed_ps", "alone_ps", "prepare_ps",
    "launch_ps", "launch_end_ps", "launches", "flop", "bytes", "recompute", "row",
]  # fmt: skip


def timeline_of(rows, ranges=(), memory=None, pp=1):
    """Return a timeline of rows; its terms are what the rows of rank 0 add up to."""
    labels = sorted({row["label"] for row in (*rows, *ranges)})

    def column(name, of, kind=np.int64):
        values = [labels.index(row[name]) if name == "label" else row[name] for row in of]
        return np.array(values, _TYPES.get(name, kind))

    names = list(c.Ranges.__dataclass_fields__)
    found = c.Timeline(
        **{name: column(name, rows) for name in _COLUMNS},
        labels=tuple(labels),
        table=_table(),
        ranges=c.Ranges(**{name: column(name, ranges) for name in names}),
        memory=memory or (c.Held(np.zeros(1, np.int64), 0.0, np.zeros(1), np.zeros(1)),) * pp,
        ending_rank=0,
        terms_ps=np.zeros(len(BREAKDOWN), np.int64),
        begin_ps=np.zeros(pp, np.int64),
        name="model",
    )
    return replace(found, terms_ps=found.sums_ps())


def small_timeline():
    """Return two layers: a gather beside the first, a backward, an update and waits."""
    forward = {"phase": c.FORWARD}
    backward = {"phase": c.BACKWARD}
    at, rows = 10 * US + 1, []
    rows.append(wait("launch gap", "launch", 0, at))
    gather = {"track": c.DP, "bytes": 8e6, "phase": c.FORWARD}
    for layer in (0, 1):
        rows.append(
            activity("param_all_gather", "dp_comm", at, 15 * US, layer=layer, **gather)
            | {"exposed_ps": 0, "prepare_ps": at - 10 * US, "launch_ps": at - 9 * US}
            | {"launch_end_ps": at - 7 * US}
        )
        for label, term, length in (
            ("attention.qkv", "compute_gemm", 20 * US + 7),
            ("attention.core", "compute_attention", 11 * US + 123_456),
        ):
            rows.append(activity(label, term, at, length, layer=layer, flop=1e9, **forward))
            at += length
    for layer in (1, 0):
        for label, term, length in (
            ("attention.core", "compute_attention", 22 * US + 999_999),
            ("attention.qkv", "compute_gemm", 20 * US + 7),
        ):
            rows.append(activity(label, term, at, length, layer=layer, **backward))
            at += length
    rows.append(
        activity("grad_reduce", "dp_comm", at, 30 * US, layer=0, track=c.DP, bytes=8e6, **backward)
    )
    at += 30 * US
    none = {"layer": -1, "stage": -1, "chunk": -1, "microbatch": -1}
    rows.append(
        activity("adam", "optimizer", at, 9 * US, track=c.OPTIMIZER, phase=c.UPDATE, **none)
    )
    at += 9 * US
    rows.append(wait("the slowest device", "stragglers", at, 3 * US, **none))
    return timeline_of(sorted(rows, key=lambda row: (row["rank"], row["start_ps"])))


_SCRIPT = Path(__file__).resolve().parents[2] / "validation" / "timeline_findings.py"
_spec = spec_from_file_location("timeline_findings", _SCRIPT)
_findings = module_from_spec(_spec)
sys.modules["timeline_findings"] = _findings
_spec.loader.exec_module(_findings)
projected_terms = _findings.projected_terms
"""Times of each term, as the script that looks at exported timelines adds them up."""
