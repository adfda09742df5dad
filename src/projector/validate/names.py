"""One table of the names that published measurements use for our devices, precisions and models.

Names are compared without case and separators. Beyond the models of ``models/``, tables know
proxies (``llama3-70b-L12``, ``... 4-layer proxy``), variants that change the architecture, and
sizes that only a paper resolves; those stand here.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from projector.config import resources
from projector.config.device_file import load_device
from projector.config.model_file import model_data
from projector.errors import ProjectorError

PRECISIONS = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16/bf16": "bf16",
    "bf16/fp16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "fp32",
    "tf32": "tf32",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "mxfp8": "mxfp8",
    "fp8_mx": "mxfp8",
    "fp8mx": "mxfp8",
    "mx_fp8": "mxfp8",
    "mx fp8": "mxfp8",
    "float8": "fp8",
    "e4m3": "fp8",
    "fp8_block": "fp8_block",
    "fp8_blockwise": "fp8_block",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp6": "mxfp6",
    "fp6": "mxfp6",
    "int8": "int8",
}
"""Normalised spelling -> matrix type."""

_REPOSITORIES = (
    "AMD-AGI/Primus",
    "Azure/AI-benchmarking-guide",
    "deepseek-ai/DeepSeek-V3",
    "egmsft/AI-benchmarking-guide",
    "foundation-model-stack/fms-fsdp",
    "InternLM/InternEvo",
    "MooreThreads/SimuMax",
    "mosaicml/llm-foundry",
    "NVIDIA-NeMo/Automodel",
    "NVIDIA-NeMo/Megatron-Bridge",
    "NVIDIA/dgxc-benchmarking",
    "NVIDIA/Megatron-LM",
    "NVIDIA/NeMo",
    "oracle-quickstart/oci-gpu-quickstarts",
    "pytorch/torchtitan",
    "samuel-bohman/AI-benchmarking-guide",
)
"""Repositories that tables also cite by their name, or by their owner, alone."""

_OWNERS = {"azure": "Azure", "egmsft": "egmsft", "samuel-bohman": "samuel-bohman"}
"""Owners cited alone -> spelling; each of them publishes one guide of benchmarks."""

_MOVED = {"oci-ai-incubations/oci-gpu-quickstarts": "oracle-quickstart/oci-gpu-quickstarts"}
"""Copies of a repository, in lower case -> the repository."""

_PAPERS = (
    (r"^zero[- ]bubble|2401\.10241|sail-sg/zero", "Zero Bubble"),
    (r"^calculon|korthikanti|2205\.05198", "Korthikanti"),
    (r"ultra-?scale[ -]playbook", "Ultra-Scale Playbook"),
    (r"primus[ -]projection[ -]blog", "Primus-projection-blog"),
    (r"^mlcommons/training_results", "mlcommons/training_results"),
)
"""Words of a source -> a publication whose name has several words or spellings."""

_SCALES = (
    (r"1x128|\bblock|blockwise|subchannel|[ _-]sc\b|fp8sc\b", "block"),
    (r"per-token|per-channel", "per token"),
    (r"row-?wise", "rowwise"),
    (r"tensor-?wise|current|[ _-]cs\b|fp8cs\b|float8 linear", "tensorwise"),
    (r"delayed|[ _-]ds\b|fp8ds\b", "delayed"),
)
"""Words of a precision of eight bits -> how it is scaled; the first that applies."""

_NOISE = ("nvidia", "amd", "instinct", "tensorcore", "gpu", "dgx", "hgx", "blackwellultra")


PROFILES = (".yaml", ".yml")
"""Ends of a text that is the path of a profile: rows of one's own name devices that do not ship."""

KNOWN_TEXTS = 1 << 14
"""Texts of long tables whose names are kept."""


def device_of(text: str) -> str:
    """Return the shipped device that a published name means; the path of a profile stays."""
    if text.endswith(PROFILES):
        return text
    known = resources.index("hardware")
    # "B200 (SM100)" names a generation beside, "H800/H100 (SM90)" the nearer of two first.
    bare = re.sub(r"\(.*?\)", "", text)
    counted = re.sub(r"^\s*\d+ ?x ?", "", bare)
    for spelling in (text, bare, bare.split("/", maxsplit=1)[0], counted):
        name = resources.normalise(spelling)
        for noise in _NOISE:
            name = name.replace(noise, "")
        for candidate in _shortenings(name):
            if candidate in known:
                return known[candidate].stem
    raise ValueError(f"unknown device {text!r}")


def precision_of(text: str) -> str:
    """Return the matrix type that a published precision means, without its recipe."""
    name = re.sub(r"\(.*?\)", "", text).strip().lower().replace("-", "_")
    if name in PRECISIONS:
        return PRECISIONS[name]
    for spelling in sorted(PRECISIONS, key=len, reverse=True):
        rest = name.removeprefix(spelling)
        if rest != name and not rest[:1].isdigit():  # FP64 does not begin with FP6
            return PRECISIONS[spelling]
    raise ValueError(f"unknown precision {text!r}")


