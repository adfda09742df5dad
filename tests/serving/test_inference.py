import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.errors import ConfigError
from projector.kernels.device import MATRIX_TYPES
from projector.operations.emit import emit_inference
from projector.operations.moe import active_experts
from projector.operations.table import GEMM
from projector.serving.deployment import Deployment
from projector.serving.generation import Generation, generation_times
from projector.serving.memory import serving_memory
from projector.serving.step import BREAKDOWN
from serving.steps import Step, columns_of, decode_time_s, prefill_time_s, step_times


def deploy(model="llama3_8b", device="h100", **settings):
    return Deployment.parse({"model": model, "cluster": {"device": device}, **settings})


def emitted(step):
    columns = columns_of([step])
    return emit_inference(columns.shapes, columns.extents)


def test_decode_of_one_sequence_streams_the_weights():
    device = load_device("h100")
    rate = device.hbm_peak_tb_per_s * device.hbm_efficiency * 1e12
    # All but the embedding table, in 16 bits.
    weights_s = 2.0 * (8.03e9 - 128256 * 4096) / rate
    time_s = decode_time_s(deploy(), 1, 16)
    assert weights_s < time_s < 1.6 * weights_s


def test_prefill_of_many_tokens_runs_at_the_matrix_rate():
    peak = load_device("h100").matrix_peak_tflops["bf16"] * 1e12
    tokens = 4 * 4096
    light_s = 2.0 * (8.03e9 - 2 * 128256 * 4096) * tokens / peak
    assert light_s < prefill_time_s(deploy(), 4, 4096) < 2.0 * light_s


def test_long_contexts_cost_the_cache_over_the_memory_rate():
    device = load_device("h100")
    rate = device.hbm_peak_tb_per_s * device.hbm_efficiency * 1e12
    deployment = deploy()
    more_s = decode_time_s(deployment, 8, 20_000) - decode_time_s(deployment, 8, 10_000)
    assert more_s == pytest.approx(2 * 32 * 8 * 128 * 2 * 8 * 10_000 / rate, rel=1e-6)


def test_breakdown_adds_up_and_is_not_negative():
    steps = [
        Step(deploy("mixtral_8x7b", tp=2), 4, 100),
        Step(deploy("deepseek_v3", tp=8), 3, 1, 500),
        Step(deploy("gemma2_2b", "mi300x", step_overhead_us=100.0), 3, 1, 10_000),
    ]
    times = step_times(steps)
    assert times.breakdown_s.shape == (3, len(BREAKDOWN))
    assert np.all(times.breakdown_s >= 0.0)
    assert times.breakdown_s.sum(axis=1) == pytest.approx(times.latency_s)
    assert times.breakdown_s[2, BREAKDOWN.index("host")] == pytest.approx(1e-4)


def test_a_batch_of_steps_equals_its_steps():
    steps = [Step(deploy(tp=tp), 2, new, 64) for tp in (1, 2) for new in (1, 128)]
    together = step_times(steps).latency_s
    assert [step_times([step]).latency_s[0] for step in steps] == list(together)


@pytest.mark.parametrize("new_tokens", [1, 256])
@pytest.mark.parametrize("model", ["llama3_8b", "mixtral_8x7b", "deepseek_v2_lite"])
def test_more_bandwidth_is_never_slower(model, new_tokens):
    times = []
    for rate in (2.0, 3.35, 5.0, 10.0):
        device = {"extends": "h100", "hbm_peak_tb_per_s": rate}
        times.append(step_times([Step(deploy(model, device), 8, new_tokens, 512)]).latency_s[0])
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


@pytest.mark.parametrize("weight_bits", [8, 4])
def test_narrow_weights_save_their_bytes_and_no_more(weight_bits):
    wide, narrow = (
        decode_time_s(deploy(), 1, 8),
        decode_time_s(deploy(weight_bits=weight_bits), 1, 8),
    )
    assert wide * weight_bits / 16 < narrow < wide
    deep = Step(deploy(), 64, 512), Step(deploy(weight_bits=weight_bits), 64, 512)
    before, after = step_times(deep).latency_s
    # Widening the weights first is read and written once.
    assert before <= after <= 1.05 * before


@pytest.mark.parametrize(
    ("device", "dtype", "narrow"), [("a100", "fp8", "fp8"), ("h100", "fp8", None)]
)
def test_a_type_without_units_is_kept_and_widened(device, dtype, narrow):
    assert deploy(device=device, dtype=dtype).narrow_weights == narrow


def test_widening_costs_more_in_smaller_groups_and_by_generated_kernels():
    four, small, generated = (
        decode_time_s(deploy(weights="int4", **settings), 1, 8)
        for settings in ({}, {"weight_group": 32}, {"engine": "torch_compile"})
    )
    assert four < small
    assert four < generated


@pytest.mark.parametrize("weights", ["fp8", "int8", "int4", "fp4", "mxfp4"])
def test_a_prefill_with_narrow_weights_is_bound_by_the_wide_matrix_rate(weights):
    wide, narrow = step_times(
        [Step(deploy(), 4, 2048), Step(deploy(weights=weights), 4, 2048)]
    ).latency_s
    assert wide <= narrow < 1.1 * wide


