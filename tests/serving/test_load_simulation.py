import numpy as np
import pytest

from projector.errors import ConfigError
from projector.serving.capacity import Targets, capacity
from projector.serving.deployment import Deployment
from projector.serving.load import Load, Scheduler
from projector.serving.simulation import longest_of, replica_of, serve_all, simulate_load
from serving.steps import Step, step_times


def deploy(model="llama3_8b", device="h100", **settings):
    return Deployment.parse({"model": model, "cluster": {"device": device}, **settings})


def load(**settings):
    lengths = {"input_tokens": 512, "output_tokens": 64, "requests": 200}
    return Load.parse(lengths | settings)


def test_offline_batch_that_fits_takes_the_sum_of_its_steps():
    deployment, batch, tokens_in, tokens_out = deploy(), 16, 512, 65
    result = simulate_load(
        deployment,
        load(arrival="offline", requests=batch, output_tokens=tokens_out),
    )
    steps = [Step(deployment, batch, tokens_in)]
    steps += [Step(deployment, batch, 1, tokens_in + past) for past in range(tokens_out - 1)]
    assert result.makespan_s == pytest.approx(step_times(steps).latency_s.sum(), rel=0.01)
    assert result.steps == len(steps)
    assert result.output_tokens_per_s == pytest.approx(batch * tokens_out / result.makespan_s)
    assert result.mean_batch == pytest.approx(batch)


def test_rare_requests_see_an_idle_replica():
    deployment = deploy()
    result = simulate_load(deployment, load(arrival="constant", rate_per_s=0.1, requests=20))
    times = step_times([Step(deployment, 1, 512), Step(deployment, 1, 1, 512 + 31)])
    assert result.ttft_s == pytest.approx(times.latency_s[0], rel=0.02)
    assert result.tpot_s == pytest.approx(times.latency_s[1], rel=0.02)
    assert not result.saturated
    assert result.utilisation < 0.1


def test_a_request_at_a_server_waits_beside_its_steps():
    arrivals = load(arrival="constant", rate_per_s=0.1, requests=20)
    alone, served = (
        simulate_load(deploy(engine="vllm_async", engine_constants={"request_ms": delay}), arrivals)
        for delay in (0.0, 40.0)
    )
    assert served.ttft_s == pytest.approx(alone.ttft_s + 0.04)
    assert served.e2e_s == pytest.approx(alone.e2e_s + 0.04)
    assert served.tpot_s == pytest.approx(alone.tpot_s)


def test_a_request_to_a_busy_replica_waits_for_the_step_that_is_planned():
    host = {"request_ms": 0.0, "step_us": 500.0, "sequence_us": 5.0}
    arrivals = load(arrival="constant", rate_per_s=10.0, output_tokens=200)
    plain, overlapped = (
        simulate_load(deploy(engine=engine, engine_constants=host), arrivals)
        for engine in ("vllm", "vllm_async")
    )
    more_s = overlapped.percentile_s("ttft", 50) - plain.percentile_s("ttft", 50)
    assert 0.5 * plain.percentile_s("tpot", 50) < more_s < 1.5 * plain.percentile_s("tpot", 50)
    assert overlapped.percentile_s("tpot", 50) == pytest.approx(
        plain.percentile_s("tpot", 50), rel=0.02
    )


def test_layers_of_latent_attention_take_longer_on_amd_devices():
    one = {"request_ms": 0.0, "latent_layer_us": 100.0}
    for device, layers in (("mi300x", 27), ("h200", 0)):
        plain, slow = (
            step_times([Step(deploy("deepseek_v2_lite", device, engine="sglang",
                                    engine_constants=each), 4, 1, 100)]).latency_s[0]
            for each in ({**one, "latent_layer_us": 0.0}, one)
        )  # fmt: skip
        assert slow - plain == pytest.approx(layers * 100e-6)


def test_a_result_does_not_depend_on_others():
    loads = [load(rate_per_s=rate) for rate in (5.0, 20.0, 80.0)]
    drawn = [item.draw() for item in loads]
    replicas = [replica_of(deploy(), Scheduler(), longest_of(each)) for each in drawn]
    together = serve_all(list(zip(replicas, loads, drawn, strict=True)), threads=3)
    alone = [simulate_load(deploy(), item) for item in loads]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.ttft_s, other.ttft_s)
        assert one.to_dict() == other.to_dict()
    busy = [result.mean_batch for result in together]
    assert busy == sorted(busy)


def test_more_than_a_replica_holds_is_called_saturated():
    result = simulate_load(deploy(), load(rate_per_s=10_000.0, requests=2000))
    assert result.saturated
    assert result.to_dict()["saturated"] is True


def test_small_cache_makes_waves():
    # Weights leave room for a few thousand tokens.
    tight = deploy(gpu_memory_utilization=0.25)
    offline = load(arrival="offline", output_tokens=256)
    few, many = simulate_load(tight, offline), simulate_load(deploy(), offline)
    assert few.mean_batch < many.mean_batch
    assert few.preemptions > 0
    reserved = simulate_load(tight, offline, Scheduler(admission="whole_sequence"))
    assert reserved.preemptions == 0
    assert reserved.cache_peak <= 1.0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="fit"):
        simulate_load(deploy("llama3_70b"), load(arrival="offline"))


def test_capacity_is_the_largest_rate_within_the_targets():
    targets = Targets(ttft_ms=300.0, tpot_ms=15.0, percentile=90.0)
    demand = load(rate_per_s=100.0, requests=400)
    found = capacity(deploy(), demand, targets)
    assert found.replicas == -(-100.0 // found.replica_rate_per_s)
    assert found.gpus == found.replicas
    assert targets.met_by(found.result)
    largest = found.replica_rate_per_s
    assert targets.met_by(simulate_load(deploy(), demand.at_rate(largest)))
    assert not targets.met_by(simulate_load(deploy(), demand.at_rate(1.02 * largest)))
    tighter = capacity(deploy(), demand, Targets(ttft_ms=300.0, tpot_ms=10.0, percentile=90.0))
    assert tighter.replica_rate_per_s < largest
    assert tighter.replicas > found.replicas


def test_targets_that_nothing_meets():
    found = capacity(deploy(), load(rate_per_s=1.0), Targets(ttft_ms=0.01))
    assert found.replicas is None
    assert found.gpus is None
    assert found.to_dict()["replica_rate_per_s"] == 0.0
    with pytest.raises(ConfigError, match="rate"):
        capacity(deploy(), load(arrival="offline"), Targets())


@pytest.mark.parametrize(("tp", "pp", "attention_dp"), [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_other_layouts_serve(tp, pp, attention_dp):
    deployment = deploy("mixtral_8x7b", tp=2 * tp, pp=pp, attention_dp=attention_dp)
    result = simulate_load(deployment, load(rate_per_s=5.0))
    assert not result.saturated
    assert np.all(result.ttft_s > 0.0)


def test_cached_prefixes_and_proposed_tokens_make_a_replica_faster():
    plain = simulate_load(deploy(), load(arrival="offline"))
    cached = simulate_load(deploy(prefix_share=0.75), load(arrival="offline"))
    assert cached.makespan_s < 0.75 * plain.makespan_s
    assert cached.recomputed_share == pytest.approx(0.0)
    drafting = deploy(speculative={"tokens": 3, "acceptance": 0.8, "draft_share": 0.1})
    rare = load(arrival="constant", rate_per_s=0.1, requests=10)
    token_s = [simulate_load(each, rare).tpot_s.mean() for each in (drafting, deploy())]
    assert token_s[0] < 0.6 * token_s[1]
