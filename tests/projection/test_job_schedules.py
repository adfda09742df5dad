"""What must hold for every legal job under every schedule."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projection.jobs import jobs
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.projection.api import project_jobs, project_performance
from projector.projection.performance import compare_job_schedules, under_schedule
from projector.schedule.order import check_order
from projector.schedule.registry import SCHEDULES
from reference.order_memory import check_memory
from thoroughness import examples

ROOM_GIB = {"tight": 24.0, "some": 80.0, "ample": 4096.0}


@st.composite
def scheduled(draw):
    """Draw a job under a schedule that can run it."""
    job = draw(jobs())
    microbatches = draw(st.sampled_from([1, 3, 4, 8, 16]))
    room = ROOM_GIB[draw(st.sampled_from(sorted(ROOM_GIB)))]
    size = job.training.global_batch_size * microbatches
    job = load_job(job, {"training.global_batch_size": size, "cluster.device.hbm_gib": room})
    for name in draw(st.permutations(list(SCHEDULES))):
        try:
            own = under_schedule(job, name)
            project_performance(own)
        except ProjectorError:
            continue
        return own
    raise AssertionError(job)


@settings(max_examples=examples(60))
@given(scheduled())
def test_terms_memory_and_orders_under_any_schedule(job):
    step = project_performance(job)
    assert min(step.breakdown.values()) >= 0.0
    assert sum(step.breakdown.values()) == pytest.approx(step.iteration_time_s, rel=1e-9)
    json.dumps(step.to_dict(), allow_nan=False)
    for entry in step.communication.values():
        # A wait for others moves nothing itself.
        assert (entry.bytes > 0.0) == (entry.algorithm != "wait")
        assert entry.time_s > 0.0
        assert 0.0 <= entry.exposed_s <= step.iteration_time_s
    run = step.pipeline
    check_order(run.order)
    static, order = run.static_bytes, run.order
    if SCHEDULES[step.schedule].planned:
        kept = np.zeros(order.num_stages)
        kept[order.stage_of % order.num_stages] = run.activation_bytes
        # Planned as if one microbatch fitted, where it does not.
        least = run.activation_bytes.sum(axis=1)
        check_memory(order, kept, run.w_share, np.maximum(least, run.limit_bytes - static))
    assert run.fits == step.memory.fits


@settings(max_examples=examples(40))
@given(scheduled())
def test_ranks_hold_the_parameters_of_the_model(job):
    step = project_performance(job)
    copies = step.pipeline.order.directions
    tied = job.model.tied_embeddings
    plain = project_performance(under_schedule(job, "1f1b"))
    held, alone = (sum(stage.parameters for stage in each.memory.stages) for each in (step, plain))
    # Each rank's are rounded.
    assert held == pytest.approx(copies * alone, abs=copies * 2 * job.parallelism.pp) or tied


@settings(max_examples=examples(15))
@given(st.lists(scheduled(), min_size=3, max_size=6), st.integers(0, 99))
def test_jobs_of_any_schedules_together_are_what_they_are_alone(batch, seed):
    shuffled = random.Random(seed).sample([*batch, *batch], 2 * len(batch))
    for step, job in zip(project_jobs(shuffled), shuffled, strict=True):
        alone = project_performance(job)
        assert step.to_dict() == alone.to_dict()
        assert step.memory.to_dict() == alone.memory.to_dict()
        ends, ends_alone = step.pipeline.timeline.end_ps, alone.pipeline.timeline.end_ps
        assert ends.tolist() == ends_alone.tolist()


@settings(max_examples=examples(10))
@given(scheduled())
def test_both_comparisons_find_the_same(job):
    best, found = project_performance(job, schedule="all"), compare_job_schedules(job)
    assert found.best.schedule == best.schedule
    assert found.best.iteration_s == best.iteration_time_s
    assert found.fits == best.memory.fits
    names = [each.schedule for each in (best, *best.alternatives)]
    assert {*names, *(name for name, _ in best.left_out)} == SCHEDULES.keys()


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zbv-formatted", "dualpipe"])
def test_nothing_is_sent_where_a_rank_holds_both_stages(name):
    job = load_job(
        {
            "model": "llama3.2_1b",
            "parallelism": {"pp": 4, "overlap_p2p_comm": True},
            "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 1024},
            "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 4},
        }
    )
    step = project_performance(under_schedule(job, name))
    message = 2.0 * 1024 * job.model.hidden_size
    # Messages of one microbatch that leave each rank: forward and backward, of every chunk.
    leaving = {
        "1f1b": [1, 2, 2, 1],
        # From the last rank a forward goes on to the first, and back a gradient.
        "interleaved": [3, 4, 4, 3],
        "zbv-formatted": [2, 4, 4, 2],
        # Of each microbatch of two, one from either end.
        "dualpipe": [2, 4, 4, 2],
    }[name]
    sent = step.communication["pp:send_recv"].bytes / message / step.pipeline.order.microbatches
    assert sent in leaving
    run = step.pipeline
    latency = run.p2p_ps[:, run.order.stage_of]  # [2, pp, chunks]
    assert (latency > 0).sum(axis=(0, 2)).tolist() == leaving


@pytest.mark.parametrize("nodes", [8, 16])
def test_both_copies_of_dualpipe_sum_gradients_within_their_domain(nodes):
    """All ranks lie in one domain, so no gradient takes a slower link than those of 1F1B."""

    def bytes_per_s(schedule, **split):
        job = load_job(
            {
                "model": "deepseek_v3",
                "training": {
                    "micro_batch_size": 1,
                    "global_batch_size": 128 * nodes,
                    "seq_length": 4096,
                    "schedule": schedule,
                },
                "parallelism": {"pp": 8, "ep": nodes // 2, **split},
                "cluster": {"device": "gb200", "nodes": nodes, "gpus_per_node": 4},
            }
        )
        found = project_performance(job).to_dict()["communication"]
        sums = [each for name, each in found.items() if name.endswith("grad_reduce")]
        return sum(each["bytes"] for each in sums) / sum(each["time_ms"] for each in sums)

    assert bytes_per_s("dualpipe") > 0.9 * bytes_per_s("interleaved", vpp=2)
