"""One table of the names that published measurements use for our devices and precisions."""

import re

from projector.config import resources

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

_NOISE = ("nvidia", "amd", "instinct", "tensorcore", "gpu")


def device_of(text: str) -> str:
    """Return the shipped device that a published name means.

    Raises
    ------
    ValueError
        If no shipped device has that name.
    """
    known = resources.index("hardware")
    # "B200 (SM100)" names a generation beside, "H800/H100 (SM90)" the nearer of two first.
    bare = re.sub(r"\(.*?\)", "", text)
    for spelling in (text, bare, bare.split("/", maxsplit=1)[0]):
        name = resources.normalise(spelling)
        for noise in _NOISE:
            name = name.replace(noise, "")
        for candidate in _shortenings(name):
            if candidate in known:
                return known[candidate].stem
    msg = f"unknown device {text!r}"
    raise ValueError(msg)


def precision_of(text: str) -> str:
    """Return the matrix type that a published precision means, without its recipe.

    Raises
    ------
    ValueError
        If it names no type we know.
    """
    name = re.sub(r"\(.*?\)", "", text).strip().lower().replace("-", "_")
    if name in PRECISIONS:
        return PRECISIONS[name]
    for spelling in sorted(PRECISIONS, key=len, reverse=True):
        if name.startswith(spelling):
            return PRECISIONS[spelling]
    msg = f"unknown precision {text!r}"
    raise ValueError(msg)


def _shortenings(name: str) -> list[str]:
    """List a name, then the name with trailing parts such as ``80gb`` and ``sxm`` dropped."""
    out = [name]
    for pattern in (r"(oam|sxm\d?|hbm\d?e?)$", r"\d+gb$", r"(oam|sxm\d?|hbm\d?e?)$"):
        name = re.sub(pattern, "", name)
        out.append(name)
    return out
