"""Rows that time one rank's mixture-of-experts layer.

Loads follow the row's distribution. Power-law ones are drawn `DRAWS` times with the seed `SEED`,
the fullest rank is timed, and the times are averaged. Random ones, of independent tokens, are drawn
as often for few tokens, and less often for many, whose loads hardly vary; any rank is timed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.bands import kernel_classes
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.engine import benchmark_routing
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.lower.hardware import native_type
from projector.serving import experts as moe
from projector.units import MEGA, MIB, MICROSECOND, TB
from projector.validate import kind as kinds
from projector.validate.kind import Kind, number, whole
from projector.validate.names import device_of, precision_of

DRAWS = 32
"""Power-law draws of one row."""

SEED = 0
"""Seed of the draws; every row draws anew from it, so that it does not depend on its neighbours."""

RANDOM_TOKENS = 1 << 14
"""Tokens that all random draws of one row have together, or those of one draw."""

MAX_COUNT, MAX_TOKENS, MAX_EXPERTS, MAX_PICKS = 1 << 30, 1 << 22, 1 << 14, 1 << 26
"""Largest sizes of a measurement; larger ones would not fit into memory."""

_COUNTS = ("num_tokens", "hidden", "inter", "topk", "experts", "tp", "ep")
_COLUMNS = ("gpu", "dtype", "gated", *_COUNTS, "distribution", "time_us")


@dataclass(frozen=True, slots=True)
class LayerCase:
    """One row, read."""

    layer: moe.ExpertLayer
    tokens: int
    loads: Ints
    measured: float
    """In us."""
    note: str


def project(rows: Sequence[kinds.Row]) -> list[kinds.Outcome]:
    """Project rows, all layers in one batch."""
    devices: dict[str, Device] = {}
    return kinds.outcomes(
        kinds.read_cases(rows, lambda row: read_layer(row, devices)), _times_s, MICROSECOND
    )


def _times_s(cases: Sequence[LayerCase]) -> Floats:
    columns = zip(*((case.layer, case.tokens, case.loads) for case in cases), strict=True)
    return np.asarray(moe.expert_layer_times(*columns))


def read_layer(row: kinds.Row, devices: dict[str, Device]) -> LayerCase:
    """Read a row; ``devices`` keeps the devices that rows before it named."""
    counts = {name: whole(row, name, MAX_COUNT) for name in _COUNTS}
    measured_us = number(row, "time_us")
    if measured_us is None or measured_us <= 0.0:
        raise ValueError("time_us is not a positive time")
    experts, topk, ep, tokens = (counts[name] for name in ("experts", "topk", "ep", "num_tokens"))
    if topk > experts or experts % ep:
        msg = f"{experts} experts must be at least topk ({topk}) and a multiple of ep ({ep})"
        raise ValueError(msg)
    if tokens > MAX_TOKENS or experts > MAX_EXPERTS or tokens * max(topk, experts // 8) > MAX_PICKS:
        raise ValueError(f"{tokens} tokens over {experts} experts are too many to simulate")
    layer, note = _layer(row, counts, devices)
    grouped = layer.fused and experts % benchmark_routing().groups == 0
    loads = _loads(row.get("distribution") or "", tokens, experts, topk, ep, grouped=grouped)
    if grouped:
        note = "; ".join(filter(None, (note, "routed by groups of experts, as this library does")))
    return LayerCase(layer, tokens, loads, measured_us, note)


def _layer(
    row: kinds.Row, counts: dict[str, int], devices: dict[str, Device]
) -> tuple[moe.ExpertLayer, str]:
    name = device_of(row.get("gpu") or "")
    device = devices.setdefault(name, load_device(name)) if name not in devices else devices[name]
    library = row.get("library") or ""
    kind, stored = _types(row.get("dtype") or "", library)
    dtype = native_type(device, kind)
    note = "" if dtype == kind else f"{device.name} has no {kind}: {dtype}"
    gated = kinds.plain(row, "gated")
    if gated not in {"true", "false"}:
        raise ValueError(f"gated is {row.get('gated')!r}, not True or False")
    alone = (row.get("notes") or "").lower()
    release = re.search(r"\b(\d+\.\d+\.\d+\w*)", library)
    layer = moe.ExpertLayer(
        device=device,
        hidden=counts["hidden"],
        inner=-(-counts["inter"] // counts["tp"]),
        gated=gated == "true",
        experts=counts["experts"],
        topk=counts["topk"],
        dtype=dtype,
        weights="" if stored == kind else stored,
        one_kernel="one kernel" in library.lower(),
        gemms_alone="grouped gemms" in alone and "alone" in alone,
        block_scaled=dtype == "fp8" and "block" in (row.get("dtype") or "").lower(),
        fused="min_latency" in library,
        release=release[1] if release else "",
    )
    return layer, note


def _types(text: str, library: str) -> tuple[str, str]:
    """Return the types that a row multiplies and stores its weights in."""
    mixed = re.fullmatch(r"(.+) weights, (.+) activations", text.strip())
    if mixed is not None:
        return precision_of(mixed[2]), precision_of(mixed[1])
    kind = precision_of(text)
    if kind == "fp8" and "1x32" in library:
        kind = "mxfp8"  # The library names the scales.
    return kind, kind


@lru_cache(maxsize=256)
def _random_loads(tokens: int, experts: int, topk: int) -> Ints:
    """Return int64[draws, experts]; tables repeat a few numbers of tokens for every width."""
    generator = np.random.default_rng(SEED)
    draws = max(1, min(DRAWS, RANDOM_TOKENS // tokens))
    return np.stack([moe.random_loads(tokens, experts, topk, generator) for _ in range(draws)])


def _loads(
    distribution: str, tokens: int, experts: int, topk: int, ep: int, *, grouped: bool
) -> Ints:
    """Return int64[draws, experts of the timed rank]."""
    local = experts // ep
    if distribution.strip().lower() == "balanced":
        if grouped:
            loads = moe.group_limited_loads(moe.balanced_picks(tokens, experts, topk), experts)
        else:
            loads = moe.balanced_loads(tokens, experts, topk)
        return loads[None, :local]
    if distribution.strip().lower() == "random":
        return _random_loads(tokens, experts, topk)[:, :local]
    match = re.fullmatch(r"power_law_(\d+(?:\.\d+)?)", distribution.strip().lower())
    if match is None:
        raise ValueError(f"unknown distribution {distribution!r}")
    generator = np.random.default_rng(SEED)
    draws = []
    for _ in range(DRAWS):
        drawn = moe.power_law_loads(tokens, experts, topk, float(match[1]), generator)
        loads = moe.fullest_rank_first(drawn, ep)
        if grouped:
            loads = moe.group_limited_loads(moe.picks_of_loads(loads, tokens), experts)
        draws.append(loads[:local])
    return np.stack(draws)


def _doubt(row: kinds.Row) -> str:
    """Return why a row contradicts itself: faster than its device, caches of weights apart."""
    (case,) = kinds.read_cases([row], lambda each: read_layer(each, {}))
    if isinstance(case, str):
        return ""
    layer, device, measured_s = case.layer, case.layer.device, case.measured * MICROSECOND
    weights = (2 + layer.gated) * layer.hidden * layer.inner
    unit = device.peak_clock_mhz * MEGA * device.matrix_flop_per_clk_per_cu[layer.dtype]  # type: ignore[index]
    pairs, active = case.loads.sum(axis=1).mean(), (case.loads > 0).sum(axis=1).mean()
    if 2.0 * weights * pairs > unit * device.compute_units * measured_s:
        return "faster than the peak of the matrix units"
    read = active * weights * OPERAND_BYTES[MATRIX_TYPES.index(layer.weights or layer.dtype)]
    most = device.hbm_peak_tb_per_s * TB * measured_s + (device.mall_mib + device.l2_mib) * MIB
    return "faster than the memory reads its weights" if read > most else ""


def _classes(row: kinds.Row, device: Device) -> tuple[str, ...]:
    """Return the classes of a row that bands are kept for; the type that it multiplies decides."""
    library = row.get("library") or ""
    classes = kernel_classes(device, _types(row.get("dtype") or "", library)[0])
    known = any(name in library for name in device.expert_layer.libraries)
    return classes if known else ("other_library", *classes)


KIND = Kind(
    name="moe_measured",
    columns=_COLUMNS,
    project=project,
    quantity="moe_layer",
    classes=_classes,
    precision="dtype",
    doubt=_doubt,
)
