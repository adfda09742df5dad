"""Properties of restored jobs: whatever a job is, it comes back as its record says."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from tests.measure.synthetic import synthetic_record
from tests.projection.jobs import jobs

from projector import load_job
from projector.config.job import Job
from projector.errors import ProjectorError
from projector.measure.record import Record
from projector.measure.reduction import Reduction, reduce_job
from projector.operations.cost import ANALYTIC, MEASURED, SCALED
from projector.operations.table import EP_COMM
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.measured import Hybrid
from projector.projection.performance import under_schedule
from projector.schedule.registry import SCHEDULES
from thoroughness import examples

EXACT = 1e-9
WHOLE = {"training.adapter": None}
"""Records are of jobs that train every weight; others are refused."""

RANDOM = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A smaller job says little more of what is wrong, and takes minutes to find.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


def reduced(job: Job, gpus: int) -> tuple[Reduction, Evaluation]:
    """Return a job's reduction and its direct projection; skip what cannot exist or be reduced."""
    try:
        return reduce_job(job, min(gpus, job.cluster.gpus_per_node)), evaluate([job])
    except ProjectorError:
        assume(False)
        raise


def check_restored(job: Job, record: Record, direct: Evaluation) -> None:
    """Check that the step and each of its terms are those of the direct projection."""
    hybrid = Hybrid(job, record).evaluate(job)
    step_s = direct.steps.iteration_s[0]
    assert hybrid.steps.iteration_s[0] == pytest.approx(step_s, rel=EXACT)
    np.testing.assert_allclose(
        hybrid.steps.breakdown_s, direct.steps.breakdown_s, rtol=EXACT, atol=EXACT * step_s
    )
    np.testing.assert_array_equal(hybrid.steps.peak_bytes, direct.steps.peak_bytes)


@RANDOM
@given(
    job=jobs(**WHOLE),
    gpus=st.sampled_from([1, 2, 4, 8]),
    operations=st.booleans(),
    layers=st.booleans(),
    gradients_apart=st.booleans(),
)
def test_a_device_like_the_model_restores_any_job_to_its_direct_projection(
    job: Job, gpus: int, operations: bool, layers: bool, gradients_apart: bool
) -> None:
    reduction, direct = reduced(job, gpus)
    # Without rows of its own a layer divides as the model divides it, so nothing is lost.
    record = synthetic_record(
        reduction, operations=operations, layers=layers, gradients_apart=gradients_apart
    )
    check_restored(job, record, direct)


@RANDOM
@given(job=jobs(**WHOLE), gpus=st.sampled_from([1, 2, 4, 8]), slow=st.sampled_from([0.5, 1.5, 3.0]))
def test_a_slower_device_makes_what_was_measured_as_much_slower(
    job: Job, gpus: int, slow: float
) -> None:
    reduction, direct = reduced(job, gpus)
    hybrid = Hybrid(job, synthetic_record(reduction, slow)).evaluate(job)
    measured = hybrid.rows.measured
    assert measured is not None
    table, modelled_s = hybrid.table, direct.rows.time_s
    np.testing.assert_array_equal(
        measured.time_s[measured.origin == ANALYTIC], modelled_s[measured.origin == ANALYTIC]
    )
    # An exchange keeps the modelled difference to the measured one; all else is in proportion.
    exchanged = (measured.origin == SCALED) & (table.category == EP_COMM)
    as_slow = (measured.origin != ANALYTIC) & ~exchanged
    np.testing.assert_allclose(
        measured.time_s[as_slow], slow * modelled_s[as_slow], rtol=EXACT, atol=0.0
    )
    assert np.all(measured.time_s >= 0.0)


@settings(RANDOM, max_examples=examples(10))
@given(
    job=jobs(**WHOLE, **{"training.elementwise": "eager"}), slow=st.sampled_from([0.5, 1.5, 3.0])
)
def test_a_layer_that_was_measured_whole_is_as_much_slower(job: Job, slow: float) -> None:
    reduction, direct = reduced(job, 8)
    training = job.training
    # A graph launches other kernels than the framework, and what is offloaded takes no compute.
    assume(not training.cuda_graphs and not training.torch_compile)
    assume(training.activation_offload_fraction == 0.0)
    hybrid = Hybrid(job, synthetic_record(reduction, slow)).evaluate(job)
    measured = hybrid.rows.measured
    assert measured is not None
    nothing = hybrid.costs.launches == 0.0
    whole = ((measured.layer_origin == MEASURED) | nothing).all(axis=1)
    whole &= hybrid.workloads.columns.recompute == 0
    runs = whole[hybrid.workloads.run_workload]
    for name in ("forward_s", "backward_s"):
        before, after = (getattr(each.inputs.costs, name)[runs] for each in (direct, hybrid))
        np.testing.assert_allclose(after, slow * before, rtol=EXACT)


