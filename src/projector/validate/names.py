"""One table of the names that published measurements use for our devices, precisions and models.

Names are compared without case and separators. Beyond the models of ``models/``, tables know
proxies (``llama3-70b-L12``, ``... 4-layer proxy``), variants that change the architecture, and
sizes that only a paper resolves; those stand in ``hardware/table_names.yaml``.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import Field

from projector.config import resources
from projector.config._base import Config
from projector.config.device_file import load_device
from projector.config.model_file import model_data
from projector.errors import ProjectorError
from projector.lower.hardware import Run


class Variant(Config):
    """A shipped model with fields replaced."""

    stem: str
    """Of the file of the model."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """Their values; of a mapping only what it names is replaced."""


class Loop(Config):
    """How a benchmark calls a kernel or a library, and what that costs."""

    added_us: float = 0.0
    """Time of every call beside the kernels, whatever they do."""
    least_us: float = 0.0
    """What the host takes for a call, so that shorter kernels wait."""
    least_us_of: dict[str, float] = Field(default_factory=dict)
    """Vendor -> what one thread takes to launch a call on one of the devices that it drives."""
    run: Run | None = None
    """Clocks that its rows met, where ``clock_note`` does not say."""
    note: str = ""
    """Shown with the row of a collective."""


class TableNames(Config):
    """``hardware/table_names.yaml``."""

    precisions: dict[str, str]
    """Spelling -> matrix type."""
    scales: dict[str, str]
    """Words of a precision of eight bits -> how it is scaled; the first that applies."""
    papers: dict[str, str]
    """Words of a source -> a publication whose name has several words or spellings."""
    repositories: tuple[str, ...]
    """Repositories that tables also cite by their name, or by their owner, alone."""
    owners: dict[str, str]
    """Owners cited alone, in lower case -> spelling; each of them publishes one guide."""
    moved: dict[str, str]
    """Copies of a repository, in lower case -> the repository."""
    models: dict[str, Variant]
    """Name of a model, where it is more than a further spelling of a file's name."""
    machines: dict[str, str]
    """Words of a kind of machine -> an entry of ``hardware/networks.yaml``."""
    transports: dict[str, str]
    """Words of a network -> an entry of ``hardware/transports.yaml``."""
    adapters: dict[str, float]
    """Generation of an adapter -> its rate [Gbit/s]."""
    adapter_words: dict[str, str]
    """Words of a text about adapters: their ``rate``, and what it is the rate of."""
    kernels: tuple[str, ...]
    """Names of GEMM kernels; the first that fits."""
    collectives: dict[str, str]
    dimensions: dict[str, str]
    """Column of an architecture -> field of ``model``; so for latent attention."""
    latent_dimensions: dict[str, str]
    written: dict[str, tuple[str, ...]]
    """Columns of the tables that `projector benchmark` and `projector measure` write."""
    gemm_loops: dict[str, Loop]
    collective_loops: dict[str, Loop]
    attention_kernels: tuple[str, ...]
    """Kernels that are mature enough to be compared, by the beginning of their name."""
    passes: dict[str, tuple[bool, bool]]
    """Name of a pass -> whether the forward and whether the backward are in it."""
    masks: dict[str, tuple[bool, str]]
    """Text of a mask -> whether it is causal, and the rule that says so."""


load_table_names = resources.shipped_table(TableNames, "table_names.yaml")


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
    known = load_table_names().precisions
    if name in known:
        return known[name]
    for spelling in sorted(known, key=len, reverse=True):
        rest = name.removeprefix(spelling)
        if rest != name and not rest[:1].isdigit():  # FP64 does not begin with FP6
            return known[spelling]
    raise ValueError(f"unknown precision {text!r}")


def source_of(text: str) -> str:
    """Return the origin of a row: the name before the first space, one for each origin.

    A commit and the address of a host do not count, nor does the page within a repository. A
    repository cited without its owner is the one that has it, and a paper keeps its name however
    it is cited.
    """
    names = load_table_names()
    for words, name in names.papers.items():
        if re.search(words, text, re.IGNORECASE):
            return name
    first = re.sub(r"^https?://(www\.)?(github\.com/)?", "", text.strip()).partition(" ")[0]
    first = first.partition("@")[0].strip("/:;,")
    if first.count("/") > 1:
        first = "/".join(first.split("/")[:2])
    name = names.moved.get(first.lower(), first)
    for repository in names.repositories:
        owner, _, project = repository.partition("/")
        is_owner = owner == names.owners.get(name.lower())
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
    known = load_table_names().scales.items()
    scales = [name for words, name in known if re.search(words, lowered)]
    return f"{kind.removesuffix('_block')} {scales[0]}" if scales else kind


def _shortenings(name: str) -> list[str]:
    """List a name, then the name with trailing parts such as ``80gb`` and ``sxm`` dropped."""
    out = [name]
    # HGX B300 NVL16 counts dies, two to a device.
    for pattern in (r"(oam|sxm\d?|hbm\d?e?|nvl16|ultra)$", r"\d+gb$", r"(oam|sxm\d?|hbm\d?e?)$"):
        name = re.sub(pattern, "", name)
        out.append(name)
    return out


_PROXY = re.compile(r"[-_ ]L(\d+)$|[-_, ]+(\d+)[- ]layers?(?: proxy)?$", re.IGNORECASE)
_MODEL_NOISE = re.compile(
    r"\(.*?\)|\b\d+-node\b|\bproxy\b|\b\d+ ?GPUs?\b|[-_ ](?:BF16|FP16|(?:MX|NV)?FP[48])\b",
    re.IGNORECASE,
)


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
def is_hybrid(name: str) -> bool:
    """Whether a name means a model whose layers are of several kinds."""
    try:
        return bool(model_of(name).get("layer_types"))
    except (ValueError, ProjectorError):
        return False


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
        variant = Variant(stem="megatron_1.7b" if from_2021 else "megatron_h100_1.7b")
    else:
        variant = _find(name, normalised, bare)
    data = model_data(variant.stem)
    for key, value in variant.fields.items():
        data[key] = {**data[key], **value} if isinstance(value, Mapping) else value
    layers = num_layers or (int(proxy[1] or proxy[2]) if proxy else None)
    if layers is not None:
        _truncate(data, layers)
    return data


def _find(name: str, normalised: str, bare: str) -> Variant:
    known, variants = resources.index("models"), load_table_names().models
    candidates = [
        resources.normalise(name),
        normalised,
        resources.normalise(_MODEL_NOISE.sub("", bare)),
        # "Llama2-7B class", "GPT3-175B FP8": the first two words.
        resources.normalise(" ".join(bare.split()[:2])),
        resources.normalise(bare.split(maxsplit=1)[0] if bare.split() else ""),
    ]
    for candidate in candidates:
        if candidate in variants:
            return variants[candidate]
        if candidate in known:
            return Variant(stem=known[candidate].stem)
    raise ValueError(f"unknown model {name!r}")


def _truncate(data: dict[str, Any], layers: int) -> None:
    num_layers = int(data["num_layers"])
    data["num_layers"] = layers
    if data.get("sliding_window_layers"):
        data["sliding_window_layers"] = int(data["sliding_window_layers"]) * layers // num_layers
    moe = data.get("moe")
    if moe and isinstance(moe.get("layer_freq"), list):
        pattern = moe["layer_freq"]
        longer = pattern + [pattern[-1]] * max(0, layers - len(pattern))
        data["moe"] = {**moe, "layer_freq": longer}
