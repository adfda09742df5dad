"""Inputs of runs, each column with a plain value that a test replaces."""

from dataclasses import fields

import numpy as np

from projector.runs.time import RunInputs, WarmUp

NAN = float("nan")
WARM_UP = {
    "start_batch": NAN,
    "increment": NAN,
    "samples": NAN,
    "batch": 1024.0,
    "round_samples": 64.0,
    "microbatch_s": 0.5,
    "seq": 4096.0,
}
PLAIN = {
    "step_s": 10.0,
    "tokens": 1e12,
    "tokens_per_step": 1024.0 * 4096.0,
    "gpus": 1024.0,
    "nodes": 128.0,
    "gpu_bytes_per_s": 25e9,
    "evaluation_steps": 0.0,
    "slowdown": 0.0,
    "saves": 1,
    "asynchronous": 0,
    "checkpoint_bytes": 1e12,
    "interval_s": NAN,
    "write_bytes_per_s": 1e11,
    "read_bytes_per_s": 2e11,
    "checkpoint_overhead_s": 5.0,
    "fails": 1,
    "gpu_mtbf_s": 2e8,
    "node_mtbf_s": 6e7,
    "detection_s": 180.0,
    "restart_s": 600.0,
    "spare_nodes": NAN,
    "repair_s": 86400.0,
    "repaired_share": 0.5,
}


def warm_up(**given):
    values = np.broadcast_arrays(*({**WARM_UP, **given}[f.name] for f in fields(WarmUp)))
    return WarmUp(*(np.atleast_1d(value).astype(float) for value in values))


def run_inputs(warm_up_fields=(), **given):
    """Return inputs whose columns are as long as the longest given."""
    values = {**PLAIN, **given}
    columns = dict(zip(values, np.broadcast_arrays(*values.values()), strict=True))
    of_ints = {"saves", "asynchronous", "fails"}
    columns = {
        name: np.atleast_1d(column).astype(np.int64 if name in of_ints else np.float64)
        for name, column in columns.items()
    }
    rows = len(columns["step_s"])
    ramp = warm_up(**{"batch": np.full(rows, 1024.0), **dict(warm_up_fields)})
    return RunInputs(warm_up=ramp, **columns)
