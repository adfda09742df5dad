"""Hybrid projections from records of a device that behaves like the model, or slower."""

import numpy as np
import pytest
from tests.measure.synthetic import project_measured, synthetic_record

from projector import load_job
from projector.config.job import Job
from projector.errors import ConfigError
from projector.measure.reduction import reduce_job
from projector.projection.api import project_performance
from projector.projection.measured import Hybrid
from projector.projection.terms import BREAKDOWN

EXACT = 1e-9


def job_of(model: str = "mixtral_8x7b", **fixed: object) -> Job:
    job = {
        "model": model,
        "parallelism": {"pp": 4, "ep": 4 if model.startswith("mixtral") else 1},
        "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 4},
    }
    return load_job(job, fixed)


@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize("operations", [True, False])
def test_a_device_that_behaves_like_the_model_is_restored_to_its_projection(
    layers: bool, operations: bool
) -> None:
    job = job_of()
    record = synthetic_record(reduce_job(job, 1), layers=layers, operations=operations)
    direct, hybrid = project_performance(job), project_measured(job, record)
    assert hybrid.iteration_time_s == pytest.approx(direct.iteration_time_s, rel=EXACT)
    for term in BREAKDOWN:
        assert hybrid.breakdown_s[term] == pytest.approx(
            direct.breakdown_s[term], rel=EXACT, abs=EXACT * direct.iteration_time_s
        )


def test_every_term_says_where_it_comes_from() -> None:
    job = job_of()
    hybrid = project_measured(job, synthetic_record(reduce_job(job, 1)))
    times = hybrid.provenance.times
    assert times is not None
    assert list(times.shares) == list(BREAKDOWN)
    for shares in times.shares.values():
        assert sum(shares.values()) == pytest.approx(1.0)
    assert times.terms["compute_gemm"] == "measured"
    assert times.terms["compute_attention"] == "measured"
    assert times.terms["ep_comm"] == "analytic"  # One device has nobody to exchange with.
    assert times.terms["dp_comm"] == "analytic"
    assert times.terms["optimizer"] == "scaled"
    told = hybrid.to_dict()["provenance"]
    assert told["times"] == "hybrid"
    assert told["terms"] == times.terms
    plain = project_performance(job)
    assert plain.to_dict()["provenance"]["times"] == "analytic"
    assert "terms" not in plain.to_dict()["provenance"]


def test_twice_as_slow_a_device_makes_measured_terms_twice_as_slow() -> None:
    job = job_of("llama3.1_8b")
    reduction = reduce_job(job, 1)
    direct = project_performance(job)
    hybrid = project_measured(job, synthetic_record(reduction, slow=2.0))
    times = hybrid.provenance.times
    assert times is not None
    measured = [term for term in BREAKDOWN if times.shares[term]["measured"] > 1.0 - EXACT]
    assert {"compute_gemm", "compute_attention"} <= set(measured)
    # What the job fuses is measured operator by operator, and scaled.
    assert times.shares["compute_other"]["analytic"] == 0.0
    for term in (*measured, "compute_other", "optimizer"):
        assert hybrid.breakdown_s[term] == pytest.approx(2.0 * direct.breakdown_s[term], rel=EXACT)


def deepseek(**fixed: object) -> Job:
    """Return a job whose layers run the kernels that are measured."""
    kernels = {"training.elementwise": "eager", "training.moe.permute_fusion": False}
    degrees = {"parallelism.pp": 3, "cluster.gpus_per_node": 6}
    return job_of("deepseek_v2_lite", **{**degrees, **kernels, **fixed})


