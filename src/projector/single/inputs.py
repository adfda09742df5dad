"""Inputs of the functions of single kernels: a device, a type, a clock, a run."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.device_kernels import MatrixType, matrix_type_named
from projector.config.formats.shape_table import MAX_EXTENT
from projector.errors import ConfigError, one_of, shown
from projector.lower.hardware import RUNS, Run
from projector.units import unwrapped

T = TypeVar("T")
DeviceLike = str | Path | Mapping[str, Any] | Device

NO_NUMBERS = (bool, np.bool_, np.timedelta64)
"""Types that call themselves integers."""


def device_from(device: DeviceLike) -> Device:
    """Return a device as a job names it."""
    return device if isinstance(device, Device) else load_device(device, key="device")


def matrix_type(device: Device, dtype: str) -> MatrixType:
    """Return the name of a matrix type that the device has natively, however it is spelled."""
    named = matrix_type_named(dtype)
    for known in device.matrix_flop_per_clk_per_cu:
        if is_text(named) and known == named:
            return known
    legal = list(device.matrix_flop_per_clk_per_cu)
    msg = f"{device.name} has no native {dtype!s} matrix rate; it has {', '.join(legal)}"
    raise ConfigError(msg, key="dtype", value=dtype, allowed=legal)


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
    clock_mhz = unwrapped(clock_mhz)
    if not (is_number(clock_mhz) and 1 <= clock_mhz <= peak):
        msg = (
            f"clock_mhz must be from 1 to the peak clock of {device.name} ({peak:g} MHz), "
            f"got {shown(clock_mhz)}"
        )
        raise ConfigError(msg, key="clock_mhz", value=clock_mhz, allowed=f"1 to {peak:g}")
    return float(clock_mhz)


def run_named(run: object) -> Run:
    """Return how long a kernel runs, which decides its clock."""
    return one_of("run", run, RUNS)


def whole_number(key: str, value: Any, *, least: int = 0) -> int:
    """Return an integer from ``least`` to 2**40."""
    value = unwrapped(value)
    if not (is_integer(value) and least <= value <= MAX_EXTENT):
        msg = f"{key} must be an integer from {least} to 2**40, got {shown(value)}"
        raise ConfigError(msg, key=key, value=value, allowed=f"{least} <= integer <= 2**40")
    return int(value)


def is_integer(value: object) -> bool:
    """Whether it is an integer of Python or NumPy; True and a span of time are none."""
    return isinstance(value, Integral) and not isinstance(value, NO_NUMBERS)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a real number of Python or NumPy; True and a span of time are none."""
    return isinstance(value, Real) and not isinstance(value, NO_NUMBERS)


def is_text(value: Any) -> bool:
    """Whether a name was given as one; an unhashable value is refused before it is looked up."""
    return isinstance(value, str)


def check_range(columns: dict[str, Floats], name: str, most: float) -> None:
    """Refuse numbers of a column outside 0 to ``most``."""
    # NaN compares false, so it is refused as well.
    wrong = columns[name][~((columns[name] >= 0.0) & (columns[name] <= most))]
    if wrong.size:
        msg = f"{name} must be from 0 to {most:g}, got {wrong[0]:g}"
        raise ConfigError(msg, key=name, value=float(wrong[0]), allowed=f"0 to {most:g}")


def _number_array(name: str, value: ArrayLike) -> Floats:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{name} must be a number or an array of numbers: {error}"
        raise ConfigError(msg, key=name, value=value, allowed="numbers") from None
    if array.dtype.kind == "O" and all(map(is_integer, array.flat)):
        # Integers of more than 64 bits; a float gives their size.
        return np.array([_float(number) for number in array.flat]).reshape(array.shape)
    if array.dtype.kind not in "iuf":
        msg = f"{name} must be a number or an array of numbers, got {shown(value)}"
        raise ConfigError(msg, key=name, value=value, allowed="numbers")
    return array.astype(np.float64)


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def broadcast(**values: ArrayLike) -> tuple[dict[str, Floats], tuple[int, ...]]:
    """Return columns of numbers, broadcast and flat, and the shape they were broadcast to."""
    given = [_number_array(name, value) for name, value in values.items()]
    try:
        shape = np.broadcast_shapes(*(array.shape for array in given))
    except ValueError as error:
        msg = f"{', '.join(values)} do not broadcast to one shape of numbers: {error}"
        raise ConfigError(msg, key=next(iter(values))) from None
    flat = (np.array(np.broadcast_to(array, shape)).reshape(-1) for array in given)
    return dict(zip(values, flat, strict=True)), shape


def extents_of(columns: dict[str, Floats], names: tuple[str, ...]) -> Ints:
    """Return named columns side by side as integers."""
    stacked = np.stack([columns[name] for name in names], axis=1)
    legal = (stacked >= 0) & (stacked <= MAX_EXTENT) & (stacked == np.floor(stacked))
    if not np.all(legal):
        row, column = np.argwhere(~legal)[0]
        name, value = names[column], stacked[row, column]
        msg = f"{name} must be an integer from 0 to 2**40, got {value:g}"
        raise ConfigError(msg, key=name, value=float(value), allowed="0 <= integer <= 2**40")
    return stacked.astype(np.int64)


def shaped(seconds: Floats, shape: tuple[int, ...]) -> float | Floats:
    """Return a column in the shape of the inputs; a number where all inputs are numbers."""
    return float(seconds[0]) if shape == () else seconds.reshape(shape)
