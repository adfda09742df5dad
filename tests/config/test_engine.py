from typing import get_args

import pytest

from projector.config.engine import (
    WeightType,
    dequantising,
    engine_named,
    engines,
    weight_formats,
)
from projector.errors import ConfigError


def test_every_engine_says_everything():
    assert engines().keys() >= {"generic", "vllm", "tensorrt_llm", "sglang", "torch_eager"}
    assert engines()["torch_eager"].is_eager
    assert not engines()["torch_eager"].decode_graph
    assert not engines()["vllm"].is_eager


@pytest.mark.parametrize(
    ("name", "key"), [("vLLM", "vllm"), ("TRT-LLM", "tensorrt_llm"), ("gpt-fast", "torch_compile")]
)
def test_an_engine_has_several_names(name, key):
    assert engine_named(name) == key


def test_an_unknown_engine_is_named():
    with pytest.raises(ConfigError, match="turbo") as caught:
        engine_named("turbo")
    assert caught.value.allowed == list(engines())


def test_every_weight_type_has_a_format():
    assert weight_formats().keys() == set(get_args(WeightType))
    assert 0.0 <= dequantising().exposed_share <= 1.0


@pytest.mark.parametrize(
    ("name", "group", "size"),
    [("int8", None, 1.0), ("int4", 32, 0.625), ("int4", None, 0.53125), ("mxfp4", None, 0.53125)],
)
def test_scales_count(name, group, size):
    assert weight_formats()[name].bytes_per_weight(group) == size
