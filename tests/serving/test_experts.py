import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.kernels.grouped import grouped_gemm_time_columns
from projector.lower.hardware import grouped_record
from projector.serving.experts import (
    ExpertLayer,
    balanced_loads,
    balanced_picks,
    expert_layer_times,
    fullest_rank_first,
    group_limited_loads,
    picks_of_loads,
    power_law_loads,
    random_loads,
)


def layer(device="h200", **changes):
    if isinstance(device, str):
        device = load_device(device)
    fields = {
        "hidden": 4096, "inner": 1536, "gated": True, "experts": 128, "topk": 8, "dtype": "bf16",
    }  # fmt: skip
    return ExpertLayer(device=device, **{**fields, **changes})


def time_s(loads, tokens=1024, **changes):
    return expert_layer_times([layer(**changes)], [tokens], [np.atleast_2d(loads)])[0]


@pytest.mark.parametrize(("tokens", "experts", "topk"), [(160, 256, 8), (7, 8, 2), (100, 512, 22)])
def test_balanced_loads_count_the_picks(tokens, experts, topk):
    picks = balanced_picks(tokens, experts, topk)
    counted = np.bincount(picks.reshape(-1), minlength=experts)
    assert list(balanced_loads(tokens, experts, topk)) == list(counted)


def test_balanced_picks_by_hand():
    assert balanced_picks(3, 8, 2).tolist() == [[0, 4], [1, 5], [2, 6]]


@pytest.mark.parametrize("exponent", [1.0, 1.01, 1.2])
@pytest.mark.parametrize(("tokens", "experts", "topk"), [(160, 256, 8), (2048, 8, 2), (4, 256, 8)])
def test_power_law_loads_keep_every_pair(tokens, experts, topk, exponent):
    loads = power_law_loads(tokens, experts, topk, exponent, np.random.default_rng(0))
    assert loads.sum() == tokens * topk
    assert 0 <= loads.min() <= loads.max() <= tokens
    picks = picks_of_loads(loads, tokens)
    assert picks.shape == (tokens, topk)
    assert all(len(set(row)) == topk for row in picks.tolist())


@pytest.mark.parametrize(("tokens", "experts", "topk"), [(1, 8, 8), (100, 8, 8), (5, 512, 11)])
def test_random_loads_never_pick_an_expert_twice(tokens, experts, topk):
    loads = random_loads(tokens, experts, topk, np.random.default_rng(0))
    assert loads.shape == (experts,)
    assert loads.sum() == tokens * topk
    assert loads.max() <= tokens


def test_random_loads_are_those_of_independent_tokens():
    generator = np.random.default_rng(0)
    draws = np.stack([random_loads(64, 128, 8, generator) for _ in range(400)])
    # Each load is binomial: 64 tokens that pick an expert with probability 8 / 128.
    np.testing.assert_allclose(draws.mean(axis=0), 4.0, atol=0.6)
    assert draws.var() == pytest.approx(64 * (1 / 16) * (15 / 16), rel=0.05)
    assert (draws == 0).mean() == pytest.approx((15 / 16) ** 64, rel=0.1)


def test_the_fullest_rank_comes_first():
    assert fullest_rank_first(np.array([1, 2, 9, 0, 3, 3]), 3).tolist() == [9, 0, 1, 2, 3, 3]


