import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import projector as pj
from projector.cli.main import run
from projector.config.first_order import FIRST_ORDER, FirstOrderConfig
from projector.config.first_order_job import load_first_order_job
from projector.config.prices import load_prices
from projector.errors import ConfigError
from projector.first_order.results import project_performance
from projector.first_order.serving import project_serving
from projector.serving.deployment import Deployment

JOB = {
    "model": "llama3.1_70b",
    "parallelism": {"tp": 8, "pp": 4},
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 16},
}


def serving(device="h100", **given):
    return project_serving("llama3_70b", device, **{"dtype": "fp8", "context": 2048, **given})


def test_decode_by_hand():
    weights, cached = 70_553_706_496, 2 * 80 * 2048 * 8 * 128 * 2
    found = serving()
    assert found.tpot_s == pytest.approx((weights + cached) / 3.35e12 / 0.35)
    assert found.ttft_s == pytest.approx(2 * weights * 2048 / 1978.9e12 / 0.55, rel=1e-3)
    assert (found.bound_prefill, found.bound_decode) == ("compute", "memory")
    assert found.kv_cache_bytes == cached
    assert found.max_batch == (found.device.memory_bytes - weights) // cached
    assert found.fits


def test_pipelines_and_domains():
    one, two = serving(tp=8), serving(tp=8, pp=2)
    assert two.tpot_s == one.tpot_s
    assert two.tokens_per_s_per_gpu == one.tokens_per_s_per_gpu
    assert two.max_batch > one.max_batch
    assert serving(tp=16).tpot_s == pytest.approx(1.4 * one.tpot_s / 2)
    assert serving("gb200", tp=16).tpot_s == pytest.approx(serving("gb200", tp=8).tpot_s / 2)


def test_narrow_weights_and_many_sequences():
    assert serving(weights="int4").tpot_s < serving().tpot_s
    assert serving(batch=4096, context=1).bound_decode == "compute"
    assert project_serving("deepseek_v3", "trn2", tp=16).tpot_s < 1.0


@given(st.integers(1, 512), st.integers(1, 8192), st.floats(0.1, 1.0))
def test_more_sequences_take_longer_and_serve_more(batch, context, derate):
    config = FirstOrderConfig(decode_mfu=derate)
    few = serving(batch=batch, context=context, first_order=config)
    more = serving(batch=2 * batch, context=context, first_order=config)
    assert more.tpot_s >= few.tpot_s
    assert more.tokens_per_s_per_gpu >= few.tokens_per_s_per_gpu * (1 - 1e-12)


ROOFS = {"first_order.prefill_mfu": 1.0, "first_order.decode_mfu": 1.0}


@pytest.mark.parametrize(
    ("load", "times", "most"),
    [
        ({"batch": 1, "context": 1}, "tpot_s", 1.4),  # reads weights
        ({"batch": 4, "context": 100_000}, "tpot_s", 1.25),  # reads the cache
        ({"batch": 2048, "context": 1}, "tpot_s", 1.7),  # computes
        ({"batch": 1, "context": 2048}, "ttft_s", 1.8),
    ],
)
def test_tile_models_approach_it_in_each_limit(load, times, most):
    tiles = pj.project_serving("llama3.1_8b", "h100", **load)
    roofs = pj.project_serving("llama3.1_8b", "h100", **load, overrides=ROOFS, fidelity=FIRST_ORDER)
    assert 1.0 <= getattr(tiles, times) / getattr(roofs, times) <= most


def test_the_interface_takes_it(capsys):
    given = {"model": "llama3_70b", "device": "tpu_v6e", "dtype": "bf16", "tp": 8, "batch": 16}
    found = pj.project_serving(**given, fidelity="first-order")
    assert found.tpot_s == project_serving(**given).tpot_s
    assert found.fits
    words = [f"--{name}={value}" for name, value in given.items()]
    assert run(["serve", "--fidelity", "first-order", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    stated = Deployment.parse({"model": "llama3_70b", "cluster": {"device": "h100"}, "tp": 8})
    other = pj.project_serving(deployment=stated, fidelity="first-order")
    assert other.gpus == 8
    noted = {"model": "llama3_70b", "device": "h100", "engine": "vllm"}
    warned = pj.project_serving(deployment=noted, fidelity="first-order").warnings
    assert "engine has no meaning" in warned[-1]
    with pytest.raises(ConfigError, match="rate_per_s has no meaning"):
        pj.project_serving(**given, rate_per_s=1.0, fidelity="first-order")
    with pytest.raises(ConfigError, match="know no front"):
        pj.project_serving(**given, front=True, fidelity="first-order")


def test_json():
    found = serving("trillium", dtype="int8", batch=4, output=100).to_dict()
    assert {"ttft_ms", "tpot_ms", "max_batch", "kv_cache_gib", "bound_decode"} <= found.keys()
    assert found["provenance"]["times"] == "first-order"
    assert json.loads(json.dumps(found)) == found
    assert "first-order" in repr(serving())


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tp": 0}, "tp is an integer"),
        ({"batch": True}, "batch is an integer"),
        ({"output": -1}, "output is an integer"),
        ({"weights": "int2"}, "unknown type 'int2'"),
        ({"device": "trn2", "dtype": "int8"}, "has no peak of int8"),
    ],
)
def test_bad_input_is_named(given, match):
    with pytest.raises(ConfigError, match=match):
        serving(**given)


def run_of(**run):
    job = load_first_order_job(JOB, {f"run.{name}": value for name, value in run.items()})
    step = project_performance([job])[0]
    return step, step.run


def test_a_run_is_its_steps():
    step, run = run_of(tokens=1e12)
    steps = 1e12 / (256 * 8192)
    assert run.days == pytest.approx(steps * step.iteration_time_s / 86400)
    assert run.gpu_hours == pytest.approx(run.days * 24 * 128)
    assert run.cost_usd is None
    assert "owned_multiplier" not in run.to_dict()
    assert run_of(steps=100)[1].tokens == 100 * 256 * 8192
    assert step.to_dict()["run"] == run.to_dict()
    without = project_performance([load_first_order_job(JOB)])[0]
    assert without.run is None
    assert "run" not in without.to_dict()
    assert "<table>" in without._repr_html_()
    assert "<table>" in without.memory._repr_html_()


def test_a_run_costs_rent_or_ownership():
    _, rented = run_of(tokens=1e12, **{"cost.usd_per_gpu_hour": 2.0})
    assert rented.cost_usd == pytest.approx(2.0 * rented.gpu_hours)
    stated = {"cost.owned.enabled": True, "cost.owned.capex_usd_per_gpu": 30_000.0}
    _, owned = run_of(tokens=1e12, **stated)
    assert owned.owned_multiplier == pytest.approx(1.357, abs=1e-3)
    assert owned.cost_usd == pytest.approx(owned.gpu_hours * 1.357 * 30_000 / 26_280, rel=1e-3)
    _, listed = run_of(tokens=1e12, **{"cost.prices": "listed"})
    price = load_prices().rental_usd_per_gpu_hour["NVIDIA H100 SXM 80GB"].value
    assert listed.cost_usd == pytest.approx(price * listed.gpu_hours)
