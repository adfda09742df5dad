"""Sequences that are packed into one, each of which attends to itself alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.operations.counts import count_model
from projector.projection.api import project_jobs, project_performance
from projector.sweeps.engine import sweep
from sweeps.grid import grid

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 1},
}
LAYOUTS = [
    {},
    {"parallelism.tp": 2},
    {"parallelism.cp": 2},
    {"parallelism.cp": 2, "parallelism.cp_comm_type": "a2a"},
    {"parallelism.pp": 2, "training.recompute": "full"},
    {"training.adapter": "lora"},
    {"model": "gemma3_1b"},
]
FIELD = "training.packed_tokens"


def load(packed, layout=()):
    return load_job(JOB, {**dict(layout), FIELD: packed})


def attention_s(step):
    return step.breakdown["compute_attention"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shorter_sequences_are_never_slower_and_attention_alone_changes(layout):
    lengths = [None, 8192, 4096, 1024, 128, 8, 1]
    steps = project_jobs([load(packed, layout) for packed in lengths])
    times = [attention_s(step) for step in steps]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.7 * times[0]
    for step in steps:
        assert step.breakdown["compute_gemm"] == steps[0].breakdown["compute_gemm"]
        assert step.memory.peak_bytes == steps[0].memory.peak_bytes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [8192, 8193, 1 << 28])
def test_one_that_fills_the_sequence_is_as_none(packed, layout):
    alone, none = (project_performance(load(each, layout)) for each in (packed, None))
    assert alone.iteration_time_s == none.iteration_time_s
    assert alone.mfu == none.mfu


@given(seq=st.integers(64, 1 << 17), share=st.floats(0.01, 1.0))
def test_flop_are_those_of_the_pairs_within_each_sequence(seq, share):
    packed = max(1, round(seq * share))
    base = load_job(JOB, {"training.seq_length": seq, FIELD: None})
    whole, short = (
        count_model(load_job(base, {FIELD: each})).flop_per_sequence for each in (None, packed)
    )
    # 4 FLOP a pair and element of each head forward, twice as many backward; 16 layers of 32 heads.
    of_pair = 3 * 4 * 16 * 32 * 64
    spared = of_pair * (seq * seq / 2 - seq * packed / 2)
    # The window that stands for the sequences has whole tokens.
    assert whole - short == pytest.approx(spared, abs=of_pair * seq)


def test_a_window_that_is_narrower_stays():
    """Layers with a window of 512 see no more of sequences of 4,096 than of whole ones."""
    layout = {"model": "gemma3_1b", "model.sliding_window_layers": 26}
    near, far = (project_performance(load(each, layout)) for each in (4096, None))
    assert near.iteration_time_s == far.iteration_time_s


def test_scores_that_are_written_are_those_of_whole_sequences():
    layout = {"training.flash_attention": False}
    packed, whole = (project_performance(load(each, layout)) for each in (512, None))
    assert packed.iteration_time_s == whole.iteration_time_s


def test_jobs_of_a_batch_and_rows_of_a_sweep_are_those_alone():
    lengths = [None, 100, 512, 2048, 4096]
    jobs = [load_job(JOB, {FIELD: each, "training.seq_length": s}) for each in lengths
            for s in (1024, 2048)]  # fmt: skip
    for step, job in zip(project_jobs(jobs), jobs, strict=True):
        alone = project_performance(job)
        assert (step.iteration_time_s, step.mfu) == (alone.iteration_time_s, alone.mfu)
    axes = {FIELD: [100, 512, 2048], "training.seq_length": [1024, 2048]}
    space = grid(axes)
    for row in sweep(space, workers=1).to_arrow().to_pylist():
        step = project_performance(load_job(space.base, {name: row[name] for name in axes}))
        assert math.isclose(row["iteration_time_ms"], step.iteration_time_s * 1e3, rel_tol=1e-12)
