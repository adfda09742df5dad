"""The drain of a batch of responses, against a plain replica and the simulation of a load."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.config.cluster import ClusterConfig
from projector.rl.job import Responses
from projector.rl.rollout import in_turn, pieces_of, rollouts
from projector.serving.deployment import Deployment
from projector.serving.generation import Generation, generation_times
from projector.serving.load import Drawn, Lengths, Load, Scheduler
from projector.serving.simulation import longest_of, replica_of, serve_all
from reference.rollout import steps_of
from thoroughness import examples

H100 = ClusterConfig.parse({"device": "h100", "nodes": 1})
ONE = Deployment.parse({"model": "llama3.1_8b", "cluster": H100})
MANY = st.lists(st.integers(1, 40), min_size=1, max_size=24).filter(lambda each: max(each) > 1)


def rollout(tokens, *, deployment=ONE, gpus=1, engine=None, **settings):
    asked = Responses.parse({"prompts": 64, "prompt_tokens": 100, "tokens": tokens} | settings)
    return rollouts([deployment], [gpus], asked, engine or Scheduler())[0]


@settings(max_examples=examples(200))
@given(MANY, st.integers(1, 30))
def test_pieces_are_the_steps_of_a_plain_replica(tokens, slots):
    pieces = pieces_of(np.array(tokens), slots)
    plain = steps_of(tokens, slots)
    assert pieces.steps.sum() == len(plain)
    assert np.repeat(pieces.batch, pieces.steps).tolist() == [batch for batch, _ in plain]

    # Any step that is linear in the position has the same sum.
    def step_s(batch, position):
        return np.sqrt(batch) + 0.03 * batch * position

    mine = float((pieces.steps * step_s(pieces.batch, pieces.position)).sum())
    assert mine == pytest.approx(sum(step_s(*each) for each in plain), rel=1e-12)


@settings(max_examples=examples(200))
@given(MANY, st.integers(1, 30), st.data())
def test_longer_responses_never_end_earlier(tokens, slots, data):
    more = data.draw(st.lists(st.integers(0, 9), min_size=len(tokens), max_size=len(tokens)))
    longer = [one + other for one, other in zip(tokens, more, strict=True)]
    both = (pieces_of(np.array(each), slots).steps.sum() for each in (tokens, longer))
    assert next(both) <= next(both)


def test_lengths_in_turn_are_all_of_them_and_each_part_is_alike():
    lengths = np.arange(1000)
    mixed = in_turn(lengths)
    assert sorted(mixed.tolist()) == lengths.tolist()
    assert all(abs(part.mean() - 499.5) < 30 for part in np.split(mixed, 10))


def test_quantiles_have_the_mean_and_spread_of_what_is_drawn():
    levels = (np.arange(20_000) + 0.5) / 20_000
    for lengths in ({"kind": "lognormal", "mean": 300, "cv": 0.5}, {"kind": "uniform", "high": 9}):
        asked = Lengths.parse(lengths)
        drawn = Load(rate_per_s=1.0, requests=20_000, output_tokens=asked).draw().output_tokens
        assert asked.quantiles(levels).mean() == pytest.approx(drawn.mean(), rel=0.02)
        assert asked.quantiles(levels).std() == pytest.approx(drawn.std(), rel=0.05)


def test_the_mean_is_that_of_what_is_cut():
    tokens = {"kind": "lognormal", "mean": 3000, "high": 3896}
    asked = Responses.parse({"prompts": 512, "prompt_tokens": 200, "tokens": tokens})
    assert asked.mean_tokens == pytest.approx(3200, rel=1e-3)
    assert asked.longest == 4096


def test_equal_responses_are_a_generation():
    plain = generation_times([Generation(ONE, 64, 100, 500)])
    assert rollout(500).decode_s == pytest.approx(plain.decode_s[0], rel=1e-3)
    assert rollout(500).mean_batch == 64


def test_a_longer_tail_is_never_faster():
    times = [
        rollout({"kind": "lognormal", "mean": 500, "cv": cv, "high": 4000}).decode_s
        for cv in (0.1, 0.3, 0.6, 1.0, 2.0)
    ]
    assert times == sorted(times)
    assert times[-1] > 3 * times[0]


@pytest.mark.parametrize("slots", [16, 64, 256])
def test_the_simulation_of_a_load_takes_as_long(slots):
    tokens = {"kind": "lognormal", "mean": 400, "cv": 0.8, "high": 2000}
    engine = Scheduler(max_num_seqs=slots)
    mine = rollout(tokens, engine=engine, prompts=256)
    asked = Responses.parse({"prompts": 256, "prompt_tokens": 100, "tokens": tokens})
    outputs = in_turn(asked.lengths(256))
    drawn = Drawn(np.zeros(256), np.full(256, 100), outputs)
    replica = replica_of(ONE, engine, longest_of(drawn))
    load = Load.parse({"arrival": "offline", "requests": 256})
    (found,) = serve_all([(replica, load, drawn)])
    assert mine.prefill_s + mine.decode_s == pytest.approx(found.makespan_s, rel=0.04)


def test_slots_are_what_fits_when_most_is_cached():
    scarce = ONE.model_copy(update={"gpu_memory_utilization": 0.25})
    found = rollout(2000, deployment=scarce, prompts=256)
    assert 0 < found.slots < 256
    held = found.memory.max_batch(2100)
    assert found.slots == held
    nothing = ONE.model_copy(update={"gpu_memory_utilization": 0.2})
    assert rollout(2000, deployment=nothing).slots == 0


def test_columns_equal_each_alone():
    two = Deployment.parse({"model": "llama3.1_8b", "cluster": H100, "tp": 2, "pp": 2})
    tokens = {"kind": "lognormal", "mean": 300, "high": 900}
    asked = Responses.parse({"prompts": 40, "group": 4, "prompt_tokens": 50, "tokens": tokens})
    both = rollouts([ONE, two], [8, 8], asked, Scheduler())
    for deployment, found in zip((ONE, two), both, strict=True):
        (alone,) = rollouts([deployment], [8], asked, Scheduler())
        assert alone == found._replace(memory=alone.memory)
    assert [each.responses for each in both] == [20, 80]
