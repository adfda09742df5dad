import numpy as np
import pytest

from projector.errors import ConfigError
from projector.operations.emit import emit_inference
from projector.serving.deployment import Deployment
from projector.serving.transfers import cached_prefix_tokens
from serving.steps import (
    Step,
    columns_of,
    decode_time_s,
    prefill_time_s,
    prompt_grid,
    step_of,
    step_times,
)

MODELS = ("llama3_8b", "mixtral_8x7b", "deepseek_v2_lite", "gemma2_2b")


def deploy(model="llama3_8b", device="h100", **settings):
    return Deployment.parse({"model": model, "cluster": {"device": device}, **settings})


def seconds(*steps):
    return step_times(steps).latency_s


def rows_of(step, label):
    columns = columns_of([step])
    table = emit_inference(columns.shapes, columns.extents)
    return table, np.flatnonzero(table.label == table.labels.index(label))


@pytest.mark.parametrize("model", MODELS)
def test_chunks_alone_are_a_prefill(model):
    deployment = deploy(model)
    for tokens, context in ((256, 0), (64, 512)):
        prompts, chunks = step_times(
            [
                Step(deployment, 3, tokens, context),
                Step(
                    deployment, 0, prefill_tokens=tokens, prefill_context=context, prefill_batch=3
                ),
            ]
        ).breakdown_s
        assert list(prompts) == list(chunks)


@pytest.mark.parametrize("model", MODELS)
def test_a_mixed_step_costs_less_than_both_apart_and_more_than_either(model):
    deployment = deploy(model, prefill_graph=True)
    decode, chunk = Step(deployment, 64, 1, 2000), Step(deployment, 1, 512, 1024)
    mixed = Step(deployment, 64, 1, 2000, prefill_tokens=512, prefill_context=1024)
    of_decode, of_chunk, of_both = seconds(decode, chunk, mixed)
    assert max(of_decode, of_chunk) < of_both < of_decode + of_chunk


def test_gemms_are_of_all_tokens_and_attention_is_apart():
    step = Step(deploy(), 64, 1, 2000, prefill_tokens=500, prefill_context=1000, prefill_batch=2)
    table, (qkv,) = rows_of(step, "attention.qkv")
    assert table.m[qkv] == 64 + 1000
    table, (prompt, decode) = rows_of(step, "attention.core")
    extents = (table.batch[prompt], table.m[prompt], table.n[prompt])
    assert extents == (2, 500, 1500)
    assert table.bytes[decode] == 64 * 2001 * 2 * 8 * 128 * 2
    # The head sees each sequence that decodes and the last token of each prompt.
    table, (head,) = rows_of(step, "head.output")
    assert table.m[head] == 66


def test_latents_are_folded_for_decode_and_unfolded_for_prompts():
    step = Step(deploy("deepseek_v2_lite"), 8, 1, 100, prefill_tokens=50, prefill_context=30)
    table, (unfold,) = rows_of(step, "attention.kv_up")
    assert table.m[unfold] == 50
    table, (again,) = rows_of(step, "attention.kv_up.cached")
    assert table.m[again] == 30
    table, (folded,) = rows_of(step, "attention.absorb_k")
    assert table.m[folded] == 8


def test_drafted_tokens_share_the_cache_that_is_read():
    plain, drafted = (Step(deploy(), 4, 1, 1000, draft_tokens=k) for k in (0, 3))
    tables = [rows_of(step, "attention.core") for step in (plain, drafted)]
    (first, (one,)), (second, (two,)) = tables
    assert second.bytes[two] / first.bytes[one] == pytest.approx(1004 / 1001)
    assert second.flop[two] / first.flop[one] == pytest.approx(4 * 1004 / 1001)
    table, (head,) = rows_of(drafted, "head.output")
    assert table.m[head] == 16
    assert seconds(plain)[0] < seconds(drafted)[0] < 1.5 * seconds(plain)[0]


@pytest.mark.parametrize(
    "step",
    [
        Step(deploy(), 2, 64, prefill_tokens=8),
        Step(deploy(), 2, 64, draft_tokens=8),
        Step(deploy(), 0),
        Step(deploy(), 2, prefill_tokens=-1),
        Step(deploy(), 2, prefill_tokens=1, prefill_batch=0),
    ],
)
def test_impossible_steps_are_refused(step):
    with pytest.raises(ConfigError):
        step_times([step])


def test_a_prompt_in_chunks_is_the_sum_of_its_chunks():
    deployment = deploy()
    whole = prefill_time_s(deployment, 1, 4096)
    assert prefill_time_s(deployment, 1, 4096, chunk_tokens=4096) == whole
    steps = [Step(deployment, 1, 1500, context) for context in (0, 1500)]
    steps.append(Step(deployment, 1, 1096, 3000))
    chunked = prefill_time_s(deployment, 1, 4096, chunk_tokens=1500)
    assert chunked == pytest.approx(seconds(*steps).sum())
    assert chunked > whole
    smaller = [prefill_time_s(deployment, 1, 4096, chunk_tokens=n) for n in (128, 512, 2048, 4096)]
    assert smaller == sorted(smaller, reverse=True)


def test_a_budget_is_shared_by_the_prompts_of_a_batch():
    steps = prompt_grid(deploy(), 4, 1000, chunk_tokens=2048)
    assert steps.prefill_batch.tolist() == [4, 4]
    assert steps.prefill_tokens.tolist() == [512, 488]
    assert steps.prefill_context.tolist() == [0, 512]


def test_without_a_prefix_nothing_changes():
    plain, none = prompt_grid(deploy(), 2, 1000), prompt_grid(deploy(prefix_share=0.0), 2, 1000)
    assert {name: each.tolist() for name, each in none.counts.items()} == {
        name: each.tolist() for name, each in plain.counts.items()
    }


def test_a_cached_prefix_spares_compute_and_is_read():
    plain, shared = deploy(), deploy(prefix_share=0.5)
    times = prefill_time_s(plain, 1, 2048), prefill_time_s(plain, 1, 4096)
    assert times[0] < prefill_time_s(shared, 1, 4096) < times[1]
    assert prefill_time_s(shared, 1, 4096) == seconds(Step(shared, 1, 2048, 2048))[0]
    assert decode_time_s(plain, 2, 100) == decode_time_s(shared, 2, 100)
    shares = [prefill_time_s(deploy(prefix_share=x), 1, 4096) for x in (0.0, 0.25, 0.5, 0.9, 0.99)]
    assert shares == sorted(shares, reverse=True)


def test_prefixes_are_of_whole_pages_and_leave_a_token():
    deployment = deploy(prefix_share=0.5, page_tokens=64)
    assert cached_prefix_tokens(deployment, 1000) == 448
    assert cached_prefix_tokens(deploy(prefix_share=0.999, page_tokens=1), 100) == 99
    step = step_of(prompt_grid(deploy(prefix_share=0.999, page_tokens=1), 3, 100), 0)
    assert (step.prefill_batch, step.prefill_tokens, step.prefill_context) == (3, 1, 99)
