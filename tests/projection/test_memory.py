"""The physical form of memory: what each split must shrink, and what must be shown."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.api import project_memory
from thoroughness import examples

SAMPLE = {
    "model": {"extends": "mixtral_8x22b", "vocab_size": 100352},
    "parallelism": {"pp": 4, "ep": 8},
    "training": {"micro_batch_size": 2, "global_batch_size": 256, "seq_length": 8192},
    "cluster": {"device": "mi355x", "nodes": 4},
}


def project(**overrides):
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return project_memory(load_job(SAMPLE, dotted))


def test_every_stage_is_shown_with_its_microbatches():
    memory = project()
    assert [stage.in_flight_microbatches for stage in memory.stages] == [4, 3, 2, 1]
    first, last = memory.stages[0], memory.stages[-1]
    assert first.parameters > memory.stages[1].parameters
    assert last.parameters > memory.stages[1].parameters
    assert memory.peak_stage == 0


def test_tensor_parallelism_shrinks_states_and_activations():
    one = project()
    two = project(parallelism__tp=2, cluster__nodes=8, parallelism__etp=2)
    for before, after in zip(one.stages, two.stages, strict=True):
        assert after.parameters == pytest.approx(before.parameters / 2, rel=0.01)
        # Experts split over TP still see whole tokens at their entry.
        assert before.activations_bytes / 2 < after.activations_bytes < before.activations_bytes
    two = project(parallelism__tp=2, cluster__nodes=8, parallelism__etp=1)
    for before, after in zip(one.stages, two.stages, strict=True):
        assert after.activations_bytes == pytest.approx(before.activations_bytes / 2, rel=0.01)


def test_expert_parallelism_shrinks_the_experts():
    four, eight = project(parallelism__ep=4), project()
    experts = 14 * 8 * 3 * 6144 * 16384
    for before, after in zip(four.stages, eight.stages, strict=True):
        assert before.parameters - after.parameters == experts // 4 - experts // 8


def test_fsdp_shards_everything_that_persists():
    whole, sharded = project(parallelism__zero_stage=0), project(parallelism__fsdp=2)
    for before, after in zip(whole.stages, sharded.stages, strict=True):
        assert after.weights_bytes < before.weights_bytes
        assert after.gradients_bytes < before.gradients_bytes
        assert after.optimizer_bytes < before.optimizer_bytes
        assert after.transient_bytes > before.transient_bytes


def test_zero_stages_shard_one_state_after_the_other():
    # Eight replicas of the dense parameters, one of the experts.
    stages = [project(parallelism__zero_stage=stage).stages[1] for stage in range(4)]
    dense = stages[0].parameters - 14 * 3 * 6144 * 16384
    share = dense * 7 / 8
    optimizer = [stage.optimizer_bytes for stage in stages]
    gradients = [stage.gradients_bytes for stage in stages]
    weights = [stage.weights_bytes for stage in stages]
    assert optimizer[0] - optimizer[1] == pytest.approx(12 * share)
    assert gradients[1] - gradients[2] == pytest.approx(4 * share)
    assert weights[2] - weights[3] == pytest.approx(2 * share)
    assert optimizer[1:] == [optimizer[1]] * 3


def test_recomputation_trades_activations_for_a_working_set():
    none, selective, full = (
        project(training__recompute=kind) for kind in ("none", "selective", "full")
    )
    for stage in range(4):
        kept = [m.stages[stage].activations_bytes for m in (none, selective, full)]
        assert kept[0] > kept[1] > kept[2]
        assert full.stages[stage].transient_bytes > none.stages[stage].transient_bytes
    sbh = 2 * 8192 * 2 * 6144
    middle = full.stages[1]
    assert middle.activations_bytes == pytest.approx(14 * sbh * 3)


def test_llama_70b_under_fsdp_fits_with_full_recomputation():
    job = {
        "model": "llama3.1_70b",
        "parallelism": {"fsdp": 2},
        "training": {
            "micro_batch_size": 4, "global_batch_size": 256, "seq_length": 8192,
            "recompute": "full",
        },
        "cluster": {"device": "mi325x", "nodes": 8},
    }  # fmt: skip
    assert project_memory(job).fits
    # AMD publishes no recompute setting for this run; without any it would not fit.
    assert not project_memory(load_job(job, {"training.recompute": "none"})).fits


def test_components_add_up():
    memory = project()

    def check(component):
        if component.children:
            assert component.parameters == sum(child.parameters for child in component.children)
            total = sum(child.activation_bytes for child in component.children)
            assert component.activation_bytes == pytest.approx(total)
            for child in component.children:
                check(child)

    names = [component.name for component in memory.components]
    assert names == ["embedding", "moe_layer", "head"]
    for component in memory.components:
        check(component)


def test_narrow_training_keeps_quantised_copies():
    wide, narrow = project(), project(training__precision="fp8")
    gathered = project(training__precision="fp8", training__fp8_param_gather=True)
    weights = [np.array([s.weights_bytes for s in m.stages]) for m in (wide, narrow, gathered)]
    assert np.all(weights[0] < weights[1])
    assert np.all(weights[2] < weights[1])


def test_gathered_weights_leave_quantised_copies_behind_where_a_cache_keeps_them():
    """One byte for the copy and one for its transpose, of every weight and not of a shard."""
    narrow = {"training__precision": "fp8", "parallelism__fsdp": 2}
    plain, kept = project(**narrow), project(**narrow, training__fp8_weight_cache=True)
    single = project(
        **narrow, training__fp8_weight_cache=True, training__fp8_weight_transpose_cache=False
    )
    bytes_of = [np.array([s.weights_bytes for s in m.stages]) for m in (plain, kept, single)]
    parameters = np.array([s.parameters for s in plain.stages])
    assert np.all(bytes_of[2] > bytes_of[0] + 0.5 * parameters)
    assert np.allclose(bytes_of[1] - bytes_of[0], 2.0 * (bytes_of[2] - bytes_of[0]))
    wide = {"parallelism__fsdp": 2}
    assert project(**wide, training__fp8_weight_cache=True).peak_bytes == project(**wide).peak_bytes


def test_interleaving_holds_more_than_1f1b():
    assert project(parallelism__vpp=2).peak_bytes > project().peak_bytes


def test_reserve_and_fragmentation_shrink_what_is_usable():
    memory = project(cluster__memory_reserve_gib=10.0, cluster__fragmentation=0.1)
    expected = (memory.device_memory_bytes - 10 * 2**30) / 1.1
    assert memory.usable_bytes == pytest.approx(expected)
    assert memory.headroom_bytes == memory.usable_bytes - memory.peak_bytes


@settings(max_examples=examples(40))
@given(
    model=st.sampled_from(["llama3.2_1b", "llama3.1_70b", "mixtral_8x7b", "deepseek_v2_lite"]),
    layers=st.sampled_from([2, 4, 8, 16]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 4]),
    nodes=st.sampled_from([1, 2, 4]),
    gradient=st.sampled_from(["fp32", "bf16"]),
    precision=st.sampled_from(["bf16", "fp8"]),
)
@example("deepseek_v2_lite", 4, 4, 2, 2, 2, 4, "bf16", "bf16")  # 8 % more, its shards
@example("mixtral_8x7b", 2, 1, 1, 1, 8, 1, "fp32", "bf16")  # experts that nobody shares
def test_zero_3_needs_no_more_than_zero_2_and_its_shards(
    model, layers, tp, pp, cp, ep, nodes, gradient, precision
):
    """Gathered weights are no more than whole ones; beside them lies the rank's own shard."""
    job = {
        "model": {"extends": model, "num_layers": layers},
        "parallelism": {"tp": tp, "pp": pp, "cp": cp, "ep": ep},
        "training": {
            "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048,
            "gradient_dtype": gradient, "precision": precision,
        },
        "cluster": {"device": "h100", "nodes": nodes},
    }  # fmt: skip
    try:
        one, two, three = (
            project_memory(load_job(job, {"parallelism.zero_stage": stage})) for stage in (1, 2, 3)
        )
    except ConfigError:
        assume(False)
    for before, after in zip(one.stages, two.stages, strict=True):
        assert after.peak_bytes <= before.peak_bytes + after.gradients_bytes + 1.0
    for before, after in zip(two.stages, three.stages, strict=True):
        assert after.peak_bytes <= before.peak_bytes + after.weights_bytes + 1.0
    if three.peak_bytes > two.peak_bytes:
        assert any(text.startswith("ZeRO 2 would need") for text in three.warnings)
