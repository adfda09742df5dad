"""Constants of inference that belong to no device and no engine: ``hardware/inference.yaml``."""

from functools import cache
from typing import Any

from pydantic import Field

from projector.config import resources
from projector.config._base import Config, NotNegative, Positive
from projector.config.yaml_file import read_yaml

FILE = "inference.yaml"


class InferenceOperators(Config):
    """What operators around the matrix products move and launch."""

    router_score_bytes: NotNegative
    """Of a score of a token and an expert."""

    router_pick_bytes: NotNegative
    """Of a pick of a token."""

    router_kernels: NotNegative
    """That pick experts and find the places of tokens."""

    sample_logit_bytes: NotNegative
    """Of a logit, moved to pick a token."""

    sample_kernels: NotNegative
    """That do so."""

    decode_attention_kernels: NotNegative
    """Of attention to the cache in a decode step."""


class InferenceMemory(Config):
    """What an engine holds beside weights and cache."""

    gemm_workspaces: NotNegative
    """Workspaces of GEMM libraries."""

    stream_bytes: NotNegative
    """Of an element of the residual stream."""

    logit_bytes: NotNegative
    """Of a logit."""


class BenchmarkRouting(Config):
    """How benchmarks of layers of experts draw their loads."""

    power_law_share: Positive
    """Share of the tokens up to which a power-law draw reaches, from 1."""

    sparse_low: Positive
    """Least draw with at most one pair of token and expert for each expert."""

    sparse_high: Positive
    """Largest such draw."""

    groups: int = Field(gt=0)
    """Of experts, in group-limited routing."""

    kept_groups: int = Field(gt=0)
    """Groups that a token keeps."""

    few_experts: int = Field(ge=0)
    """Fewer experts on a rank get half of the work-groups each, where their number is fixed."""


@cache
def inference_operators() -> InferenceOperators:
    """Return what operators move and launch."""
    return InferenceOperators.parse(_section("operators"), path=f"{FILE}: operators")


@cache
def inference_memory() -> InferenceMemory:
    """Return what an engine holds."""
    return InferenceMemory.parse(_section("memory"), path=f"{FILE}: memory")


@cache
def benchmark_routing() -> BenchmarkRouting:
    """Return how benchmarks draw loads."""
    return BenchmarkRouting.parse(_section("routing"), path=f"{FILE}: routing")


def _section(name: str) -> dict[str, Any]:
    table = read_yaml(resources.data_dir("hardware") / FILE, key=FILE)
    return {key: entry["value"] for key, entry in table[name].items()}
