"""Inputs of the functions of single kernels: a device, a type, a clock, a run."""

from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from projector.config.device import Device, load_device
from projector.config.gemm import MATRIX_TYPES as TYPE_NAMES
from projector.errors import ConfigError, shown
from projector.kernels.device import MATRIX_TYPES
from projector.lower.hardware import RUNS, Run, native_type

DeviceLike = str | Path | Mapping[str, Any] | Device

MAX_EXTENT = 1 << 40
"""Largest extent; products of larger ones are no longer exact."""

NO_NUMBERS = (bool, np.bool_, np.timedelta64)
"""Types that call themselves integers."""


def device_from(device: DeviceLike) -> Device:
    """Return a device as a job names it."""
    return device if isinstance(device, Device) else load_device(device, key="device")


def type_code(device: Device, dtype: str) -> int:
    """Return the code of a matrix type that the device has natively."""
    if str(dtype) not in TYPE_NAMES or native_type(device, dtype) != dtype:
        legal = list(device.matrix_flop_per_clk_per_cu)
        msg = f"{device.name} has no native {dtype!s} matrix rate; it has {', '.join(legal)}"
        raise ConfigError(msg, key="dtype", value=dtype, allowed=legal)
    return MATRIX_TYPES.index(dtype)


def clock_within(
    device: Device, clock_mhz: float | None, *, attention: bool = False
) -> float | None:
    """Return a clock that the device can have; a job refuses others in the same words.

    Attention may run at its boost clock too, which is above the clock of some datasheet peaks.
    """
    if clock_mhz is None:
        return None
    peak = device.highest_clock_mhz
    if attention:
        peak = max(peak, device.attention_boost_clock_mhz or 0.0)
    is_number = isinstance(clock_mhz, Real) and not isinstance(clock_mhz, NO_NUMBERS)
    if not (is_number and 1 <= clock_mhz <= peak):
        msg = (
            f"clock_mhz must be from 1 to the peak clock of {device.name} ({peak:g} MHz), "
            f"got {shown(clock_mhz)}"
        )
        raise ConfigError(msg, key="clock_mhz", value=clock_mhz, allowed=f"1 to {peak:g}")
    return float(clock_mhz)


def run_named(run: object) -> Run:
    """Return how long a kernel runs, which decides its clock.

    Raises
    ------
    ConfigError
        With the legal names.
    """
    for known in RUNS:
        if isinstance(run, str) and run == known:
            return known
    msg = f"run must be one of {', '.join(RUNS)}, got {run!r}"
    raise ConfigError(msg, key="run", value=run, allowed=list(RUNS))


def whole_number(key: str, value: Any, *, least: int = 0) -> int:
    """Return an integer from ``least`` to 2**40.

    Raises
    ------
    ConfigError
        If the value is not such an integer.
    """
    if not (is_integer(value) and least <= value <= MAX_EXTENT):
        msg = f"{key} must be an integer from {least} to 2**40, got {shown(value)}"
        raise ConfigError(msg, key=key, value=value, allowed=f"{least} <= integer <= 2**40")
    return int(value)


def is_integer(value: object) -> bool:
    """Whether it is an integer of Python or NumPy; True and a span of time are none."""
    return isinstance(value, Integral) and not isinstance(value, NO_NUMBERS)
