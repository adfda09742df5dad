"""Rows of a space of deployments are what `project_serving` says of the same documents."""

import numpy as np
import pytest

import projector as pj
from projector.errors import ProjectorError
from projector.sweeps.rows import Projector, reason_of
from projector.sweeps.serving import PERCENTILE_COLUMNS, SLO
from projector.sweeps.table import axis_kinds, load_space

LOAD = {"batch": 16, "context": 1024, "output": 128, "usd_per_gpu_hour": 2.5}
BASE = {"model": "llama3_8b", "device": "h100", "tp": 2, "dtype": "bf16", "load": LOAD}
RATED = {**LOAD, "rate_per_s": 8.0, "requests": 100, "ttft_ms": 300, "tpot_ms": 30}
MOE = {"model": "mixtral_8x7b", "device": "mi300x", "load": LOAD}
DRAFTS = {"tokens": 3, "acceptance": 0.7, "draft_share": 0.1}

SPACES = {
    "devices, splits and types": (
        BASE,
        {
            "device": ["h100", "mi300x"],
            "tp": [1, 3, 8],
            "pp": [1, 2],
            "dtype": ["bf16", "fp8"],
            "batch": [1, 48, 100_000],
        },
    ),
    "lengths, limits and fields of a device": (
        BASE,
        {
            "load.context": [1, 3000],
            "load.output": [None, 1, 300],
            "load.chunk_tokens": [None, 512],
            "load.prompts": [None, 4, 32],
            "cluster.device.hbm_gib": [20.0, 80.0],
            "max_num_batched_tokens": [2048, 8192],
        },
    ),
    "experts on several nodes": (
        MOE,
        {"tp": [1, 2, 8], "attention_dp": [1, 8], "ep": [1, 8], "prefix_share": [0.0, 0.5]},
    ),
    "drafts, and devices that prefill": (
        BASE,
        {
            "speculative": [None, DRAFTS],
            "disaggregated": [None, {"prefill": {"tp": 1}}],
            "load.batch": [1, 64],
        },
    ),
    "open batches": (
        {**BASE, "load": {"context": 512, "output": 64}},
        {"dtype": ["bf16", "fp8"], "load.batch": [None, 8], "model": ["llama3_8b", "llama3.1_70b"]},
    ),
    "open splits": (
        {key: value for key, value in BASE.items() if key != "tp"},
        {"model": ["llama3_8b", "llama3.1_70b"], "load.batch": [None, 1, 900, 10**6], "pp": [1, 2]},
    ),
    "rates": (
        {**BASE, "load": RATED},
        {
            "device": ["h100", "mi300x"],
            "load.rate_per_s": [0.5, 200.0],
            "load.tpot_ms": [None, 1.0, 30.0],
            "scheduler.max_num_seqs": [8, 64],
        },
    ),
    "promises without a rate": (
        {**BASE, "load": {**LOAD, "ttft_ms": 100}},
        {"load.batch": [1, 64, 10**6], "load.tpot_ms": [None, 12.0], "load.context": [512, 8192]},
    ),
}


def alone(base, overrides):
    """Return the projection of one document, and whether it keeps what it promises."""
    promises = {f"load.{name}": base["load"].get(name) for name in ("ttft_ms", "tpot_ms")}
    promises |= {name: overrides[name] for name in promises if name in overrides}
    if "rate_per_s" in base["load"]:
        result = pj.project_serving(deployment=base, overrides=overrides)
        served, capacity = result.under_load, result.capacity
        return result, capacity.replicas is not None if capacity else not served.saturated
    # A load without a rate promises nothing; a space compares, as a search does.
    result = pj.project_serving(deployment=base, overrides={**overrides, **dict.fromkeys(promises)})
    reached = result.ttft_s, 1.0 / result.tokens_per_s_per_user
    limits = zip(promises.values(), reached, strict=True)
    return result, result.fits and all(limit is None or s <= limit / 1e3 for limit, s in limits)


def compare(row, result, met):
    for name in ("ttft_s", "tpot_s", "prompts_s", "tokens_per_s_per_user", "tokens_per_s_per_gpu"):
        assert row[name] == getattr(result, name), name
    for name in ("gpus", "max_batch", "fits", "verdict"):
        assert row[name] == getattr(result, name), name
    told, memory = result.to_dict(), result.to_dict()["memory"]
    assert {name: row[name] for name in told["parallelism"]} == told["parallelism"]
    assert row["load.batch"] == result.batch
    assert (row["peak_gib"], row["usable_gib"]) == (memory["peak_gib"], memory["usable_gib"])
    assert row.get("usd_per_million_tokens") == result.usd_per_million_tokens
    assert row.get(SLO, met) == met
    assert row["status"] == ("ok" if result.fits else "does_not_fit")
    served = result.under_load
    for name, which in PERCENTILE_COLUMNS.items() if "replicas" in row else ():
        assert row[name] == (served.percentile_s(*which) if served else None), name
    if result.capacity is not None:
        assert row["replicas"] == (result.capacity.replicas or 0)
        assert row["replica_rate_per_s"] == result.capacity.replica_rate_per_s


@pytest.mark.parametrize("name", SPACES)
def test_rows_equal_projections_bit_for_bit(name):
    base, axes = SPACES[name]
    space = load_space({"base": base, "axes": axes})
    batch = Projector(space, axis_kinds(space)).project(np.arange(space.size))
    rows, reasons = iter(batch.table.to_pylist()), {}
    for point in range(space.size):
        try:
            result, met = alone(base, space.overrides(point))
        except ProjectorError as error:
            reason = reason_of(error)
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        compare(next(rows), result, met)
    assert next(rows, None) is None
    assert batch.infeasible == reasons
    assert batch.rows > space.size // 4