def test_many_ranks_make_the_fullest_much_fuller():
    generator = np.random.default_rng(0)
    shares = {}
    for ranks in (2, 64):
        draws = [power_law_loads(4096, 256, 8, 1.2, generator) for _ in range(20)]
        first = [fullest_rank_first(loads, ranks)[: 256 // ranks].sum() for loads in draws]
        shares[ranks] = np.mean(first) / (4096 * 8 / ranks)
    assert 1.0 < shares[2] < 1.5
    assert 5.0 < shares[64] < 12.0


def test_group_limited_routing_fills_up_with_the_lowest_experts():
    # Balanced picks lie in all eight groups; four are kept, four more picks fall on rank 0.
    loads = group_limited_loads(balanced_picks(16384, 256, 8), 256)
    assert loads.sum() == 16384 * 8
    assert loads[:32].sum() == 81920
    of_eight = group_limited_loads(balanced_picks(1000, 8, 2), 8)
    assert of_eight.sum() == of_eight[:4].sum() == 2000


def test_decode_sized_experts_stream_their_weights():
    device = load_device("h200")
    weights = 128 * 3 * 4096 * 1536 * 2.0
    streamed_s = weights / (device.hbm_peak_tb_per_s * device.hbm_efficiency * 1e12)
    assert streamed_s < time_s(np.full(128, 2), tokens=32) < 1.5 * streamed_s


def test_idle_experts_are_not_read():
    some = np.where(np.arange(128) < 32, 4, 0)
    assert time_s(some, tokens=128) < 0.5 * time_s(np.full(128, 4), tokens=128)


def test_a_rank_without_tokens_still_routes():
    assert 0.0 < time_s(np.zeros(128, np.int64)) < 1e-4


def test_equal_loads_cost_no_more_than_unequal_ones():
    uneven = np.full(128, 8)
    uneven[0] = 8 + 127 * 7
    uneven[1:] = 1
    assert uneven.sum() == 128 * 8
    assert time_s(np.full(128, 8)) < time_s(uneven) * 1.3


def test_more_bandwidth_is_never_slower():
    times = []
    for rate in (2.0, 4.8, 9.6):
        device = load_device({"extends": "h200", "hbm_peak_tb_per_s": rate})
        times.append(time_s(np.arange(128), device=device))
    assert times == sorted(times, reverse=True)


def test_draws_are_averaged():
    first, second = np.full(128, 4), np.full(128, 400)
    both = time_s(np.stack([first, second]))
    assert both == pytest.approx((time_s(first) + time_s(second)) / 2.0)


def test_a_layer_by_hand():
    device = load_device("h100")
    kernels = device.expert_layer.kernels["bf16"]
    loads, tokens = np.full(8, 100), 400
    hidden, inner, experts, topk = 4096, 1536, 128, 8
    memory = device.hbm_peak_tb_per_s * device.hbm_efficiency * 1e12
    units = device.compute_units * device.peak_clock_mhz * 1e6

    def passes_s(num_bytes, elements):
        return num_bytes / memory + elements / (units * kernels.pass_elements_per_clk_per_cu)

    pairs = 800
    sort_s = device.expert_layer.sort_unit_clk * tokens * topk / units
    route_s = passes_s(4 * tokens * experts, 4 * tokens * experts)
    permute_s = passes_s(4 * pairs * hidden, 2 * pairs * hidden)
    activation_s = passes_s(6 * pairs * inner, 3 * pairs * inner)
    rows = pairs + tokens
    finalise_s = passes_s(2 * rows * hidden, rows * hidden)
    around_s = kernels.start_us * 1e-6 + sort_s + route_s + permute_s + activation_s + finalise_s
    found = time_s(loads, tokens=tokens, device="h100")
    assert found > around_s
    # The two GEMMs have the rest to themselves.
    one = grouped_record(device, "bf16", kernels)
    # 400 tokens are tuned as 256: 16 rows an expert.
    extents = np.array([[2 * inner, hidden], [hidden, inner]])
    zeros = np.zeros(2, np.int64)
    gemms_s, _ = grouped_gemm_time_columns(
        np.array([0, 8]), loads, zeros, extents, np.full(2, 16), zeros, one
    )
    assert found == pytest.approx(around_s + gemms_s.sum())


def test_a_layer_does_not_depend_on_its_neighbours():
    generator = np.random.default_rng(0)
    layers = [
        layer(device=name, dtype=dtype) for name, dtype in (("h200", "fp8"), ("b200", "bf16"))
    ]
    loads = [generator.integers(0, 50, (3, 128)), generator.integers(0, 50, (2, 64))]
    together = expert_layer_times(layers, [512, 256], loads)
    apart = [expert_layer_times([layers[i]], [[512, 256][i]], [loads[i]])[0] for i in range(2)]
    assert list(together) == apart
    assert len(expert_layer_times([], [], [])) == 0


def test_many_picks_leave_the_fused_router():
    loads = np.full(128, 8)
    # DeepGEMM's tiles do not depend on how many picks a launch was tuned for.
    fields = {"dtype": "fp8", "block_scaled": True}
    few, many = (time_s(loads, topk=topk, **fields) for topk in (16, 17))
    assert many - few > 0.9 * load_device("h200").expert_layer.unfused_router_us * 1e-6


def test_the_fullest_expert_holds_an_activation_up():
    even, uneven = np.full(64, 200), np.zeros(64, np.int64)
    uneven[0] = even.sum()
    fields = {"dtype": "fp8", "inner": 256, "device": "b200"}
    waiting, sharing = (
        time_s(uneven, block_scaled=blocks, **fields) - time_s(even, block_scaled=blocks, **fields)
        for blocks in (True, False)
    )
    assert waiting > sharing + 50e-6


def test_an_older_release_runs_other_kernels():
    loads = np.full(64, 200)
    fields = {"dtype": "fp8", "block_scaled": True, "device": "b200"}
    new, old, unknown = (time_s(loads, release=name, **fields) for name in ("", "1.3.0rc15", "9"))
    assert new == unknown < old


def test_fused_kernels_pass_over_fewer_rows():
    loads = np.full(64, 200)
    plain, fused = (time_s(loads, dtype="nvfp4", device="b200", fused=f) for f in (False, True))
    assert fused < plain


AMD = {"device": "mi355x", "dtype": "fp8", "inner": 768, "gemms_alone": True}


def test_gemms_alone_leave_the_passes_out():
    loads = np.full(128, 64)
    alone, layer_s = (time_s(loads, **{**AMD, "gemms_alone": each}) for each in (True, False))
    around = load_device("mi355x").expert_layer.routing_start_us * 1e-6
    assert layer_s > alone + around


def test_narrow_weights_are_read_in_their_own_bytes():
    few, many = np.full(128, 1), np.full(128, 2048)
    wide, narrow = (
        time_s(few, **{**AMD, "inner": 4096, "weights": weights}) for weights in ("", "mxfp4")
    )
    assert narrow < 0.7 * wide
    # Where the matrix units bind, the activations' type decides.
    fp8, mxfp4 = (
        time_s(many, **{**AMD, **each})
        for each in ({"weights": "mxfp4"}, {"weights": "mxfp4", "dtype": "bf16"})
    )
    assert mxfp4 > 1.5 * fp8


def test_integers_have_kernels_of_their_own():
    loads = np.full(128, 64)
    for one_kernel in (False, True):
        for device in ("mi300x", "mi355x"):
            fields = {**AMD, "device": device, "one_kernel": one_kernel}
            integers, floats = (time_s(loads, **{**fields, "dtype": x}) for x in ("int8", "fp8"))
            # They differ in what a plain GEMM of the type reaches.
            assert 0.95 * floats < integers < 1.4 * floats


def test_one_kernel_by_hand():
    device = load_device("mi355x")
    fields = {**AMD, "one_kernel": True, "block_scaled": True, "inner": 300}
    kernels = layer(**fields).kernels
    assert kernels.slice_columns == 256
    loads = np.full(64, 20)
    peak = device.hbm_peak_tb_per_s * 1e12
    # Two slices, so that every row of a token's result is added twice.
    sum_s = 2 * 64 * 20 * 4096 * 2.0 / (peak * kernels.sum_efficiency)
    gemm_hz = device.sustained_clock_mhz["fp8_block"] * device.gemm_efficiency["fp8_block"] * 1e6
    rate = 8192 * gemm_hz * kernels.gemm_share
    fill = device.l2_fill_bytes_per_clk_per_cu * 2.4e9
    taken = {high: (high / 3 + 256) * 3 * 4096 for high in (16, 32, 64, 128, 256)}
    core_s = min(
        max(
            max(2.0 * high * 256 * 3 * 4096 / rate, moved / fill) + kernels.wave_clk / 2.4e9,
            64 * 2 * -(-20 // high) * moved / (device.l2_tb_per_s * 1e12),
        )
        for high, moved in taken.items()
    )
    moved = 64 * 3 * 300 * 4096 + 64 * 20 * 4096
    memory_s = moved / (peak * device.expert_layer.memory_efficiency)
    gemm_s = max(core_s, memory_s) + device.expert_layer.overlap_loss * min(core_s, memory_s)
    fixed_s = kernels.start_us * 1e-6 + 64 * kernels.expert_clk / 2.4e9
    assert time_s(loads, **fields) == pytest.approx(sum_s + gemm_s + fixed_s)


def test_layers_of_experts_have_a_memory_rate_of_their_own():
    base = {"extends": "h100", "expert_layer": {"memory_efficiency": 0.5}}
    loads = np.full(128, 2)
    slow, fast = (time_s(loads, tokens=32, device=x) for x in (load_device(base), "h100"))
    assert slow > 1.5 * fast


QUARTER = {
    "extends": "mi300x", "compute_units": 76, "dies": 2, "l2_tb_per_s": 4.25,
    "sustained_clock_mhz": {"bf16": 2100, "fp8": 2100},
}  # fmt: skip
"""A quarter of the units behind the same memory: too few to meet the power cap."""


@pytest.mark.parametrize("one_kernel", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_quarter_of_the_units_takes_as_long_as_its_units_and_memory_say(dtype, one_kernel):
    fields = {**AMD, "dtype": dtype, "one_kernel": one_kernel}
    few, many = np.full(128, 1), np.full(128, 4096)
    whole, quarter = (
        [time_s(loads, **{**fields, "device": load_device(base)}) for loads in (few, many)]
        for base in ("mi300x", QUARTER)
    )
    # Weights stream nearly as fast; products take four times as long at the same clock.
    assert whole[0] <= quarter[0] < 2.0 * whole[0]
    assert 1.8 * whole[1] < quarter[1] < 4.1 * whole[1]


def test_experts_multiply_at_the_rate_of_the_devices_own_gemms():
    loads = np.full(128, 4096)
    base = {"extends": "mi300x", "sustained_clock_mhz": {"bf16": 2100}}
    fast, capped = (
        time_s(loads, **{**AMD, "dtype": "bf16", "device": load_device(x)})
        for x in (base, "mi300x")
    )
    assert 1.4 * fast < capped < 1.8 * fast


def test_a_slow_release_takes_as_much_longer_as_it_says():
    loads = np.full(64, 2000)
    fields = {"device": "b200", "inner": 4096}
    new, old = (time_s(loads, release=name, **fields) for name in ("1.3.0rc20", "1.3.0rc15"))
    slowdown = load_device("b200").expert_layer.kernels["bf16@1.3.0rc15"].slowdown
    assert 0.8 * slowdown < old / new < slowdown
