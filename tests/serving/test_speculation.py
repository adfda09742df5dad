import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.serving.deployment import Deployment, SpeculativeConfig
from projector.serving.generation import Generation, generation_times
from projector.serving.memory import serving_memory
from projector.serving.points import draft_deployment
from serving.steps import Step, decode_time_s, speculated_times, step_times

MTP = {"extends": "deepseek_v3", "mtp_num_layers": 1}


def deploy(model="llama3_70b", device="h100", tp=8, **settings):
    return Deployment.parse({"model": model, "cluster": {"device": device}, "tp": tp, **settings})


def drafting(**changes):
    return {"tokens": 4, "acceptance": 0.8, "draft": "llama3_8b", **changes}


@given(st.integers(1, 16), st.floats(0, 1))
def test_expected_tokens_are_those_of_independent_trials(tokens, acceptance):
    found = SpeculativeConfig(tokens=tokens, acceptance=acceptance, draft_share=0.0)
    # One of the model, and each proposed one where all before it were accepted.
    expected = sum(acceptance**count for count in range(tokens + 1))
    assert found.tokens_per_step == pytest.approx(expected, rel=1e-9)
    assert 1.0 <= found.tokens_per_step <= tokens + 1


def test_expected_tokens_are_those_of_drawn_trials():
    generator = np.random.default_rng(0)
    accepted = generator.random((20_000, 4)) < 0.8
    gained = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
    config = SpeculativeConfig(tokens=4, acceptance=0.8, draft_share=0.0)
    assert gained.mean() == pytest.approx(config.tokens_per_step, rel=0.02)


def test_a_step_is_its_drafts_and_its_verification():
    deployment = deploy(speculative=drafting())
    draft = draft_deployment(deployment)
    assert (draft.model.name, draft.tp) == ("Llama-3-8B", 8)
    verify, one = step_times(
        [Step(deployment, 4, 1, 1000, draft_tokens=4), Step(draft, 4, 1, 1000)]
    ).latency_s
    times = speculated_times([Step(deployment, 4, 1, 1000)])
    assert times.verify_s[0] == verify
    assert times.draft_s[0] == pytest.approx(4 * one)
    assert times.token_s[0] == pytest.approx((verify + 4 * one) / times.tokens[0])
    assert decode_time_s(deployment, 4, 1000) == times.token_s[0]


def test_without_speculation_nothing_changes():
    plain = deploy()
    steps = [Step(plain, 4, 1, 1000), Step(plain, 2, 100)]
    times = speculated_times(steps)
    assert times.step_s.tolist() == step_times(steps).latency_s.tolist()
    assert times.tokens.tolist() == [1.0, 1.0]


def test_proposals_that_are_never_accepted_only_cost():
    for given_draft in (
        drafting(acceptance=0.0),
        {"tokens": 2, "acceptance": 0.0, "draft_share": 0},
    ):
        assert decode_time_s(deploy(speculative=given_draft), 4, 1000) > decode_time_s(
            deploy(), 4, 1000
        )


def test_more_acceptance_is_never_slower():
    times = [
        decode_time_s(deploy(speculative=drafting(acceptance=rate)), 1, 1000)
        for rate in (0.0, 0.3, 0.6, 0.9, 1.0)
    ]
    assert times == sorted(times, reverse=True)
    assert times[-1] < decode_time_s(deploy(), 1, 1000)


def test_speculation_pays_less_in_large_batches():
    plain, looked_up = (
        deploy(),
        deploy(speculative={"tokens": 4, "acceptance": 0.6, "draft_share": 0}),
    )
    gains = [
        decode_time_s(plain, batch, 500) / decode_time_s(looked_up, batch, 500)
        for batch in (1, 64, 512)
    ]
    assert gains == sorted(gains, reverse=True)


def test_a_share_is_of_the_step_without_speculation():
    share = deploy(speculative={"tokens": 3, "acceptance": 0.5, "draft_share": 0.25})
    plain_s = step_times([Step(deploy(), 2, 1, 100)]).latency_s[0]
    assert speculated_times([Step(share, 2, 1, 100)]).draft_s[0] == pytest.approx(0.25 * plain_s)


def test_a_module_of_the_model_has_one_layer_and_joins():
    plain = deploy(MTP, "h200", dtype="fp8")
    groups = {"tp": 1, "attention_dp": 8, "ep": 8, "dtype": "fp8"}
    config = {"tokens": 1, "acceptance": 0.85, "draft": "mtp"}
    times = speculated_times([Step(deploy(MTP, "h200", **groups, speculative=config), 64, 1, 1000)])
    assert 0.0 < times.draft_s[0] < 0.1 * times.verify_s[0]
    # Kept whole: one layer, its projection of twice the width, and three norms.
    narrow = deploy(MTP, "h200", dtype="fp8", speculative=config)
    more = serving_memory(narrow).weights_bytes - serving_memory(plain).weights_bytes
    assert 0.9 * 11.5e9 / 8 < more < 1.2 * 11.5e9 / 8


def test_a_small_model_takes_memory():
    plain, both = serving_memory(deploy()), serving_memory(deploy(speculative=drafting()))
    small = serving_memory(deploy("llama3_8b"))
    assert both.weights_bytes == plain.weights_bytes + small.weights_bytes
    together = plain.cache_bytes(3, 100) + small.cache_bytes(3, 100)
    assert both.cache_bytes(3, 100) == together
    assert both.max_batch(1000) < plain.max_batch(1000)


def test_a_generation_gains_tokens_a_step():
    plain, faster = deploy(), deploy(speculative=drafting(acceptance=1.0, tokens=1))
    times = generation_times([Generation(each, 1, 100, 33) for each in (plain, faster)])
    assert times.prefill_s[0] == times.prefill_s[1]
    contexts = np.array([decode_time_s(faster, 1, context) for context in (100, 131)])
    assert 32 * contexts.min() <= times.decode_s[1] <= 32 * contexts.max()
    assert times.decode_s[1] < times.decode_s[0]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"tokens": 0, "acceptance": 0.5, "draft_share": 0}, "tokens"),
        ({"tokens": 2, "acceptance": 1.5, "draft_share": 0}, "acceptance"),
        ({"tokens": 2, "acceptance": 0.5}, "draft"),
        ({"tokens": 2, "acceptance": 0.5, "draft": "mtp"}, "draft"),
        ({"tokens": 2, "acceptance": 0.5, "draft": "no_such_model"}, "draft"),
        (drafting(draft_share=0.1), "draft"),
        (drafting(draft_tp=16), "draft_tp"),
        (drafting(draft_tp=3), "draft_tp"),
        ({"tokens": 2, "acceptance": 0.5, "draft_share": 0, "draft_tp": 2}, "draft_tp"),
    ],
)
def test_impossible_speculation_is_named(config, key):
    with pytest.raises(ConfigError) as caught:
        deploy(speculative=config)
    assert key in caught.value.key
