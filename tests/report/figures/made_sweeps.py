"""Sweeps made by hand: rows with a few columns, without projecting anything."""

import pyarrow as pa

from projector.projection.results import BOOL, FLOAT, INT, TEXT
from projector.sweeps.journal import Totals
from projector.sweeps.result import SweepResult, standing
from projector.sweeps.store import Part, Plan, encode
from projector.sweeps.table import column_kinds

BASE = {"model": {"name": "Small"}, "cluster": {"device": {"name": "Chip"}}}
AXES = {"parallelism.tp": INT, "parallelism.pp": INT, "training.recompute": TEXT,
        "cluster.nodes": INT}  # fmt: skip
BLANK = {INT: 0, FLOAT: 0.0, TEXT: "", BOOL: False}


def verdict(peak, *, fits):
    """Return what a sweep says of 70 GiB; a peak above them may yet be within its error."""
    if not fits:
        return "does_not_fit" if 0.9 * peak > 70.0 or peak <= 70.0 else "at_risk"
    return "fits" if 1.1 * peak <= 70.0 else "at_risk"


def row(tp=1, pp=1, recompute="none", nodes=1, *, rate=100.0, peak=10.0, fits=True, **other):
    return {
        "parallelism.tp": tp, "parallelism.pp": pp, "training.recompute": recompute,
        "cluster.nodes": nodes, "gpus": 8 * nodes, "tokens_per_s_per_gpu": rate,
        "peak_gib": peak, "usable_gib": 70.0, "fits": fits, "mfu": rate / 1000.0,
        "peak_gib_low": 0.9 * peak, "peak_gib_high": 1.1 * peak,
        "verdict": verdict(peak, fits=fits),
        "iteration_time_ms": 1e5 / rate, **other,
    }  # fmt: skip


def result(rows=(), axes=AXES, chunk=7, listed=(), **counts):
    """Return a sweep with these rows, a few in a chunk."""
    kinds = column_kinds(axes)
    types = {BOOL: pa.bool_(), INT: pa.int64(), FLOAT: pa.float64(), TEXT: pa.string()}
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    whole = [{**{name: BLANK[kind] for name, kind in kinds.items()}, **each} for each in rows]
    tables = [
        pa.Table.from_pylist(whole[begin : begin + chunk], schema)
        for begin in range(0, len(whole), chunk)
    ]
    files = [bytes(encode(each, schema)) for each in tables]
    parts = [Part(number, content, Totals()) for number, content in enumerate(files)]
    totals = Totals(
        counts.get("points", len(rows)), len(rows), sum(each["fits"] for each in rows),
        counts.get("infeasible", {}), sum(standing(each) == "at_risk" for each in rows),
    )  # fmt: skip
    space = {"base": BASE, **({"axes": listed} if listed else {})}
    plan = Plan(space, "0" * 64, len(rows), kinds, chunk)
    return SweepResult(plan, totals, 0.0, 0, parts=parts)
