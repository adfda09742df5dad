"""More load never lowers a latency; a faster link or device, or more memory, never serves less."""

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from projector.config.device_file import load_device
from projector.config.network import load_network
from projector.serving.deployment import Deployment
from projector.serving.load import Load, Scheduler
from projector.serving.memory import serving_memory
from projector.serving.rates import LoadGrid, load_rates
from projector.serving.simulation import simulate_load

MOE = {"model": "deepseek_v3", "device": "h200", "dtype": "fp8"}
CASES = {
    "dense": {"model": "llama3_8b", "device": "h100"},
    "fp8": {"model": "llama3_8b", "device": "h100", "dtype": "fp8", "engine": "vllm"},
    "amd": {"model": "llama3.1_70b", "device": "mi300x", "tp": 8},
    "stages": {"model": "llama3.1_70b", "device": "h100", "tp": 8, "pp": 2},
    "windows": {"model": "gemma2_2b", "device": "a100"},
    "experts": {**MOE, "tp": 8},
    "groups": {**MOE, "attention_dp": 8, "ep": 8},
    "gathered": {**MOE, "attention_dp": 8, "ep": 8, "dispatcher": "allgather"},
    "two nodes": {**MOE, "tp": 2, "attention_dp": 8, "ep": 16},
    "int4": {"model": "llama3_8b", "device": "h100", "weights": "int4"},
    "int8": {"model": "llama3.1_70b", "device": "a100", "weights": "int8", "tp": 8},
    "widened fp8": {"model": "llama3_8b", "device": "a100", "dtype": "fp8"},
    "mxfp4 experts": {
        "model": "gpt_oss_20b", "device": "h200", "weights": "mxfp4", "narrow_layers": "experts",
    },
}  # fmt: skip

SLACK = 1.0 - 1e-9
"""For rounding alone."""


@cache
def deployment(name, field=None, factor=1.0):
    """Return a case, on a device or network of which one field is so many times larger."""
    settings = dict(CASES[name])
    device = load_device(settings.pop("device"))
    network = load_network(device.network)
    owner = network if field in type(network).model_fields else device
    if field is not None:
        value = getattr(owner, field)
        more = {k: v * factor for k, v in value.items()} if isinstance(value, dict) else None
        changed = owner.model_copy(update={field: more or value * factor})
        device, network = (device, changed) if owner is network else (changed, network)
    cluster = {"device": device, "network": network, "nodes": 2}
    return Deployment.parse({**settings, "cluster": cluster})


def rates(one, **load):
    return load_rates(LoadGrid.of([one], **load))


loads = st.tuples(st.integers(1, 512), st.integers(1, 8000), st.integers(1, 32))
cases = st.sampled_from([*CASES])


@given(cases, loads, loads)
def test_more_load_lowers_no_latency(name, one, other):
    less, more = np.minimum(one, other), np.maximum(one, other)
    batch, context, prompts = np.array([less, more]).T
    found = rates(deployment(name), batch=batch, context=context, prompts=prompts, output=100)
    for times in (found.tpot_s, found.ttft_s):
        assert times[1] >= times[0] * SLACK


@given(cases, st.integers(1, 511), st.integers(1, 8000))
def test_one_sequence_more_lowers_no_latency(name, batch, context):
    found = rates(deployment(name), batch=[batch, batch + 1], context=context, output=100)
    assert found.tpot_s[1] >= found.tpot_s[0] * SLACK
    assert found.tokens_per_s_per_user[1] <= found.tokens_per_s_per_user[0] / SLACK


FASTER = ("hbm_peak_tb_per_s", "l2_tb_per_s", "scale_up_gb_per_s", "nic_gbit_per_s")


@given(cases, st.sampled_from(FASTER), st.floats(1.0, 4.0), loads)
def test_a_faster_link_or_memory_serves_no_less(name, field, factor, load):
    batch, context, prompts = load
    before, after = (
        rates(each, batch=batch, context=context, prompts=prompts, output=100)
        for each in (deployment(name), deployment(name, field, factor))
    )
    assert after.tpot_s[0] <= before.tpot_s[0] / SLACK
    assert after.ttft_s[0] <= before.ttft_s[0] / SLACK
    assert after.tokens_per_s_per_gpu[0] >= before.tokens_per_s_per_gpu[0] * SLACK
    assert after.max_batch[0] == before.max_batch[0]


@given(cases, st.floats(1.0, 4.0), loads)
def test_more_memory_serves_no_less(name, factor, load):
    batch, context, _ = load
    before, after = deployment(name), deployment(name, "hbm_gib", factor)
    longest = context + 100
    most = [int(serving_memory(each).max_batch(longest)) for each in (before, after)]
    assert most[1] >= most[0]
    assume(most[0] > 0)
    # What fits is not always better: 257 rows take a wave of tiles more than 256.
    few, many = (min(batch, largest) for largest in most)
    served = rates(before, batch=few, context=context, output=100)
    more = rates(after, batch=[few, many], context=context, output=100)
    assert more.fits.all()
    assert more.tokens_per_s_per_gpu.max() >= served.tokens_per_s_per_gpu[0] * SLACK


@pytest.mark.parametrize("name", ["dense", "fp8", "groups"])
@given(st.floats(0.1, 1.0), st.floats(1.0, 3.0), st.integers(0, 1 << 20))
def test_more_requests_a_second_shorten_no_mean_latency(name, share, factor, seed):
    one = deployment(name)
    scheduler = Scheduler(max_num_seqs=32, max_num_batched_tokens=2048)
    per_s = 32.0 / (100 * float(rates(one, batch=32, context=500).tpot_s[0]))
    lengths = {"input_tokens": 500, "output_tokens": 100, "requests": 200, "seed": seed}
    slow, fast = (
        simulate_load(one, Load.parse({**lengths, "rate_per_s": rate}), scheduler)
        for rate in (share * per_s, factor * share * per_s)
    )
    assert np.nanmean(fast.e2e_s) >= np.nanmean(slow.e2e_s) * SLACK
