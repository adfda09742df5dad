"""The framework and the release that a published row ran, by its source and remarks."""

import re

from projector.config.framework import profile_named
from projector.errors import ConfigError
from projector.validate.kind import Row
from projector.validate.names import source_of
from projector.validate.recipes import container_of

_WORDS = (
    # Names inside a repository of several frameworks, then the repositories themselves.
    (r"\bpaxml\b|\bpax\b", "paxml"),
    (r"\bmaxtext\b", "maxtext"),
    (r"megatron[-_ ]pyxis|ROCm Megatron-LM", "megatron_lm"),
    (r"torchtitan", "torchtitan"),
    (r"(?<![a-z])primus(?![a-z])", "primus"),
    (r"megatron[-_ ]bridge", "megatron_bridge"),
    (r"automodel", "automodel"),
)
"""Words of the source or of the remarks -> framework; the first that applies."""

_SOURCES = {
    "Korthikanti": ("megatron_lm", "2022"),
    "MooreThreads/SimuMax": ("megatron_lm", ""),
    "NVIDIA/Megatron-LM": ("megatron_lm", ""),
    "NVIDIA/NeMo": ("nemo", ""),
    "NVIDIA/dgxc-benchmarking": ("nemo", ""),
    # The fork of the paper was published with a script that does not switch fused attention on.
    "Zero Bubble": ("megatron_lm", "2022"),
    "foundation-model-stack/fms-fsdp": ("fms_fsdp", "2024-03"),
    # Its page of benchmarks says attn_impl triton.
    "mosaicml/llm-foundry": ("llm_foundry", "0.3"),
}
"""Origin of a row -> framework, and the release of everything that it published."""


def framework_of(row: Row) -> dict[str, str] | None:
    """Return ``training.framework`` of a row, None where its source tells nothing.

    The release is the newest that the row may have run: of the container, of the image or of the
    month that it names.
    """
    text = f"{row.get('source') or ''} {row.get('other_flags') or ''}"
    name, release = _SOURCES.get(source_of(row.get("source") or ""), ("", ""))
    for words, framework in _WORDS:
        if re.search(words, text, re.IGNORECASE):
            name, release = framework, ""
            break
    if re.search(r"\bJAX\b", text) and name not in {"paxml", "maxtext"}:
        name = "maxtext"
    if not name:
        return None
    release = release or _release(name, row, text)
    return {"name": name, "release": release} if release else {"name": name}


def _release(name: str, row: Row, text: str) -> str:
    """Return a release that the profile knows, ``""`` where the row names none."""
    if name in {"nemo", "megatron_bridge", "automodel"}:
        named = container_of(row)
    elif name == "primus":
        image = re.search(r"(?:primus:v|\bv)(2\d\.\d{1,2})(?![\d.])", text, re.IGNORECASE)
        named = image[1] if image else ""
    elif name == "torchtitan":
        month = re.search(r"(?<!\d)(20[23]\d)-?(0[1-9]|1[0-2])(?!\d)", text)
        named = f"{month[1]}-{month[2]}" if month else ""
    elif name == "megatron_lm":
        year = re.search(r"(?<!\d)(202\d)(?!\d)", text)
        named = year[1] if year else ""
    else:
        named = ""
    return _known(name, named) if named else ""


def _known(name: str, release: str) -> str:
    """Return a release, or where it is unknown the last known one before it."""
    profile = profile_named(name)
    try:
        profile.position(release)
    except ConfigError:
        numbers = _numbers(release)
        earlier = [known for known in profile.releases if _numbers(known) <= numbers]
        return max(earlier, key=_numbers, default=next(iter(profile.releases), ""))
    return release


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))
