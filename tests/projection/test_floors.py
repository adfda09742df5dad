"""Bounds that no planned order undercuts."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.kernels.results import USABLE_GIB
from projector.lower.batch import JobBatch
from projector.projection.evaluate import evaluate, find_legal, floors_of_legal
from projector.projection.results import Results
from projector.schedule.registry import SCHEDULES
from projector.units import GIB
from thoroughness import examples

PLANNED = [name for name, entry in SCHEDULES.items() if entry.planned and not entry.on_request]


def job_of(schedule, overrides):
    """Return a small job with some planned schedule."""
    base = {
        "model": "llama3.1_8b",
        "cluster": {"device": "h100", "nodes": 1},
        "training": {
            "micro_batch_size": 1,
            "global_batch_size": 64,
            "seq_length": 2048,
            "schedule": schedule,
        },
        "parallelism": {"vpp": 1 if schedule.startswith("seaailab") else 2},
    }
    return load_job(base, overrides)


def check_floors(jobs):
    """Compare bounds with what is found when all orders are planned."""
    legal = find_legal(JobBatch.of(jobs))
    assert (legal.refused < 0).all()
    floors = floors_of_legal(legal)
    results = Results(evaluate(jobs))
    assert (floors.iteration_s <= results.steps.iteration_s).all()
    assert (floors.peak_bytes <= results.steps.peak_bytes).all()
    # Not even where those are left out that hold more.
    lean = floors_of_legal(legal, None, results.steps.peak_bytes)
    assert (lean.iteration_s <= results.steps.iteration_s).all()
    assert (floors.usable_bytes >= results.number(USABLE_GIB) * GIB).all()
    return floors.iteration_s / results.steps.iteration_s


OVERRIDES = st.fixed_dictionaries(
    {
        "parallelism.pp": st.sampled_from([1, 2, 4, 8, 16]),
        "training.micro_batch_size": st.sampled_from([1, 2, 4]),
        "training.global_batch_size": st.sampled_from([8, 16, 32, 64]),
        "training.recompute": st.sampled_from(["none", "selective", "full"]),
        "parallelism.zero_stage": st.sampled_from([1, 2, 3]),
    },
    optional={
        "cluster.nodes": st.sampled_from([2, 4]),
        "cluster.device.hbm_gib": st.sampled_from([12, 20, 40, 200]),
        "training.zero_bubble_max_pending_backward": st.integers(1, 6),
        "training.optimizer_post_validation": st.just(value=True),
        "parallelism.overlap_p2p_comm": st.booleans(),
        "parallelism.decoder_last_pipeline_num_layers": st.sampled_from([1, 2, 5]),
    },
)


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(PLANNED), OVERRIDES)
def test_no_planned_order_undercuts_them(schedule, overrides):
    try:
        job = job_of(schedule, overrides)
        evaluate([job])
    except ProjectorError:
        reject()
    check_floors([job])


@pytest.mark.parametrize("schedule", PLANNED)
def test_they_do_not_depend_on_the_jobs_beside(schedule):
    jobs = [
        job_of(schedule, {"parallelism.pp": pp, "training.micro_batch_size": micro_batch})
        for pp in (2, 4, 8)
        for micro_batch in (1, 4)
    ]
    share = check_floors(jobs)
    assert share.min() > 0.7
    alone = [check_floors([job]) for job in jobs]
    assert np.array_equal(np.concatenate(alone), share)


def test_they_are_exact_for_one_rank():
    """A single rank is never idle."""
    share = check_floors([job_of("seaailab", {"parallelism.pp": 1, "cluster.device.hbm_gib": 900})])
    assert share == pytest.approx(1.0, rel=1e-8)