@pytest.mark.parametrize(
    ("kept", "begins"),
    [("all", ""), ("feed_forward", ("mlp.", "moe.")), ("experts", "moe.experts.")],
)
def test_layers_that_are_not_narrow_are_in_16_bits(kept, begins):
    split = {"model": "deepseek_v3", "device": "b200", "tp": 8}
    found = deploy(**split, dtype="nvfp4", narrow_layers=kept)
    table = emitted(Step(found, 64, 1, 1000))
    wide = {MATRIX_TYPES[code] for code in table.dtype[table.kind == GEMM]} - {"nvfp4"}
    narrow = {
        table.labels[label]
        for label, code in zip(table.label, table.dtype, strict=True)
        if MATRIX_TYPES[code] == "nvfp4"
    }
    always = {"attention.absorb_k", "attention.absorb_v", "moe.router", "head.output"}
    linear = {table.labels[label] for label in table.label[table.kind == GEMM]} - always
    assert wide == {"bf16"}
    assert narrow == {label for label in linear if label.startswith(begins)}


def test_the_wider_the_layers_the_slower_and_larger():
    for split in (
        {"model": "gpt_oss_120b", "device": "h200", "weights": "mxfp4", "tp": 2},
        {"model": "deepseek_v3", "device": "b200", "dtype": "nvfp4", "tp": 8},
    ):
        found = [deploy(**split, narrow_layers=kept) for kept in ("all", "feed_forward", "experts")]
        seconds = [decode_time_s(each, 64, 1000) for each in found]
        held = [serving_memory(each).weights_bytes for each in found]
        assert seconds == sorted(seconds)
        assert held == sorted(held)
        assert held[0] < held[1]


def test_weights_wider_than_their_operands_are_refused():
    with pytest.raises(ConfigError) as caught:
        deploy(dtype="fp8", weights="bf16")
    assert caught.value.key.endswith("weights")


@pytest.mark.parametrize("settings", [{"weight_bits": 3}, {"weight_bits": 8, "weights": "int4"}])
def test_bits_of_weights_are_an_alias(settings):
    assert deploy(weight_bits=4).weights == "int4"
    with pytest.raises(ConfigError):
        deploy(**settings)


def test_an_eager_engine_launches_more_and_waits_for_the_host():
    plain, eager = deploy(), deploy(engine="torch_eager")
    one, other = (emitted(Step(item, 1, 1, 100)) for item in (plain, eager))
    launched = [np.sum(table.launches * table.repeats) for table in (one, other)]
    # gpt-fast's model has 56 kernels a layer; its MLP is counted with one GEMM for gate and up.
    assert launched[1] / 32 == pytest.approx(56, abs=2)
    assert decode_time_s(eager, 1, 100) > 2 * decode_time_s(plain, 1, 100)


def test_an_engine_waits_for_each_sequence():
    deployment = deploy(step_overhead_us=50.0, sequence_overhead_us=2.0)
    extra = decode_time_s(deployment, 8, 100) - decode_time_s(
        deploy(step_overhead_us=0.0, sequence_overhead_us=0.0), 8, 100
    )
    assert extra == pytest.approx(66e-6)


def test_only_active_experts_are_read():
    experts, topk = np.array([8, 8, 256]), np.array([2, 2, 8])
    tokens = np.array([1, 1000, 1])
    assert list(active_experts(experts, tokens * topk, tokens)) == [2, 8, 8]
    table = emitted(Step(deploy("mixtral_8x7b"), 1, 1, 100))
    (row,) = np.flatnonzero(table.label == table.labels.index("moe.experts.fc1"))
    assert (table.m[row], table.n[row], table.k[row]) == (1, 2 * 14336, 4096)
    assert (table.batch[row], table.repeats[row]) == (2, 32)


def test_weights_of_the_emitted_gemms_are_those_of_the_model():
    table = emitted(Step(deploy("llama3_8b"), 1, 1, 1))
    weights = np.sum(table.n * table.k * table.batch * table.repeats * (table.m > 0))
    norms = (2 * 32 + 1) * 4096
    assert weights + norms + 128256 * 4096 == 8_030_261_248


def test_eager_decode_waits_for_the_host():
    eager, captured = (decode_time_s(deploy(decode_graph=flag), 1, 8) for flag in (False, True))
    assert eager > captured
    host = BREAKDOWN.index("host")
    assert step_times([Step(deploy(), 1, 1, 8)]).breakdown_s[0, host] == 0.0


def test_stages_add_a_send_and_shorten_the_interval():
    one, four = (step_times([Step(deploy(pp=pp), 8, 512)]) for pp in (1, 4))
    assert one.interval_s == one.latency_s
    assert four.latency_s > one.latency_s
    assert four.interval_s < 0.3 * one.latency_s


def test_a_generation_is_its_prefill_and_a_step_for_each_further_token():
    deployment = deploy()
    times = generation_times([Generation(deployment, 2, 100, 4), Generation(deployment, 2, 9, 1)])
    assert times.prefill_s[0] == prefill_time_s(deployment, 2, 100)
    steps = [decode_time_s(deployment, 2, context) for context in (100, 101, 102)]
    assert times.decode_s[0] == pytest.approx(sum(steps))
    assert times.decode_s[1] == 0.0


@pytest.mark.parametrize(
    ("settings", "key"), [({"tp": 3}, "tp"), ({"pp": 33}, "pp"), ({"tp": 16}, "tp")]
)
def test_impossible_splits_are_named(settings, key):
    with pytest.raises(ConfigError) as caught:
        deploy(**settings)
    assert caught.value.key.endswith(key)


def test_a_step_without_tokens_is_refused():
    for step in (Step(deploy(), 0), Step(deploy(), 1, 0), Step(deploy(), 1 << 30, 1 << 30)):
        with pytest.raises(ConfigError):
            step_times([step])
