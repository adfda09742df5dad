"""Layers on stages: Megatron's rules, layout strings, recomputation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import RecomputeConfig
from projector.errors import ConfigError
from projector.lower.stages import (
    RECOMPUTE_FULL,
    RECOMPUTE_NONE,
    LayerSettings,
    LayerSplit,
    parse_layout,
    stage_layout,
)


def model(layers, **fields):
    sizes = {
        "hidden_size": 512,
        "ffn_hidden_size": 2048,
        "num_attention_heads": 8,
        "vocab_size": 1000,
    }
    return ModelConfig(num_layers=layers, **{**sizes, **fields})


def layout(layers, recompute=None, mtp_loss=True, model_fields=None, **split):
    return stage_layout(
        model(layers, **(model_fields or {})),
        LayerSplit.of(ParallelismConfig(**split)),
        LayerSettings(recompute or RecomputeConfig(), False, 0, mtp_loss),
    )


def counts(stages):
    return [stage.num_layers for stage in stages]


def test_remainder_goes_to_the_first_stages():
    assert counts(layout(61, pp=4)) == [16, 15, 15, 15]


@given(st.integers(1, 200), st.integers(1, 16), st.integers(1, 8))
def test_every_layer_is_placed_once(layers, pp, vpp):
    vpp = vpp if pp > 1 else 1
    if pp * vpp > layers:
        with pytest.raises(ConfigError, match="cannot be laid out"):
            layout(layers, pp=pp, vpp=vpp)
        return
    stages = layout(layers, pp=pp, vpp=vpp)
    assert len(stages) == pp * vpp
    assert sum(counts(stages)) == layers
    assert max(counts(stages)) - min(counts(stages)) <= 1
    assert [stage.embedding for stage in stages] == [True] + [False] * (len(stages) - 1)
    assert [stage.head for stage in stages] == [False] * (len(stages) - 1) + [True]


def test_first_and_last_stage_are_given():
    stages = layout(
        62, pp=4, decoder_first_pipeline_num_layers=14, decoder_last_pipeline_num_layers=16
    )
    assert counts(stages) == [14, 16, 16, 16]


def test_given_ends_are_split_over_chunks():
    stages = layout(16, pp=2, vpp=2, decoder_first_pipeline_num_layers=6)
    assert counts(stages) == [3, 5, 3, 5]


def test_embedding_and_loss_count_as_layers():
    stages = layout(
        126,
        pp=16,
        vpp=8,
        account_for_embedding_in_pipeline_split=True,
        account_for_loss_in_pipeline_split=True,
    )
    assert counts(stages) == [0] + [1] * 126 + [0]


@pytest.mark.parametrize(
    ("pp", "expected"),
    [
        (2, [14, 10]),
        (4, [7, 7, 6, 4]),
        (8, [4, 3, 3, 4, 3, 3, 4, 0]),
        (16, [2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2, 0, 0]),
    ],
)
def test_stages_take_layers_until_they_exceed_their_share_of_the_work(pp, expected):
    # A layer weighs 4 * 512 + 3 * 2048 = 8192, and the output layer as much as 2.45 of them.
    by_work = {"pp": pp, "divide_pipeline_by_work": True}
    vocabulary = {"vocab_size": 20_102}
    assert counts(layout(24, model_fields=vocabulary, **by_work)) == expected
    with pytest.raises(ConfigError, match="cannot be laid out"):
        layout(pp - 1, model_fields=vocabulary, **by_work)


def test_a_layout_and_given_ends_count_before_the_work():
    by_work = {"pp": 2, "divide_pipeline_by_work": True}
    assert counts(layout(8, decoder_first_pipeline_num_layers=1, **by_work)) == [1, 7]
    stated = layout(8, pipeline_model_parallel_layout="Et*3|t*5L", **by_work)
    assert counts(stated) == [3, 5]


def test_megatron_layout_string():
    stages = layout(
        61,
        pp=4,
        vpp=4,
        pipeline_model_parallel_layout="Et*3|(tt*3|)*14ttmL",
        model_fields={"mtp_num_layers": 1},
    )
    assert counts(stages) == [3] + [4] * 14 + [2]
    assert stages[-1].mtp == 1


def test_layout_string_expands():
    slots = parse_layout("Et*2|(tt|)*2,m|L")
    assert [slot.layers for slot in slots] == [2, 2, 2, 0, 0]
    assert slots[0].embedding
    assert slots[-1].head
    assert slots[3].mtp == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Ett|ttL", "has 2 stages"),
        ("Ett|tt|tt|tttL", "places 9 layers"),
        ("tt|tt|tt|ttL", "exactly one E"),
        ("Ett|tt|tt|tt", "exactly one L"),
        ("Ett|tt|tt|xxL", "has 'x'"),
        ("E(tt|)*3ttL)", "without '\\('"),
        ("E(tt|tt|tt|ttL", "without '\\)'"),
        ("Et*|tt|tt|tttttL", "without a count"),
        ("Et*99999|tt|tt|L", "at most four digits"),
        ("E((((t*9999)*9999)*9999)*9999)|tt|tt|L", "expands beyond"),
    ],
)
def test_bad_layout_strings(text, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        layout(8, pp=4, pipeline_model_parallel_layout=text)
    assert caught.value.key == "parallelism.pipeline_model_parallel_layout"


def modes(stages):
    return [
        [kind.recompute for kind, count in stage.layers for _ in range(count)] for stage in stages
    ]


def test_block_recomputation_takes_the_first_layers_of_each_chunk():
    recompute = RecomputeConfig(granularity="full", method="block", num_layers=1)
    assert (
        modes(layout(6, recompute, pp=2)) == [[RECOMPUTE_FULL, RECOMPUTE_NONE, RECOMPUTE_NONE]] * 2
    )


def test_uniform_recomputation_takes_all_layers():
    recompute = RecomputeConfig(granularity="full", method="uniform", num_layers=2)
    assert modes(layout(4, recompute)) == [[RECOMPUTE_FULL] * 4]


def test_listed_layers_are_recomputed():
    recompute = RecomputeConfig(granularity="full", layers=(0, 3))
    assert modes(layout(4, recompute)) == [
        [RECOMPUTE_FULL, RECOMPUTE_NONE, RECOMPUTE_NONE, RECOMPUTE_FULL]
    ]


def test_listed_layers_must_exist():
    with pytest.raises(ConfigError, match="names layer 4"):
        layout(4, RecomputeConfig(granularity="full", layers=(4,)))


def test_windowed_layers_are_spread():
    stages = layout(36, pp=2, model_fields={"sliding_window": 128, "sliding_window_layers": 18})
    windowed = [sum(count for kind, count in stage.layers if kind.windowed) for stage in stages]
    assert windowed == [9, 9]


def test_a_longer_layer_pattern_is_cut():
    moe = {
        "num_experts": 8,
        "router_topk": 2,
        "ffn_hidden_size": 64,
        "layer_freq": (0, 0, 0, 1, 1, 1),
    }
    assert model(4, moe=moe).moe_layers == (False, False, False, True)
    with pytest.raises(ConfigError, match="lists only 6 of 8"):
        ModelConfig.parse(model(8).model_dump() | {"moe": moe}, path="model")
