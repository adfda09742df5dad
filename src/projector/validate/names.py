"""One table of the names that published measurements use for our devices and precisions."""

import re
from functools import lru_cache

from projector.config import resources
from projector.config.device_file import load_device

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
