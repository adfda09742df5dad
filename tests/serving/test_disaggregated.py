import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.lower.fabrics import fabric_record
from projector.serving.deployment import Deployment
from projector.serving.generation import Generation, disaggregated_times
from projector.serving.rates import LoadGrid, load_rates
from projector.serving.transfers import exposed_transfer_s
from serving.cached import kv_cache_bytes
from serving.steps import decode_time_s, prefill_time_s


def deploy(model="llama3_70b", device="h100", nodes=1, tp=8, prefill=None, **settings):
    pair = {
        name: settings.pop(name)
        for name in ("layerwise", "batch", "same_domain")
        if name in settings
    }
    cluster = {"device": device, "nodes": nodes}
    pair["prefill"] = prefill or {}
    return Deployment.parse(
        {"model": model, "cluster": cluster, "tp": tp, "disaggregated": pair, **settings}
    )


def load(deployment, batch=64, input_len=4000, output_len=1000):
    return Generation(deployment, batch, input_len, output_len)


@pytest.mark.parametrize("model", ["llama3_70b", "gemma2_27b"])
@pytest.mark.parametrize("kind", [1, 2])
def test_what_is_sent_is_the_cache(model, kind):
    deployment = deploy(model, batch=3, kv_cache_bytes=kind)
    found = disaggregated_times([load(deployment)]).transfers
    expected = kv_cache_bytes(deployment.model, 3, 4000, kind)
    assert found.cache_bytes[0] == found.wire_bytes[0] == expected
    assert found.sent_bytes[0] == found.received_bytes[0] == expected / 8


def test_what_several_ranks_hold_is_sent_to_each():
    tensor, groups = (
        deploy("deepseek_v3", "h200", tp=tp, attention_dp=8 // tp, ep=8, batch=8) for tp in (8, 1)
    )
    copies, once = (disaggregated_times([load(each)]).transfers for each in (tensor, groups))
    assert copies.wire_bytes[0] == 8 * copies.cache_bytes[0]
    assert once.wire_bytes[0] == once.cache_bytes[0] == copies.cache_bytes[0]
    # One prompt lies on one group, whose link alone sends and receives.
    alone = deploy("deepseek_v3", "h200", tp=1, attention_dp=8, ep=8, batch=1)
    assert groups.prefill_prompts == 8
    found = disaggregated_times([load(alone)]).transfers
    assert found.sent_bytes[0] == found.cache_bytes[0]


def test_the_slower_end_of_the_links_sets_the_pace():
    deployment = deploy(prefill={"tp": 2}, batch=4)
    found = disaggregated_times([load(deployment)]).transfers
    assert found.sent_bytes[0] == 4 * found.received_bytes[0]
    rate = fabric_record(deployment.cluster)["nic_bytes_per_s"][0]
    assert found.transfer_s[0] == pytest.approx(found.sent_bytes[0] / rate, rel=0.02)
    near = deploy(tp=4, prefill={"tp": 4}, same_domain=True)
    far = deploy(tp=4, prefill={"tp": 4})
    times = disaggregated_times([load(near), load(far)]).transfers.transfer_s
    assert times[0] < 0.5 * times[1]


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 126))
def test_layers_that_are_sent_as_they_come(transfer, prefill, layers):
    (found,) = exposed_transfer_s(*(np.array([x]) for x in (transfer, prefill, layers, True)))
    # One layer after the other: computed, then sent behind those before it.
    sent = 0.0
    for layer in range(1, layers + 1):
        sent = max(sent, prefill * layer / layers) + transfer / layers
    assert found == pytest.approx(sent - prefill, abs=1e-9)
    (whole,) = exposed_transfer_s(*(np.array([x]) for x in (transfer, prefill, layers, False)))
    assert whole == transfer
    assert found <= whole + 1e-9


def test_times_are_those_of_both_deployments():
    deployment = deploy(prefill={"tp": 4}, batch=2)
    times = disaggregated_times([load(deployment, output_len=2)])
    side = deployment.prefill_side
    assert (side.tp, side.gpus, side.disaggregated) == (4, 4, None)
    assert times.prefill_s[0] == prefill_time_s(side, 2, 4000)
    assert times.token_s[0] == decode_time_s(deployment, 64, 4000)
    assert times.ttft_s[0] == times.prefill_s[0] + times.exposed_s[0]
    assert times.prefill_requests_per_s[0] == pytest.approx(2 / times.prefill_s[0])
    assert times.decode_requests_per_s[0] == pytest.approx(64 / times.token_s[0])


