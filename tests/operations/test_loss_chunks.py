"""A loss that is made chunk by chunk."""

import pytest

from projector.config.load import load_job
from projector.projection.api import project_jobs

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 2, "global_batch_size": 64, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 1},
}
TOKENS = 2 * 8192
VOCABULARY = 128256
LAYOUTS = [
    {},
    {"parallelism.tp": 2},
    {"parallelism.cp": 2},
    {"parallelism.pp": 2},
    {"training.adapter": "lora"},
    {"training.recompute": "full"},
]


def project(chunks, **changes):
    jobs = [load_job(JOB, {**changes, "training.loss_chunk_tokens": chunk}) for chunk in chunks]
    return project_jobs(jobs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fused", [True, False])
def test_smaller_chunks_need_no_more_memory_and_no_less_time(layout, fused):
    chunks = [None, 1 << 40, TOKENS, 8192, 4096, 1024, 256, 1]
    steps = project(chunks, **layout, **{"training.cross_entropy_fusion": fused})
    peaks = [step.memory.peak_bytes for step in steps]
    times = [step.iteration_time_s for step in steps]
    assert peaks == sorted(peaks, reverse=True)
    assert times == sorted(times)
    assert peaks[0] == peaks[2]
    assert times[0] == times[2]
    for step in steps:
        assert step.breakdown["compute_gemm"] == steps[0].breakdown["compute_gemm"]


def test_a_chunk_holds_its_logits_alone():
    """The fused loss keeps logits of 2 bytes, and its gradient needs 2 more at a time."""
    whole, half, quarter = (step.memory.peak_bytes for step in project([None, 8192, 4096]))
    of_chunk = 4 * VOCABULARY
    assert whole - half == pytest.approx(of_chunk * 8192, rel=1e-6)
    assert half - quarter == pytest.approx(of_chunk * 4096, rel=1e-6)


def test_context_parallel_ranks_have_chunks_of_their_own_tokens():
    """A rank with half of each sequence has 8,192 tokens, which are one chunk."""
    steps = project([None, 8192, 8191], **{"parallelism.cp": 2})
    whole, same, less = (step.memory.peak_bytes for step in steps)
    assert whole == same > less


def test_every_stage_but_the_last_is_as_before():
    """Stages, and layers of multi-token prediction, that have no loss keep what they hold."""
    for layout in ({"parallelism.pp": 2}, {"parallelism.pp": 2, "model.mtp_num_layers": 1}):
        none, chunked = (step.memory.to_dict()["stages"] for step in project([None, 256], **layout))
        assert none[0] == chunked[0]
        assert none[1] != chunked[1]
