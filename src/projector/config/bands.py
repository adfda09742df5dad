"""Bands around projections: where the measured value of a comparable run lies.

``hardware/uncertainty.yaml`` holds them by class; docs/accuracy.md says how they are made.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from projector.config.device import Device
from projector.config.device_file import attention_band
from projector.config.device_kernels import Evidence
from projector.config.network import Network
from projector.config.resources import Sections, data_dir

SHARES = (68, 90)
"""Percent of comparable measurements that the bands hold."""

ALL = "all"
"""The widest class of every quantity."""

_WIDE_TYPES = {"bf16", "fp16", "fp32", "tf32"}


@dataclass(frozen=True, slots=True)
class Band:
    """Where the measured value lies, as factors of the projected one; None if nothing is known."""

    low_68: float | None
    """68 % of comparable measurements lie between this factor and `high_68`."""
    high_68: float | None
    low_90: float | None
    high_90: float | None
    runs: int
    """Published rows of the class that the band is named after."""
    basis: str
    """What the band rests on, as a sentence."""
    unknown: str = ""
    """What hardly any published run has, where the band is wide for it."""

    @property
    def relative(self) -> float | None:
        """The wider side of the 68 % band, as a fraction of the projected value."""
        if self.low_68 is None or self.high_68 is None:
            return None
        return round(max(1.0 - self.low_68, self.high_68 - 1.0), 3)

    def to_dict(self) -> dict[str, Any]:
        """Return ``uncertainty`` of ``--json``."""
        return {
            "relative": self.relative,
            "low": {"68": self.low_68, "90": self.low_90},
            "high": {"68": self.high_68, "90": self.high_90},
            "basis": self.basis,
            **({"unknown": self.unknown} if self.unknown else {}),
        }

    def limits(self, share: int) -> tuple[float, float] | None:
        """Return the factors for one of `SHARES`; None if nothing is known."""
        low, high = (self.low_68, self.high_68) if share == 68 else (self.low_90, self.high_90)
        return None if low is None or high is None else (low, high)

    @property
    def words(self) -> str:
        """The 68 % band in words, e.g. ``-5 to +9 %``; ``""`` if nothing is known."""
        if self.low_68 is None or self.high_68 is None:
            return ""
        return f"{100.0 * (self.low_68 - 1.0):+.0f} to {100.0 * (self.high_68 - 1.0):+.0f} %"

    def stretched(self, factor_68: float, factor_90: float) -> "Band":
        """Return the band with the logarithms of its sides multiplied."""
        if self.low_68 is None:
            return self
        return self._moved(lambda side, share: side * (factor_68 if share == 68 else factor_90))

    def with_error(self, relative: float) -> "Band":
        """Return the band with one more independent error, whose 68 % lie within ``relative``.

        Squares of logarithms add. 90 % of a normal error lie within 1.65 times what 68 % do.
        """
        if self.low_68 is None:
            return self

        def side(log: float, share: int) -> float:
            return math.hypot(log, relative * (1.0 if share == 68 else 1.65))

        return self._moved(side)

    def _moved(self, side: Any) -> "Band":
        """Return the band with a function applied to the distance of each side, a logarithm."""

        def moved(factor: float | None, share: int, sign: float) -> float:
            assert factor is not None
            return round(math.exp(sign * side(abs(math.log(factor)), share)), 3)

        return replace(
            self,
            low_68=moved(self.low_68, 68, -1.0),
            high_68=moved(self.high_68, 68, 1.0),
            low_90=moved(self.low_90, 90, -1.0),
            high_90=moved(self.high_90, 90, 1.0),
        )


NOTHING = Band(None, None, None, None, 0, "no published measurement to compare with")


def family_of_device(device: Device) -> str:
    """Return the family that bands are kept for: the architecture without its generation."""
    return device.architecture.rstrip("0123456789")


def width_of_type(name: str) -> str:
    """Return the class of a matrix type: of 16 bits and more, or narrower."""
    return "16_bit" if name in _WIDE_TYPES else "8_bit"


UNFAMILIAR = "unfamiliar"
"""Class of jobs of a kind that hardly any published run is of."""


def band_of(
    quantity: str,
    classes: Sequence[str],
    device: str | None = None,
    without: str | None = None,
    architecture: str | None = None,
) -> Band:
    """Return the band of the narrowest class that is known; ``classes`` begin with the narrowest.

    Quantities are ``time``, ``memory`` and the kernels ``gemm``, ``attention``, ``collective`` and
    ``moe_layer``. A named device without rows has a wider band, and one of an ``architecture``
    without rows that of such generations. ``without`` names a source: the band as it is without the
    rows of that source.
    """
    known = table(quantity)
    if without is not None:  # a source without rows has the usual bands
        known = _file("uncertainty_left_out.yaml").get(quantity, {}).get(without, known)
    unseen = known.get("unseen")
    basis = "; wider for a device without rows"
    if unseen and "new_generation" in unseen and architecture is not None:
        generation = unseen["new_generation"]
        if architecture not in generation["architectures"]:
            unseen = {**generation, "devices": unseen["devices"]}
            classes, basis = (ALL,), "; wider for a generation without rows"
    name = next((name for name in classes if name in known), None)
    if name is None:
        return NOTHING
    entry = known[name]
    runs = int(entry["runs"])
    words = f" ({name.replace('.', ', ').replace('_', ' ')}) and those of wider classes"
    if name == UNFAMILIAR:
        words = " of frameworks and networks with hardly any"
    band = Band(
        low_68=float(entry["low_68"]),
        high_68=float(entry["high_68"]),
        low_90=float(entry["low_90"]),
        high_90=float(entry["high_90"]),
        runs=runs,
        basis=f"for 68 % of runs, from {runs} published rows{'' if name == ALL else words}, "
        "each with its source left out",
    )
    if unseen is None or device is None or device in unseen["devices"]:
        return band
    wider = band.stretched(float(unseen["factor_68"]), float(unseen["factor_90"]))
    return replace(wider, basis=f"{band.basis}{basis}")


def table(quantity: str) -> Mapping[str, Any]:
    """Return the bands of a quantity, by class; empty if there are none."""
    found: Mapping[str, Any] = _file("uncertainty.yaml").get(quantity, {})
    return found


def has_rows(source: str, quantity: str) -> bool:
    """Whether a source has a part in the bands of a quantity."""
    return source in _file("uncertainty_left_out.yaml").get(quantity, {})


@cache
def _file(name: str) -> Mapping[str, Any]:
    path = data_dir("hardware") / name
    return Sections(path) if path.is_file() else {}


PREFILL, DECODE, LATENCY, LOAD = "prefill", "decode", "latency", "load"
FIRST = "first_token"

SERVING_PHASES = (PREFILL, DECODE, LATENCY, LOAD, FIRST)
"""What is timed: first tokens; further tokens; a batch from prompts to last tokens; requests that
come and go, and how long each of them waits for its first token."""

SMALL_MESSAGE_BYTES = 1 << 20
"""Below, a collective is mostly start costs, whose errors are of another kind."""


def kernel_classes(device: Device, dtype: str) -> tuple[str, ...]:
    """Return the classes of a GEMM or of a layer of experts, the narrowest first."""
    family = family_of_device(device)
    return f"{family}.{width_of_type(dtype)}", family, ALL


def collective_classes(
    device: Device, size_bytes: float | None, network: Network | None = None
) -> tuple[str, ...]:
    """Return the classes, the narrowest first. None: an exchange; a group within one domain."""
    if size_bytes is None:
        size = "exchange"
    else:
        size = "small" if size_bytes < SMALL_MESSAGE_BYTES else "large"
    if network is not None and size_bytes is not None:
        rows = "nodes.with_rows" if network.nic_measured else "nodes.without_rows"
        return f"{rows}.{size}", rows, "nodes", ALL
    return f"{family_of_device(device)}.{size}", size, ALL


def serving_classes(device: Device, phase: str, experts: bool) -> tuple[str, ...]:
    """Return the classes of a time of serving in a phase of `SERVING_PHASES`, the narrowest first.

    The phase comes before the family: rows of prefill say little about decode. Models with
    ``experts`` have classes of their own.
    """
    family, kind = family_of_device(device), "moe" if experts else "dense"
    return f"{family}.{phase}.{kind}", f"{phase}.{kind}", phase, f"{family}.{kind}", kind, ALL


def attention_classes(evidence: str) -> tuple[str, ...]:
    """Return the classes of an attention kernel: how near to it one was measured."""
    return evidence, ALL


def gemm_band(device: Device, dtype: str) -> Band:
    """Return the band of the time of a GEMM."""
    classes = kernel_classes(device, dtype)
    return band_of("gemm", classes, device.name, architecture=device.architecture)


def serving_band(device: Device, phase: str, experts: bool = False) -> Band:
    """Return the band of one of `SERVING_PHASES`."""
    return band_of("serving", serving_classes(device, phase, experts), device.name)


def collective_band(device: Device, size: float | None, network: Network | None = None) -> Band:
    """Return the band of the time of a collective of a size in bytes, by `collective_classes`."""
    return band_of("collective", collective_classes(device, size, network), device.name)


def attention_time_band(evidence: Evidence, basis: str) -> Band:
    """Return the band of the time of an attention kernel; ``basis`` is the evidence as a sentence.

    Rows exist for kernels that were measured at their head width alone; bands of others are as much
    wider as ``hardware/attention.yaml`` says.
    """
    factor = attention_band(evidence) / attention_band("width")
    band = band_of("attention", attention_classes("width")).stretched(factor, factor)
    return replace(band, basis=basis)
