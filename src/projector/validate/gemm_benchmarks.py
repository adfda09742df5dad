"""What a GEMM row says of its kernel (tile, cluster, split of K) and of the benchmark around it.

Of the benchmark these are library, loop, and what is quantised.

What a loop adds to a kernel belongs to its benchmark and is no property of a device.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from projector.config.device_kernels import MOST_ROWS, MOST_UNITS, GemmTile
from projector.kernels.gemm import MAX_SPLIT_K, STEP_ELEMENT_BYTES
from projector.lower.hardware import Offer
from projector.validate.kind import Row
from projector.validate.names import Loop, load_table_names
from projector.validate.words import named_loop, said

_INFERENCE_LIBRARIES = {"fp8_block": "deepgemm", "nvfp4": "trtllm_nvfp4"}
"""Library that TensorRT-LLM uses for a type, if the device describes it."""


def library_of(row: Row, scaling: str) -> str:
    """Return the GEMM library of a row by its name in device files; ``default`` for any other.

    ``scaling`` is the type of the operands, ``fp8_block`` where FP8 has a scale for each block.
    """
    name = said(row, "gemm_library") or "default"
    return _INFERENCE_LIBRARIES.get(scaling, "default") if name == "trtllm" else name


def loop_of(row: Row) -> Loop:
    """Return the loop of a row's benchmark; one that is not known times the kernel alone."""
    return named_loop(row, "gemm_loop", load_table_names().gemm_loops) or Loop()


class NamedKernel(NamedTuple):
    """The kernel that a row names."""

    m: int
    n: int
    k: int = 0
    """Elements of K that a step takes; 0 where the name does not say."""
    cluster_m: int = 1
    cluster_n: int = 1
    pair: bool = False
    """Whether two units run one instruction."""
    splits: tuple[int, ...] = (1,)
    """Into how many parts K may be cut: one number, or those that the name leaves open."""
    tuned: bool = True
    """Whether a tuner chose it as the fastest of its library."""


MOST_DEPTH = 4096
"""Elements of K beyond which no step of a main loop goes: of 4 bits, 2 KiB of each row."""

_HALVINGS_LEFT_OPEN = (1, 2)
"""Kernels of CK and FP4 assembly are given a number of halvings of K (``KBatch = 2 ** splitK`` in
ROCm/aiter). Tables of its tuner name it from two halvings on."""

_LONGEST = 256
"""Characters of a kernel's name; its patterns are not meant for longer texts."""


def named_kernel(config: str) -> NamedKernel | None:
    """Return the kernel of a ``kernel_config``, None where it names no tile."""
    if re.search(r"\bcta \S", config):
        return _of_cutedsl(config)
    names = load_table_names().kernels if len(config) <= _LONGEST else ()
    matches = (re.match(pattern, config) for pattern in names)
    match = next(filter(None, matches), None)
    if match is None:
        return None
    found = {name: text for name, text in match.groupdict().items() if text is not None}
    m, n, k = (int(found.get(name, "0")[:9]) for name in "mnk")
    _check("tile", f"{m}x{n}", (m, n), MOST_ROWS)
    if k > MOST_DEPTH:
        raise ValueError(f"kernel_config: a step of {k} of K must be up to {MOST_DEPTH}")
    return NamedKernel(m, n, k, splits=_splits(found))


def _splits(found: dict[str, str]) -> tuple[int, ...]:
    """Return how many parts K may be cut into; more than the model has count as its most."""
    if "halves" in found and "halvings" not in found:
        return _HALVINGS_LEFT_OPEN
    parts = 1 << min(int(found["halvings"][:9]), 9) if "halvings" in found else 0
    parts = parts or int(found.get("parts", "1")[:9])
    return (max(1, min(parts, MAX_SPLIT_K)),)


def _of_cutedsl(config: str) -> NamedKernel:
    """Read ``mma 256x128 cta 128x128 cluster 2x1``, the only kernel of its row.

    An instruction of twice the rows of its unit's tile is one of two units.
    """
    match = re.search(r"\bcta (\S+)(?: cluster (\S+))?", config)
    assert match is not None
    tile, cluster = _pair(match[1]), _pair(match[2] or "1x1")
    _check("tile", match[0], tile, MOST_ROWS)
    _check("cluster", match[0], cluster, MOST_UNITS)
    instruction = re.search(r"\bmma (\d{1,6})x", config)
    pair = instruction is not None and int(instruction[1]) == 2 * tile[0]
    return NamedKernel(*tile, 0, *cluster, pair=pair, tuned=False)


def _check(what: str, text: str, sizes: tuple[int, int], most: int) -> None:
    if not 1 <= min(sizes) <= max(sizes) <= most:
        raise ValueError(f"kernel_config: {what} {text!r} must be from 1x1 to {most}x{most}")


def _pair(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def grouped_kernel(row: Row, n: int, groups: int) -> NamedKernel | None:
    """Return the kernel that a library takes by rule for a grouped GEMM; None where it chooses.

    CK's grouped GEMM in Primus-Turbo has tiles of 256 x 256, and of 256 x 128 where those do not
    divide the columns, takes 64 elements of K of 16 bits and 128 of 8 a step, and never splits K
    (``csrc/kernels/grouped_gemm``). A single group of 16 bits is another kernel's: 147 us for 512 x
    4096 x 14336, where 32 tiles of CK's would take three times that on their 32 units.
    """
    narrow = (row.get("in_dtype") or "").lower().startswith("fp8")
    by_rule = re.match(r"Primus-Turbo grouped_gemm.*\(CK\)", row.get("library") or "")
    if not by_rule or (groups == 1 and not narrow):
        return None
    return NamedKernel(256, 128 if n % 256 else 256, 128 if narrow else 64)


def offer_of(menu: Sequence[Offer], kernel: NamedKernel) -> Offer:
    """Return a named kernel's tile; one of the menu keeps its other fields."""
    first = menu[0]
    k_bytes = round(kernel.k * STEP_ELEMENT_BYTES) or first.tile.k_bytes
    if kernel.tuned:
        same = [offer for offer in menu if (offer.tile.m, offer.tile.n) == (kernel.m, kernel.n)]
        if same:
            return min(same, key=lambda offer: abs(offer.tile.k_bytes - k_bytes))
    tile = GemmTile(
        m=kernel.m,
        n=kernel.n,
        k_bytes=k_bytes,
        cluster_m=kernel.cluster_m,
        cluster_n=kernel.cluster_n,
        pair="m" if kernel.pair else None,
    )
    # A kernel that no menu has is taken to be as good as the first one.
    share = first.efficiency / first.tile.efficiency if kernel.tuned else tile.efficiency
    return first._replace(tile=tile, efficiency=share)