def source_of(text: str) -> str:
    """Return the origin of a row: the name before the first space, one for each origin.

    A commit and the address of a host do not count, nor does the page within a repository. A
    repository cited without its owner is the one that has it, and a paper keeps its name however
    it is cited.
    """
    for words, name in _PAPERS:
        if re.search(words, text, re.IGNORECASE):
            return name
    first = re.sub(r"^https?://(www\.)?(github\.com/)?", "", text.strip()).partition(" ")[0]
    first = first.partition("@")[0].strip("/:;,")
    if first.count("/") > 1:
        first = "/".join(first.split("/")[:2])
    name = _MOVED.get(first.lower(), first)
    for repository in _REPOSITORIES:
        owner, _, project = repository.partition("/")
        is_owner = owner == _OWNERS.get(name.lower())
        if is_owner or name.lower() in {repository.lower(), project.lower()}:
            return repository
    return name


@lru_cache(maxsize=KNOWN_TEXTS)
def device_name(text: str) -> str:
    """Return one name for all spellings of a device; a text that names none stays as it is."""
    try:
        return device_of(text)
    except ValueError:
        return text


@lru_cache(maxsize=KNOWN_TEXTS)
def vendor_name(text: str) -> str:
    """Return the vendor of a device, ``""`` if the text names none."""
    try:
        return load_device(device_of(text)).vendor
    except ValueError:
        return ""


@lru_cache(maxsize=KNOWN_TEXTS)
def precision_name(text: str) -> str:
    """Return one name for all spellings of a precision: its type, and how FP8 is scaled.

    Mixed types and texts that name none stay as they are.
    """
    lowered = text.strip().lower()
    if re.search(r"weights|activations|w\d+a\d+|\bkv\b|compile|eager", lowered):
        return text
    try:
        kind = precision_of(lowered.removeprefix("amp_"))
    except ValueError:
        return text
    if kind not in {"fp8", "fp8_block", "int8"}:
        return kind
    scales = [name for words, name in _SCALES if re.search(words, lowered)]
    return f"{kind.removesuffix('_block')} {scales[0]}" if scales else kind


def _shortenings(name: str) -> list[str]:
    """List a name, then the name with trailing parts such as ``80gb`` and ``sxm`` dropped."""
    out = [name]
    # HGX B300 NVL16 counts dies, two to a device.
    for pattern in (r"(oam|sxm\d?|hbm\d?e?|nvl16|ultra)$", r"\d+gb$", r"(oam|sxm\d?|hbm\d?e?)$"):
        name = re.sub(pattern, "", name)
        out.append(name)
    return out


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
    "llama417bx16e": _Variant("llama4_scout", {}),
}
"""Normalised name -> variant, where it is more than a further spelling of a file's name."""

_HYBRID = re.compile(
    r"nemotron[_ -]?(3|v3|3[._]5)[_ -]?(5|nano|super|ultra|lightning)"
    r"|nemotron[_ -]?h|mamba|gated ?delta|delta attention|\bgdn|\bkda|zebra|hybrid"
    r"|jamba|zamba|qwen3[_ -]?next|kimi[_ -]?linear|deepseek[_ -]?v4"
    r"|samba|retnet|rwkv|hgrn|linear-attn",
    re.IGNORECASE,
)
_OTHER_HYBRIDS = re.compile(r"fp8[ _:-]*hybrid|hybrid[ _-]?ep\b", re.IGNORECASE)
_PROXY = re.compile(r"[-_ ]L(\d+)$|[-_, ]+(\d+)[- ]layers?(?: proxy)?$", re.IGNORECASE)
_MODEL_NOISE = re.compile(
    r"\(.*?\)|\b\d+-node\b|\bproxy\b|\b\d+ ?GPUs?\b|[-_ ](?:BF16|FP16|(?:MX|NV)?FP[48])\b",
    re.IGNORECASE,
)


def is_hybrid(text: str) -> bool:
    """Whether a name or a remark means a model with layers of other kinds than attention.

    They are state-space, linear and compressed ones. The hybrid of FP8 is a pair of formats, E4M3
    forwards and E5M2 backwards, and HybridEP is an exchange of experts.
    """
    return _HYBRID.search(_OTHER_HYBRIDS.sub("", text)) is not None


def model_of(
    name: str, *, num_layers: int | None = None, seq_len: int | None = None, gpu: str = ""
) -> dict[str, Any]:
    """Return the native mapping of the architecture that a published name means.

    ``num_layers`` truncates the model; a name that ends in ``-L12`` does too. Tables of learned
    positions are as long as the longest sequence needs (llm-foundry sizes them by it); ``seq_len``
    and the printed ``gpu`` also help to resolve ambiguous names.
    """
    # GPT-1.7B is a row of two tables: A100 with 2048 tokens, and H100 with 4096.
    from_2021 = seq_len == 2048 or gpu.upper().startswith("A100")
    data = dict(_architecture(name.strip(), num_layers, from_2021))
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
    normalised = resources.normalise(_MODEL_NOISE.sub("", text))
    if normalised == "gpt1.7b":
        return text
    try:
        stem = _find(text, normalised, bare).stem
    except ValueError:
        return text
    if proxy:
        return f"{stem}, {proxy[1] or proxy[2]} layers"
    return f"{stem}, proxy" if re.search(r"\bproxy\b", text, re.IGNORECASE) else stem


@lru_cache(maxsize=4096)
def _architecture(name: str, num_layers: int | None, from_2021: bool) -> Mapping[str, Any]:
    normalised = resources.normalise(_MODEL_NOISE.sub("", name))
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
        resources.normalise(_MODEL_NOISE.sub("", bare)),
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
