"""Traces of runs that do exactly what the models expect of a job, or something else on purpose."""

from collections.abc import Callable, Iterator
from typing import Any

from projector.trace.activity import (
    ATTENTION,
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    GEMM,
    OPTIMIZER,
    VECTOR,
    Activities,
)
from projector.trace.analysis import TraceAnalysis
from projector.trace.events import Trace
from projector.validate.traces.expected import Expected, ExpectedRow
from synthetic import Kernel, activities

BF16 = ("c10::BFloat16", "c10::BFloat16")
TYPES = {"gemm": GEMM, "attention": ATTENTION, "memory": VECTOR, "collective": COLLECTIVE}

SMALL_LLAMA = {
    "model": {
        "name": "small Llama",
        "num_layers": 4,
        "hidden_size": 512,
        "ffn_hidden_size": 1536,
        "num_attention_heads": 8,
        "num_query_groups": 2,
        "vocab_size": 4096,
        "max_position_embeddings": 2048,
    },
    "parallelism": {},
    "training": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 1},
}

Slow = Callable[[ExpectedRow], float]
Products = Callable[[ExpectedRow], list[tuple[int, int, int]]]


COPIES = {"fsdp.copy_in": "fsdp::split_with_sizes_copy", "fsdp.copy_out": "fsdp::chunk_cat"}
"""Labels of the copies of FSDP, and what PyTorch calls them."""


def whole(row: ExpectedRow) -> list[tuple[int, int, int]]:
    """Return the one product that a linear layer is."""
    return [(row.key.m, row.key.n, row.key.k)]


def apart(row: ExpectedRow, job: Any) -> list[tuple[int, int, int]]:
    """Return the products of Q, K and V, and of gate and up, that run one after the other."""
    model = job.model
    width = model.hidden_size // model.num_attention_heads
    heads, keys = model.num_attention_heads, model.num_query_groups
    widths = {
        "attention.qkv": [heads * width, keys * width, keys * width],
        "mlp.fc1": [model.ffn_hidden_size] * 2,
    }.get(row.name.label)
    key = row.key
    if widths is None:
        return whole(row)
    if row.name.phase == "weight":
        return [(each, key.n, key.k) for each in widths]
    if row.name.phase == "backward":
        return [(key.m, key.n, each) for each in widths]
    return [(key.m, each, key.k) for each in widths]


def run_of(
    expected: Expected,
    *,
    slow: Slow = lambda row: 1.0,
    products: Products = whole,
    iterations: int = 1,
    named: bool = False,
    microbatches: int | None = None,
    extra: tuple[Kernel, ...] = (),
) -> TraceAnalysis:
    """Return the trace of a run whose operations take what the models say, times ``slow``."""
    kernels: list[Kernel] = list(extra)
    now = 0
    for iteration in range(iterations):
        for row, phase in _order(expected, microbatches):
            for part, name, detail in _kernels(row, products, named=named):
                length = max(round(row.time_s * 1e9 * part * slow(row)), 1)
                kernels.append(
                    Kernel(
                        name="nccl" if row.kind == "collective" else "kernel",
                        start=now, end=now + length, phase=phase, iteration=iteration,
                        type=TYPES.get(row.kind, VECTOR), detail=detail, operation=name,
                        recompute=row.name.phase == "recompute",
                        bytes=int(row.bytes) if row.kind == "collective" else -1,
                    )
                )  # fmt: skip
                now += length
    return of_activities(activities(*kernels))


def of_activities(table: Activities) -> TraceAnalysis:
    """Return a trace whose activities are known."""
    analysis = TraceAnalysis(Trace(ranks=()))
    analysis.__dict__["everything"] = table
    return analysis


def _order(expected: Expected, microbatches: int | None) -> Iterator[tuple[ExpectedRow, int]]:
    """Yield the rows of a step in the order in which a device runs them."""
    layers = next(
        int(row.runs) for row in expected.rows if row.name == ("attention.core", "forward")
    )
    num_layers = expected.job.model.num_layers
    own = layers // num_layers
    by_label: dict[str, list[ExpectedRow]] = {}
    for row in expected.rows:
        by_label.setdefault(row.name.label, []).append(row)
    before, after, layer = expected.before, expected.after, expected.layers[0]
    order = [*before, *(label for _ in range(num_layers) for label in layer), *after]
    for _ in range(own if microbatches is None else microbatches):
        for label in order:
            yield from ((r, FORWARD) for r in by_label.get(label, ()) if r.name.phase == "forward")
        for part in (after, *[layer] * num_layers, before):
            again = [row for label in part for row in by_label.get(label, ())]
            yield from ((row, BACKWARD) for row in again if row.name.phase == "recompute")
            for label in reversed(part):
                for row in reversed(by_label.get(label, ())):
                    if row.name.phase in ("backward", "weight"):
                        yield row, BACKWARD
    for label, rows in by_label.items():
        if label in COPIES:
            phases = {"forward": FORWARD, "backward": BACKWARD}
            for row in rows:
                yield from [(row, phases[row.name.phase])] * int(row.runs)
        elif label not in order:
            yield from ((row, OPTIMIZER) for row in rows)


def _kernels(
    row: ExpectedRow, products: Products, *, named: bool
) -> Iterator[tuple[float, str, dict[str, Any] | None]]:
    plain = COPIES.get(row.name.label, f"aten::{row.name.label.rpartition('.')[2]}")
    name = row.name.label if named else plain
    if row.kind == "gemm":
        shapes = products(row)
        total = sum(m * n * k for m, n, k in shapes)
        for m, n, k in shapes:
            detail = {"operator": "aten::mm", "dims": [[m, k], [k, n]], "types": BF16}
            if row.key.expert:
                groups, is_weight = row.key.batch, row.name.phase == "weight"
                dims = [[m, k * groups], [k * groups, n]] if is_weight else (
                    [[m * groups, k], [groups, k, n]]
                )  # fmt: skip
                detail = {"operator": "aten::_grouped_mm", "dims": dims, "types": BF16}
            yield m * n * k / total, name if named else "aten::linear", detail
        return
    if row.kind == "attention":
        key = row.key
        query = [key.batch, key.heads, key.m, key.k]
        keys = [key.batch, key.key_heads, key.n, key.k]
        values = [key.batch, key.key_heads, key.n, key.d_v]
        again = "_backward" if row.name.phase == "backward" else ""
        operator = f"aten::_scaled_dot_product_flash_attention{again}"
        dims = [query] * bool(again) + [query, keys, values]
        yield 1.0, name, {"operator": operator, "dims": dims, "types": BF16}
        return
    if row.kind == "collective" and row.key is not None:
        ranks = list(range(row.key.ranks))
        yield 1.0, "", {"collective": row.key.operation, "group_ranks": ranks}
        return
    if row.kind == "collective":
        kind = {"dp.param_all_gather": "_allgather_base", "dp.grad_reduce": "_reduce_scatter_base",
                "dp.tied_embeddings": "allreduce"}  # fmt: skip
        detail = {"collective": kind.get(row.name.label, "send"),
                  "group_description": row.name.label.partition(".")[0]}  # fmt: skip
        # The first and the last stage sum the gradient of what they share.
        ranks = {"group_ranks": [0, 1]} if row.name.label == "dp.tied_embeddings" else {}
        yield 1.0, "", detail | ranks
        return
    yield 1.0, name, None
