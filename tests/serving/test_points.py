import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.serving.columns import COUNTS
from projector.serving.deployment import Deployment
from projector.serving.points import StepGrid, grid_times
from serving.steps import Step, step_of, step_times
from thoroughness import examples


def deploy(model, device="h100", **fields):
    return Deployment.parse({"model": model, "cluster": {"device": device, "nodes": 4}, **fields})


DEPLOYMENTS = (
    deploy("llama3_8b"),
    deploy("llama3.1_70b", tp=4, pp=2, weight_bits=4),
    deploy("mixtral_8x7b", "mi300x", tp=2, attention_dp=4, ep=8),
    deploy("deepseek_v2_lite", tp=2, dtype="fp8"),
    deploy("deepseek_v3", tp=1, attention_dp=16, ep=16, kv_cache_bytes=1),
    deploy("gemma2_2b", "a100", decode_graph=False, step_overhead_us=50.0),
)

small, cached = st.integers(1, 40), st.integers(0, 5000)
one = st.fixed_dictionaries(
    {"deployment": st.integers(0, len(DEPLOYMENTS) - 1), "batch": small, "context": cached}
)
prefill = st.fixed_dictionaries({"new_tokens": st.integers(2, 600)})
mixed = st.fixed_dictionaries(
    {
        "prefill_tokens": st.integers(1, 600),
        "prefill_context": cached,
        "prefill_batch": st.integers(1, 3),
        "draft_tokens": st.integers(0, 4),
    }
)
steps = st.tuples(one, st.one_of(st.just({}), prefill, mixed)).map(lambda both: both[0] | both[1])

USUAL = {"new_tokens": 1, "prefill_tokens": 0, "prefill_context": 0, "prefill_batch": 1}


def grid_of(given):
    columns = {
        name: [step.get(name, USUAL.get(name, 0)) for step in given]
        for name in ("deployment", *COUNTS)
    }
    return StepGrid.of(DEPLOYMENTS, **columns)


@settings(max_examples=examples(25))
@given(st.lists(steps, min_size=1, max_size=12))
def test_each_step_of_a_grid_is_that_step_alone(given):
    grid = grid_of(given)
    together = grid_times(grid)
    for row in range(len(grid)):
        alone = step_times([step_of(grid, row)])
        np.testing.assert_array_equal(together.breakdown_s[row], alone.breakdown_s[0])
        assert together.latency_s[row] == alone.latency_s[0]
        assert together.interval_s[row] == alone.interval_s[0]


def test_chunks_and_order_change_no_bit(monkeypatch):
    rng = np.random.default_rng(3)
    grid = StepGrid.of(
        DEPLOYMENTS,
        deployment=rng.integers(0, len(DEPLOYMENTS), 200),
        batch=rng.integers(1, 30, 200),
        context=rng.integers(0, 3000, 200),
        new_tokens=rng.choice([1, 1, 64], 200),
    )
    whole = grid_times(grid).latency_s
    monkeypatch.setattr("projector.serving.points.CHUNK", 7)
    order = rng.permutation(200)
    np.testing.assert_array_equal(grid_times(grid.take(order)).latency_s, whole[order])


def test_columns_are_broadcast():
    grid = StepGrid.of(DEPLOYMENTS, batch=[[1], [2], [4]], context=[10, 20])
    assert len(grid) == 6
    assert step_of(grid, 3) == Step(DEPLOYMENTS[0], 2, 1, 20)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"deployment": len(DEPLOYMENTS)}, "deployment"),
        ({"deployment": -1}, "deployment"),
        ({"batch": [1, 0]}, "batch"),
        ({"context": -1}, "batch"),
        ({"batch": 1 << 40}, "batch"),
        ({"new_tokens": 5, "prefill_tokens": 3}, "new_tokens"),
    ],
)
def test_bad_steps_are_refused(fields, key):
    with pytest.raises(ConfigError) as caught:
        grid_times(StepGrid.of(DEPLOYMENTS, **fields))
    assert caught.value.key == key


def test_no_steps_have_no_times():
    assert len(grid_times(StepGrid.of(DEPLOYMENTS, batch=[])).latency_s) == 0