def test_sending_everything_behind_the_prefill_is_later_and_as_fast():
    beside, behind = (deploy(layerwise=flag) for flag in (True, False))
    times = disaggregated_times([load(beside), load(behind)])
    assert times.exposed_s[0] < times.exposed_s[1] == times.transfers.transfer_s[1]
    assert times.prefill_requests_per_s[0] == times.prefill_requests_per_s[1]


def test_slow_links_hold_prefill_up():
    slow = {"device": "h100", "network": {"nic_gbit_per_s": 0.4}}
    deployment = deploy()
    narrow = Deployment.parse(
        {"model": "llama3_70b", "cluster": slow, "tp": 8, "disaggregated": {}}
    )
    fast, late = (disaggregated_times([load(each)]) for each in (deployment, narrow))
    assert late.prefill_requests_per_s[0] == pytest.approx(1 / late.transfers.transfer_s[0])
    assert late.prefill_requests_per_s[0] < fast.prefill_requests_per_s[0]
    assert late.ttft_s[0] > fast.ttft_s[0]


def test_replicas_balance():
    times = disaggregated_times([load(deploy())])
    prefill, decode = times.balanced(most=32)
    assert prefill / decode == pytest.approx(times.prefill_per_decode[0], rel=0.05)
    best = times.tokens_per_s_per_gpu(prefill, decode)[0]
    for pair in ((1, 1), (1, 2), (2, 1), (32, 1)):
        assert times.tokens_per_s_per_gpu(*pair)[0] <= best * (1 + 1e-9)
    # Neither side yields more than it can by itself.
    assert best <= 1000 * times.decode_requests_per_s[0] / 8


def test_stages_decode_a_part_of_the_batch_each():
    staged = deploy(nodes=2, pp=2, prefill={"pp": 1})
    times = disaggregated_times([load(staged)])
    assert times.token_s[0] > decode_time_s(staged, 32, 4000)
    assert times.decode_gpus[0] == 2 * times.prefill_gpus[0]


def test_what_prefills_may_have_machines_of_its_own():
    deployment = deploy(prefill={"cluster": {"device": "h200"}, "dtype": "fp8"})
    side = deployment.prefill_side
    assert (side.cluster.device.name, side.dtype) == ("NVIDIA H200 SXM", "fp8")
    more = deploy(tp=4, prefill={"tp": 8, "pp": 4})
    assert more.prefill_side.cluster.nodes == 4


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"prefill": {"tp": 3}}, "disaggregated.prefill.tp"),
        ({"prefill": {"model": "llama3_8b"}}, "disaggregated.prefill.model"),
        ({"prefill": {"kv_cache_bytes": 1}}, "disaggregated.prefill.kv_cache_bytes"),
        ({"prefill": {"tq": 1}}, "disaggregated.prefill"),
        ({"same_domain": True}, "disaggregated.same_domain"),
        ({"batch": 0}, "disaggregated.batch"),
    ],
)
def test_impossible_pairs_are_named(settings, key):
    with pytest.raises(ConfigError) as caught:
        deploy(**settings)
    assert caught.value.key.startswith(key)


def test_a_deployment_without_a_pair_is_refused():
    plain = Deployment.parse({"model": "llama3_8b", "cluster": {"device": "h100"}})
    with pytest.raises(ConfigError, match="disaggregated"):
        disaggregated_times([load(plain)])


def test_loads_on_pairs_of_deployments():
    plain = Deployment.parse({"model": "llama3_70b", "cluster": {"device": "h100"}, "tp": 8})
    pair = deploy(prefill={"tp": 4}, batch=2)
    point = LoadGrid.of([plain, pair], deployment=[0, 1], batch=64, context=4000, output=1000)
    rates = load_rates(point)
    times = disaggregated_times([load(pair)])
    assert rates.ttft_s[1] == pytest.approx(times.ttft_s[0])
    assert rates.prompts_s[1] == 0.0 < rates.prompts_s[0]
    assert rates.tpot_s[1] == rates.tpot_s[0]
    # Prefill replicas that keep up count with their devices.
    requests = 64 / rates.tpot_s[1] / 1000
    gpus = 8 + 4 * requests / times.prefill_requests_per_s[0]
    assert rates.tokens_per_s_per_gpu[1] == pytest.approx(1000 * requests / gpus)
    assert load_rates(point.take(np.array([1]))).ttft_s[0] == rates.ttft_s[1]