def longer_stages(job: Job, extra_s: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much forward and backward of each stage are longer."""
    reduction = reduce_job(job, 1)
    plain = Hybrid(job, synthetic_record(reduction)).evaluate(job).inputs.times
    slower = Hybrid(job, synthetic_record(reduction, extra_s=extra_s)).evaluate(job).inputs.times
    return slower.forward_s - plain.forward_s, slower.backward_s - plain.backward_s


def test_a_slower_kind_of_layer_lengthens_the_stages_that_have_it() -> None:
    extra_s = 2e-3
    forward, backward = longer_stages(deepseek(), {"dense": extra_s})
    # The only dense layer is the first of the model.
    np.testing.assert_allclose(forward, [extra_s, 0.0, 0.0], rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(backward, 0.0, rtol=0.0, atol=1e-12)
    forward, _ = longer_stages(deepseek(), {"moe": extra_s})
    np.testing.assert_allclose(forward, np.array([8, 9, 9]) * extra_s, rtol=1e-9)
    forward, _ = longer_stages(deepseek(), {"head": extra_s})
    np.testing.assert_allclose(forward, [0.0, 0.0, extra_s], rtol=0.0, atol=1e-12)


def test_recomputed_layers_are_as_much_slower_again_in_the_backward() -> None:
    extra_s = 2e-3
    job = deepseek(**{"training.recompute": "full"})
    forward, backward = longer_stages(job, {"dense": extra_s})
    np.testing.assert_allclose(forward, [extra_s, 0.0, 0.0], rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(backward, [extra_s, 0.0, 0.0], rtol=0.0, atol=1e-12)


def test_what_layers_take_beyond_their_rows_follows_the_number_of_kernels() -> None:
    # Layers are measured with element-wise operators one by one; fused ones have fewer kernels.
    forward, _ = longer_stages(deepseek(**{"training.elementwise": "fused"}), {"dense": 2e-3})
    assert 0.5e-3 < forward[0] < 1.5e-3


def test_the_linear_rule_misses_what_tensor_parallelism_does_not_divide() -> None:
    job = job_of("llama3.1_8b", **{"parallelism.tp": 4, "parallelism.sequence_parallel": False})
    record = synthetic_record(reduce_job(job, 1))
    direct = project_performance(job).iteration_time_s
    assert project_measured(job, record).iteration_time_s == pytest.approx(direct, rel=EXACT)
    linear = project_measured(job, record, tp_rule="linear").iteration_time_s
    assert 0.01 < abs(linear / direct - 1.0) < 0.2
    with pytest.raises(ConfigError, match="tp_rule is ratio or linear"):
        project_measured(job, record, tp_rule="square")


def test_memory_stands_on_the_measured_peak() -> None:
    job = job_of()
    reduction = reduce_job(job, 1)
    direct = project_performance(job).memory
    live, idle = 2.0 * 2**30, 1.0 * 2**30
    record = synthetic_record(reduction, live_bytes=live, idle_bytes=idle)
    memory = project_measured(job, record).memory
    anchor = memory.anchor
    assert anchor is not None
    assert anchor.live_bytes == pytest.approx(live)
    assert anchor.idle_bytes == pytest.approx(idle)
    assert memory.peak_bytes == pytest.approx(direct.peak_bytes + live)
    assert anchor.peak_bytes == pytest.approx(direct.peak_bytes + live + idle)
    assert anchor.upper_bytes > anchor.peak_bytes
    assert memory.peak_high_bytes >= anchor.upper_bytes
    assert memory.stages[memory.peak_stage].peak_bytes == pytest.approx(memory.peak_bytes)
    told = memory.to_dict()["measured"]
    assert told["terms"] == {
        "analytic": "analytic",
        "live_excess": "scaled",
        "allocator": "measured",
    }
    assert "measured" not in direct.to_dict()


def test_a_record_without_a_step_leaves_memory_and_optimizer_to_the_model() -> None:
    job = job_of()
    hybrid = project_measured(job, synthetic_record(reduce_job(job, 1), step=False))
    direct = project_performance(job)
    assert hybrid.memory.anchor is None
    assert hybrid.memory.peak_bytes == direct.memory.peak_bytes
    assert hybrid.provenance.times is not None
    assert hybrid.provenance.times.terms["optimizer"] == "analytic"


def test_the_band_is_that_of_a_model_but_for_an_attention_that_was_measured() -> None:
    fixed = {"cluster.device": "mi355x", "cluster.gpus_per_node": 8}
    job = job_of("llama3.1_8b", **fixed)
    reduction = reduce_job(job, 1)
    direct = project_performance(job)
    assert "wider for attention" in direct.band.basis
    nothing = project_measured(job, synthetic_record(reduction, operations=False, layers=False))
    assert nothing.band.relative == direct.band.relative
    hybrid = project_measured(job, synthetic_record(reduction))
    assert hybrid.band.relative is not None
    assert direct.band.relative is not None
    assert hybrid.band.relative < direct.band.relative
    assert "wider for attention" not in hybrid.band.basis
    assert "no published run was restored" in hybrid.uncertainty["basis"]
