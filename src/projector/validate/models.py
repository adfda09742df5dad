"""The models that published tables name, as architectures we ship.

Names are compared without case and separators. Beyond the names of ``models/``, tables know
proxies (``llama3-70b-L12``, ``... 4-layer proxy``), variants that change the architecture, and
sizes that only a paper resolves; those stand here.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from projector.config import resources
from projector.config.model_file import model_data
from projector.errors import ProjectorError


class _Variant(NamedTuple):
    """A shipped model with fields replaced."""

    stem: str
    fields: Mapping[str, Any]


_GROK_NVIDIA = {"vocab_size": 128256, "activation": "swiglu", "tied_embeddings": False}
_DENSE_FIRST = {"moe": {"layer_freq": [0, 1, 1, 1]}}

_VARIANTS = {
    # NVIDIA's benchmark of Grok-1: README of dgxc-benchmarking v25.05.05 grok1.
    "grok1": _Variant("grok1", _GROK_NVIDIA),
    "grok1314b": _Variant("grok1", _GROK_NVIDIA),
    # SimuMax configs/models: one dense layer, and 16 key/value heads for the 405B proxy.
    "deepseekv3l4": _Variant("deepseek_v3", _DENSE_FIRST),
    "llama3405bl4": _Variant("llama3.1_405b", {"num_query_groups": 16}),
    "llama3405b": _Variant("llama3.1_405b", {}),
    "deepseekv2236b": _Variant("deepseek_v2", {}),
    "llama1bclass": _Variant("llama3.2_1b", {}),
    "megascale175b": _Variant("megascale_175b", {}),
    "gpt22b": _Variant("megatron_22b", {}),
    "gpt530b": _Variant("megatron_529.6b", {}),
    "gpt1t": _Variant("megatron_1008b", {}),
}
"""Normalised name -> variant, where it is more than a further spelling of a file's name."""

_HYBRID = re.compile(
    r"nemotron[_ -]?(3|v3|3[._]5)[_ -]?(5|nano|super|ultra|lightning)"
    r"|nemotron[_ -]?h|mamba|gated ?delta|delta attention|\bgdn|\bkda|zebra|hybrid"
    r"|jamba|zamba|qwen3[_ -]?next|kimi[_ -]?linear",
    re.IGNORECASE,
)
_FP8_HYBRID = re.compile(r"fp8[ _:-]*hybrid", re.IGNORECASE)
_PROXY = re.compile(r"[-_ ]L(\d+)$|[-_ ](\d+)-layer proxy$", re.IGNORECASE)
_NOISE = re.compile(
    r"\(.*?\)|\b\d+-node\b|\bproxy\b|\b\d+ ?GPUs?\b|[-_ ](?:BF16|FP16|(?:MX|NV)?FP[48])\b",
    re.IGNORECASE,
)


def is_hybrid(text: str) -> bool:
    """Whether a name or a remark means a model with state-space or linear-attention layers.

    The hybrid of FP8 is a pair of formats: E4M3 forwards and E5M2 backwards.
    """
    return _HYBRID.search(_FP8_HYBRID.sub("", text)) is not None


def model_of(
    name: str, *, num_layers: int | None = None, seq_len: int | None = None, gpu: str = ""
) -> dict[str, Any]:
    """Return the native mapping of the architecture that a published name means.

    Parameters
    ----------
    name : str
        As printed.
    num_layers : int, optional
        Truncates the model; a name that ends in ``-L12`` does too.
    seq_len : int, optional
        Tables of learned positions are as long as the longest sequence needs (llm-foundry sizes
        them by it), and one ambiguous name is resolved by it.
    gpu : str
        Printed device; it helps to resolve the name.
    """
    data = dict(_architecture(name.strip(), num_layers, _is_2021(seq_len, gpu)))
    if seq_len is not None and data.get("position_embedding") == "learned":
        is_mpt = bool(re.match(r"mpt", name.strip(), re.IGNORECASE))
        table = int(data.get("max_position_embeddings", 0))
        data["max_position_embeddings"] = seq_len if is_mpt else max(table, seq_len)
    return data


@lru_cache(maxsize=1024)
def family_of(name: str) -> str:
    """Return ``dense`` or ``moe``, or ``""`` for a name we do not know."""
    try:
        data = model_of(name)
    except (ValueError, ProjectorError):
        return ""
    return "moe" if data.get("moe") else "dense"


@lru_cache(maxsize=1024)
def model_name(text: str) -> str:
    """Return one name for all spellings of a model, with the layers that a proxy keeps.

    A text that names no model, or a different one by its other columns, stays as it is.
    """
    proxy = _PROXY.search(text)
    bare = _PROXY.sub("", text)
    normalised = resources.normalise(_NOISE.sub("", text))
    if normalised == "gpt1.7b":
        return text
    try:
        stem = _find(text, normalised, bare).stem
    except ValueError:
        return text
    if proxy:
        return f"{stem}, {proxy[1] or proxy[2]} layers"
    return f"{stem}, proxy" if re.search(r"\bproxy\b", text, re.IGNORECASE) else stem


def _is_2021(seq_len: int | None, gpu: str) -> bool:
    """GPT-1.7B is a row of two tables: A100 with 2048 tokens, and H100 with 4096."""
    return seq_len == 2048 or gpu.upper().startswith("A100")


@lru_cache(maxsize=4096)
def _architecture(name: str, num_layers: int | None, from_2021: bool) -> Mapping[str, Any]:
    normalised = resources.normalise(_NOISE.sub("", name))
    proxy = _PROXY.search(name)
    bare = _PROXY.sub("", name)
    if normalised == "gpt1.7b":
        variant = _Variant("megatron_1.7b" if from_2021 else "megatron_h100_1.7b", {})
    else:
        variant = _find(name, normalised, bare)
    data = model_data(variant.stem)
    for key, value in variant.fields.items():
        data[key] = {**data[key], **value} if isinstance(value, Mapping) else value
    layers = num_layers or (int(proxy[1] or proxy[2]) if proxy else None)
    if layers is not None:
        _truncate(data, layers)
    return data


def _find(name: str, normalised: str, bare: str) -> _Variant:
    known = resources.index("models")
    candidates = [
        resources.normalise(name),
        normalised,
        resources.normalise(_NOISE.sub("", bare)),
        # "Llama2-7B class", "GPT3-175B FP8": the first two words.
        resources.normalise(" ".join(bare.split()[:2])),
        resources.normalise(bare.split(maxsplit=1)[0] if bare.split() else ""),
    ]
    for candidate in candidates:
        if candidate in _VARIANTS:
            return _VARIANTS[candidate]
        if candidate in known:
            return _Variant(known[candidate].stem, {})
    raise ValueError(f"unknown model {name!r}")


def _truncate(data: dict[str, Any], layers: int) -> None:
    """Keep the first layers and the share of windowed layers."""
    num_layers = int(data["num_layers"])
    data["num_layers"] = layers
    if data.get("sliding_window_layers"):
        data["sliding_window_layers"] = int(data["sliding_window_layers"]) * layers // num_layers
    moe = data.get("moe")
    if moe and isinstance(moe.get("layer_freq"), list):
        pattern = moe["layer_freq"]
        longer = pattern + [pattern[-1]] * max(0, layers - len(pattern))
        data["moe"] = {**moe, "layer_freq": longer}