COMMON = {
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 4},
}

JOBS = {
    "uneven stages": {
        "model": "llama3.1_8b",
        "parallelism": {"pp": 4, "decoder_first_pipeline_num_layers": 5},
    },
    "a layout": {
        "model": "mixtral_8x7b",
        "parallelism": {
            "pp": 2, "vpp": 2, "ep": 4,
            "pipeline_model_parallel_layout": "Et*7|t*9|t*10|t*6L",
        },
    },
    "chunks": {"model": "llama3.1_8b", "parallelism": {"pp": 4, "vpp": 2}},
    "experts over two nodes": {"model": "mixtral_8x7b", "parallelism": {"pp": 2, "ep": 8}},
    "dense and MoE layers": {
        "model": "deepseek_v2_lite",
        "parallelism": {"pp": 2, "ep": 8},
        "training.recompute": {"granularity": "full", "method": "block", "num_layers": 2},
    },
    "multi-token prediction in FP8": {
        "model": "deepseek_v3",
        "parallelism": {"pp": 4, "ep": 8},
        "model.mtp_num_layers": 1,
        "training.precision": "fp8",
        "training.fp8_recipe": "blockwise",
        "training.first_last_layers_bf16": 1,
        "training.recompute": "selective",
    },
    "hidden exchanges": {
        "model": "mixtral_8x7b",
        "parallelism": {"pp": 2, "ep": 8, "overlap_moe_expert_parallel_comm": True},
    },
    "hidden tensor collectives": {
        "model": "llama3.1_8b",
        "parallelism": {"tp": 4, "pp": 2, "tp_comm_overlap": True},
    },
    "windows": {"model": "gpt_oss_20b", "parallelism": {"pp": 2, "ep": 4}},
    "context parallelism": {"model": "llama3.1_8b", "parallelism": {"pp": 4, "cp": 2}},
}  # fmt: skip


def job_named(name: str) -> Job:
    fixed = dict(JOBS[name])
    sections = {key: fixed.pop(key) for key in ("model", "parallelism")}
    return load_job({**COMMON, **sections}, fixed)


@pytest.mark.rotated
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("gpus", [1, 4])
def test_a_device_like_the_model_restores(name: str, gpus: int) -> None:
    job = job_named(name)
    gpus = max(gpus, job.parallelism.cp)
    check_restored(job, synthetic_record(reduce_job(job, gpus)), evaluate([job]))


@pytest.mark.rotated
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_replayed_from_restored_layers(schedule: str) -> None:
    job = job_named("multi-token prediction in FP8")
    assert job.model.mtp_num_layers
    if schedule.startswith("seaailab"):
        job = load_job(job, {"model": "llama3.2_1b", "training.global_batch_size": 32})
        job = load_job(job, {"parallelism.ep": 1, "training.first_last_layers_bf16": 0})
    try:
        job = under_schedule(job, schedule)
        direct = evaluate([job])
    except ProjectorError as error:
        pytest.skip(f"cannot run: {error.message}")
    # What is measured is a job of one stage, whatever its schedule.
    check_restored(job, synthetic_record(reduce_job(job, 1)), direct)


def test_without_tensor_parallelism_both_rules_are_one() -> None:
    job = job_named("experts over two nodes")
    record = synthetic_record(reduce_job(job, 1), 1.7)
    ratio, linear = (Hybrid(job, record, rule).evaluate(job) for rule in ("ratio", "linear"))
    np.testing.assert_array_equal(ratio.steps.breakdown_s, linear.steps.breakdown_s)


@pytest.mark.parametrize(("tp", "least", "most"), [(2, 0.002, 0.05), (4, 0.005, 0.10)])
def test_the_linear_rule_is_off_by_what_is_not_divided(tp: int, least: float, most: float) -> None:
    fixed = {"parallelism.tp": tp, "training.elementwise": "eager"}
    job = load_job(job_named("uneven stages"), fixed)
    record = synthetic_record(reduce_job(job, 1))
    direct = evaluate([job])
    check_restored(job, record, direct)
    linear = Hybrid(job, record, "linear").evaluate(job)
    # Shapes of fewer columns are less efficient, which the rule does not know.
    error = 1.0 - linear.steps.iteration_s[0] / direct.steps.iteration_s[0]
    assert least < error < most
