import numpy as np
import pytest

import projector as pj
from projector.errors import ConfigError
from projector.serving.deployment import Deployment
from projector.serving.rates import LoadGrid, Rates, decode_times, load_rates
from serving.steps import Step, speculated_times


def deploy(model, device="h100", **fields):
    return Deployment.parse({"model": model, "cluster": {"device": device, "nodes": 2}, **fields})


DRAFTS = {"tokens": 4, "acceptance": 0.7}
DEPLOYMENTS = (
    deploy("llama3_8b"),
    deploy("llama3.1_70b", tp=4, pp=2, weights="int4"),
    deploy("mixtral_8x7b", "mi300x", tp=2, attention_dp=4, ep=8, prefix_share=0.5),
    deploy("gemma2_2b", prefix_share=0.99),
    deploy("llama3.1_70b", tp=4, speculative={**DRAFTS, "draft": "llama3_8b"}),
    deploy("deepseek_v3", tp=8, speculative={**DRAFTS, "draft_share": 0.2}),
    deploy("llama3_8b", pp=2, speculative={"tokens": 3, "acceptance": 0.5, "draft_share": 0.1}),
)
NAMES = list(Rates.__dataclass_fields__)


def some_loads(count=40):
    rng = np.random.default_rng(5)
    return LoadGrid.of(
        DEPLOYMENTS,
        deployment=rng.integers(0, len(DEPLOYMENTS), count),
        batch=rng.integers(1, 300, count),
        context=rng.integers(1, 9000, count),
        output=rng.choice([0, 1, 200], count),
        prompts=rng.choice([0, 1, 4], count),
    )


def test_each_load_of_a_grid_is_that_load_alone():
    grid = some_loads()
    together = load_rates(grid)
    for row in range(len(grid)):
        alone = load_rates(grid.take(np.array([row])))
        for name in NAMES:
            assert getattr(together, name)[row] == getattr(alone, name)[0], name


def test_proposed_tokens_are_those_of_steps():
    grid = LoadGrid.of(DEPLOYMENTS, deployment=[4, 5, 0], batch=[8, 3, 5], context=1000)
    found = decode_times(grid)
    steps = [Step(DEPLOYMENTS[row], batch, 1, 1000) for row, batch in ((4, 8), (5, 3), (0, 5))]
    expected = speculated_times(steps)
    np.testing.assert_array_equal(found.token_s, expected.token_s)


def test_order_changes_no_bit():
    grid = some_loads()
    order = np.random.default_rng(6).permutation(len(grid))
    moved, stayed = load_rates(grid.take(order)), load_rates(grid)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(moved, name), getattr(stayed, name)[order])


def test_a_projection_is_a_load_of_its_own():
    grid = LoadGrid.of(DEPLOYMENTS, deployment=1, batch=[8, 16], context=1000, output=64)
    rates = load_rates(grid)
    found = pj.project_serving(deployment=DEPLOYMENTS[1], batch=16, context=1000, output=64)
    assert found.tokens_per_s_per_gpu == rates.tokens_per_s_per_gpu[1]
    assert found.max_batch == rates.max_batch[1]


def test_throughput_rises_and_speed_falls_with_the_batch():
    rates = load_rates(LoadGrid.of(DEPLOYMENTS, batch=2 ** np.arange(9), output=100))
    assert np.all(np.diff(rates.tokens_per_s_per_gpu) > 0.0)
    assert np.all(np.diff(rates.tokens_per_s_per_user) < 0.0)


def test_a_cached_prefix_shortens_the_time_to_the_first_token():
    plain, cached = (
        load_rates(LoadGrid.of([deploy("llama3_8b", prefix_share=share)], context=4096)).ttft_s[0]
        for share in (0.0, 0.75)
    )
    assert cached < 0.5 * plain


@pytest.mark.parametrize(("key", "value"), [("batch", 0), ("context", 0), ("output", -1)])
def test_bad_loads_are_refused(key, value):
    with pytest.raises(ConfigError) as caught:
        load_rates(LoadGrid.of(DEPLOYMENTS, **{key: value}))
    assert caught.value.key == key


def test_no_loads_have_no_rates():
    assert len(load_rates(LoadGrid.of(DEPLOYMENTS, batch=[])).ttft_s) == 0
