import numpy as np
import pytest

import projector as pj
from projector.errors import ConfigError
from projector.serving.deployment import Deployment
from projector.serving.load import Traffic
from projector.serving.rates import batches_up_to, legal_deployments, serving_front


def deploy(model, device="h100", **fields):
    return Deployment.parse({"model": model, "cluster": {"device": device}, **fields})


def test_no_point_that_fits_beats_one_of_the_front():
    front = serving_front(legal_deployments(deploy("llama3_8b"), 4), Traffic(output=128))
    rates = front.rates
    for row in front.rows:
        beaten = (
            rates.fits
            & (rates.tokens_per_s_per_gpu >= rates.tokens_per_s_per_gpu[row])
            & (rates.tokens_per_s_per_user >= rates.tokens_per_s_per_user[row])
        )
        assert np.flatnonzero(beaten).tolist() == [row]
    assert np.all(np.diff(rates.tokens_per_s_per_gpu[front.rows]) < 0.0)
    assert np.all(np.diff(rates.tokens_per_s_per_user[front.rows]) > 0.0)


def test_the_knee_has_the_largest_product():
    front = serving_front([deploy("llama3_8b")], Traffic())
    rates, rows = front.rates, front.rows
    product = rates.tokens_per_s_per_gpu[rows] * rates.tokens_per_s_per_user[rows]
    assert product[front.knee] == product.max()


def test_splits_divide_heads_and_experts_and_stay_on_the_devices():
    found = legal_deployments(deploy("mixtral_8x7b"), 8)
    assert len({(d.tp, d.pp, d.ep, d.attention_dp) for d in found}) == len(found)
    assert max(each.gpus for each in found) == 8
    assert {each.ep for each in found} == {1, 2, 4, 8}
    assert {each.ep for each in legal_deployments(deploy("llama3_8b"), 8)} == {1}


def test_batches_rise_to_the_largest():
    assert batches_up_to(13).tolist() == [1, 2, 3, 4, 6, 8, 12, 13]
    assert batches_up_to(0).tolist() == [1]


def test_left_out_values_are_those_of_the_knee():
    found = pj.project_serving("llama3_8b", "h100", output=128)
    point = found.front.point(int(found.front.rows[found.front.knee]))
    assert (point["batch"], point["tp"]) == (found.batch, found.deployment.tp)
    assert point["tpot_ms"] == found.to_dict()["tpot_ms"]
    assert {"tp", "load.batch"} <= found.derived.keys()
    assert found.to_dict()["front"]["points"]


def test_a_front_tries_all_splits_of_its_devices():
    found = pj.project_serving("mixtral_8x7b", "h100", front=True, gpus=16, output=64)
    assert {each.gpus for each in found.front.grid.deployments} == {1, 2, 4, 8, 16}
    assert found.fits


def test_a_stated_batch_takes_the_least_split_that_fits():
    found = pj.project_serving("llama3.1_70b", "h100", batch=4)
    assert found.deployment.tp == 2
    assert found.fits
    assert found.front is None


def test_where_nothing_fits_the_rest_is_still_there():
    found = pj.project_serving("llama3.1_405b", "h100")
    assert not found.fits
    assert found.deployment.tp == 8
    assert len(found.front.rows) == 0
    assert found.to_dict()["front"]["knee"] is None


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"front": True, "batch": 4}, "load.batch"),
        ({"front": True, "tp": 4}, "tp"),
        ({"gpus": 8}, "gpus"),
        ({"front": True, "gpus": 0}, "gpus"),
        ({"front": True, "gpus": 16, "overrides": {"cluster.nodes": 1}}, "gpus"),
        ({"rate_per_s": 3.0}, "load.output"),
        ({"ttft_ms": 3.0}, "load.ttft_ms"),
        ({"rate_per_s": -1.0, "output": 3}, "load.rate_per_s"),
        ({"overrides": {"load.percentile": 0}}, "load.percentile"),
    ],
)
def test_contradictions_name_their_key(settings, key):
    with pytest.raises(ConfigError) as caught:
        pj.project_serving("llama3_8b", "h100", **settings)
    assert caught.value.key == key


def test_a_rate_gives_percentiles_and_promises_give_replicas():
    load = {"batch": 32, "context": 512, "output": 64, "rate_per_s": 40.0}
    settings = {"overrides": {"load.requests": 200}, **load}
    found = pj.project_serving("llama3_8b", "h100", **settings).to_dict()
    assert found["under_load"]["ttft_ms"]["p50"] >= 0.9 * found["ttft_ms"]
    assert "replicas" not in found
    promised = pj.project_serving("llama3_8b", "h100", ttft_ms=200.0, **settings).to_dict()
    assert promised["replicas"] >= 1
    assert promised["replica_rate_per_s"] > 0.0


def test_proposed_tokens_and_prefill_apart_are_shown():
    drafts = {"tokens": 3, "acceptance": 0.8, "draft_share": 0.1}
    plain = pj.project_serving("llama3_8b", "h100", batch=1, tp=1)
    faster = pj.project_serving("llama3_8b", "h100", batch=1, tp=1, speculative=drafts)
    assert faster.tpot_s < plain.tpot_s
    assert faster.to_dict()["speculative"]["tokens_per_step"] > 2.0
    apart = pj.project_serving(
        "llama3_8b", "h100", batch=16, tp=1, output=200, disaggregated={"batch": 1}
    ).to_dict()
    assert apart["disaggregated"]["prefill_replicas"] >= 1
    assert apart["prompts_ms_per_token"] == 0.0
