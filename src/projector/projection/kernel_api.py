"""Times of single kernels and collectives from Python: scalars or arrays, like numpy."""

from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.config.cluster import ClusterConfig
from projector.config.device import MATRIX_TYPES as TYPE_NAMES
from projector.config.device import Device, load_device
from projector.errors import ConfigError
from projector.kernels.attention import attention_time_columns
from projector.kernels.collectives import OPERATIONS, collective_time_columns
from projector.kernels.device import MATRIX_TYPES
from projector.kernels.gemm import gemm_time_columns
from projector.lower.hardware import device_record, domain_gpus, fabric_record, native_type
from projector.lower.jobs import local_members

DeviceLike = str | Path | Mapping[str, Any] | Device

MAX_EXTENT = 1 << 40
"""Extents beyond this are no matrix, and their products leave exact numbers."""

MAX_OUT_BYTES = 1024.0
"""Widest element of an output; real ones have 1 to 16 bytes."""

MAX_BYTES = 1e24
"""Largest buffer of a collective, far beyond any memory."""


def gemm_time(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    device: DeviceLike,
    dtype: str = "bf16",
    batch: ArrayLike = 1,
    out_bytes: ArrayLike = 2.0,
    clock_mhz: float | None = None,
) -> float | NDArray[np.float64]:
    """Return the seconds of ``C[m, n] = A[m, k] @ B[k, n]``.

    Parameters
    ----------
    m, n, k, batch : int or int array
        Extents, broadcast like numpy; ``batch`` equal problems run in one launch.
    device : str, Path, mapping or Device
        Accelerator, as in a job.
    dtype : str
        Operand type; one that the device has natively.
    out_bytes : float or float array
        Bytes of an output element (8 for FP32 read and written in place).
    clock_mhz : float, optional
        Instead of the sustained clock.

    Returns
    -------
    float or float64 array
        Seconds, without launching from the host and without quantising passes.

    Raises
    ------
    ConfigError
        For an unknown device or type, an extent that is no extent, or a clock beyond the peak.
    """
    profile = _device(device)
    code = _type_code(profile, dtype)
    clock = _clock(profile, clock_mhz)
    columns, shape = _broadcast(m=m, n=n, k=k, batch=batch, out_bytes=out_bytes)
    extents = _extents(columns, ("m", "n", "k", "batch"))
    rows = len(extents)
    _within(columns, "out_bytes", MAX_OUT_BYTES)
    seconds, _, _ = gemm_time_columns(
        extents, np.full(rows, code), columns["out_bytes"], np.ones(rows), np.zeros(rows, np.int64),
        device_record(profile, clock),
    )  # fmt: skip
    return _shaped(seconds, shape)


def attention_time(
    batch: ArrayLike,
    heads: ArrayLike,
    seq_q: ArrayLike,
    seq_kv: ArrayLike | None = None,
    *,
    head_dim: ArrayLike,
    device: DeviceLike,
    kv_heads: ArrayLike | None = None,
    v_head_dim: ArrayLike | None = None,
    causal: bool = True,
    window: ArrayLike = 0,
    backward: bool = False,
    dtype: str = "bf16",
    impl: str = "default",
    clock_mhz: float | None = None,
) -> float | NDArray[np.float64]:
    """Return the seconds of attention, forward or backward.

    Parameters
    ----------
    batch, heads, seq_q, seq_kv, head_dim, kv_heads, v_head_dim, window : int or int array
        Extents, broadcast like numpy. Keys default to the queries' length, key heads to the
        query heads, the value width to ``head_dim``; ``window`` 0 sees everything.
    device : str, Path, mapping or Device
        Accelerator, as in a job.
    causal : bool
        Whether a query sees only earlier keys.
    backward : bool
        Whether to time the backward instead of the forward.
    dtype : str
        Type of Q, K and V.
    impl : str
        Implementation by the device's name for it (``fa2``, ``cudnn``, ``unfused`` ...); the
        default is the best that the device's stack offers for training.
    clock_mhz : float, optional
        Instead of the clock of attention in a training step.

    Returns
    -------
    float or float64 array
        Seconds.

    Raises
    ------
    ConfigError
        For an unknown device, type or implementation, an extent that is no extent, key heads that
        do not divide the query heads, or a clock beyond the boost clock.
    """
    profile = _device(device)
    code = _type_code(profile, dtype)
    check_impl(profile, impl)
    clock = _clock(profile, clock_mhz, attention=True)
    extents, windows, shape = attention_columns(
        batch, heads, seq_q, seq_kv, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=v_head_dim,
        window=window, causal=causal, backward=backward,
    )  # fmt: skip
    rows = len(extents)
    seconds, _ = attention_time_columns(
        extents, np.full(rows, int(causal)), windows, np.full(rows, int(backward)),
        np.full(rows, code), np.zeros(rows, np.int64), device_record(profile, clock, impl),
    )  # fmt: skip
    return _shaped(seconds, shape)


def attention_columns(
    batch: ArrayLike,
    heads: ArrayLike,
    seq_q: ArrayLike,
    seq_kv: ArrayLike | None,
    *,
    kv_heads: ArrayLike | None,
    head_dim: ArrayLike,
    v_head_dim: ArrayLike | None,
    window: ArrayLike,
    causal: bool,
    backward: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]:
    """Return extents (as the kernel wants them), windows, and the shape they were broadcast to.

    Raises
    ------
    ConfigError
        As `attention_time`.
    """
    for key, switch in (("causal", causal), ("backward", backward)):
        if not isinstance(switch, bool | np.bool_):
            msg = f"{key} is True or False, got {switch!r}"
            raise ConfigError(msg, key=key, value=switch, allowed=[True, False])
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "v_head_dim")
    columns, shape = _broadcast(
        batch=batch,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        seq_q=seq_q,
        seq_kv=seq_q if seq_kv is None else seq_kv,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        window=window,
    )
    extents = _extents(columns, names)
    _check_groups(extents[:, 1], extents[:, 2])
    return extents, _extents(columns, ("window",))[:, 0], shape


def check_impl(device: Device, impl: str) -> None:
    """Refuse an attention implementation that a device does not describe.

    Raises
    ------
    ConfigError
        With the names that it has.
    """
    legal = ["default", *device.attention_kernels]
    if not _is_text(impl) or impl not in legal:
        msg = f"{device.name} describes no attention {impl!r}; it has {', '.join(legal)}"
        raise ConfigError(msg, key="impl", value=impl, allowed=legal)


def collective_time(
    operation: str,
    num_bytes: ArrayLike,
    ranks: ArrayLike,
    *,
    device: DeviceLike,
    network: str | Mapping[str, Any] | None = None,
    stride: int = 1,
) -> float | NDArray[np.float64]:
    """Return the seconds of a collective, with the best algorithm.

    Parameters
    ----------
    operation : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast`` or
        ``send_recv``.
    num_bytes : float or float array
        The whole buffer: what every rank holds (all-reduce), the gathered output, the input of
        one rank (reduce-scatter, all-to-all), the message.
    ranks : int or int array
        Group size.
    device : str, Path, mapping or Device
        Accelerator, as in a job.
    network : str or mapping, optional
        Cluster network; the device's usual one when left out.
    stride : int
        Distance between neighbouring ranks of the group, in devices.

    Returns
    -------
    float or float64 array
        Seconds.

    Raises
    ------
    ConfigError
        For an unknown name, or a size that is no size.
    """
    if not _is_text(operation) or operation not in OPERATIONS:
        msg = f"unknown collective {operation!r}; known: {', '.join(OPERATIONS)}"
        raise ConfigError(msg, key="operation", value=operation, allowed=list(OPERATIONS))
    if not (_is_integer(stride) and 1 <= stride <= MAX_EXTENT):
        msg = f"stride is an integer from 1 to 2**40, got {stride!r}"
        raise ConfigError(msg, key="stride", value=stride, allowed="1 <= integer <= 2**40")
    profile = _device(device)
    cluster = ClusterConfig.parse({"device": profile, "network": network}, path="cluster")
    columns, shape = _broadcast(num_bytes=num_bytes, ranks=ranks)
    sizes, groups = columns["num_bytes"], _extents(columns, ("ranks",))[:, 0]
    _within(columns, "num_bytes", MAX_BYTES)
    if np.any(groups < 1):
        msg = f"ranks are at least 1, got {groups.min()}"
        raise ConfigError(msg, key="ranks", value=int(groups.min()), allowed="integers >= 1")
    if operation == "send_recv" and np.any(groups > 2):
        msg = f"send_recv joins two ranks, got {groups.max()}"
        raise ConfigError(msg, key="ranks", value=int(groups.max()), allowed=[1, 2])
    domain = domain_gpus(cluster)
    local = np.array([local_members(int(size), int(stride), domain) for size in groups], np.int64)
    seconds, _ = collective_time_columns(
        OPERATIONS.index(operation), sizes, groups, local, 0, fabric_record(cluster)
    )
    return _shaped(seconds, shape)


def _device(device: DeviceLike) -> Device:
    """Return a device as it is, or by name, file or mapping."""
    return device if isinstance(device, Device) else load_device(device, key="device")


def _type_code(device: Device, dtype: str) -> int:
    """Return the code of a type that a device has natively."""
    if not _is_text(dtype) or dtype not in TYPE_NAMES or native_type(device, dtype) != dtype:
        legal = list(device.matrix_flop_per_clk_per_cu)
        msg = f"{device.name} has no native {dtype!s} matrix rate; it has {', '.join(legal)}"
        raise ConfigError(msg, key="dtype", value=dtype, allowed=legal)
    return MATRIX_TYPES.index(dtype)


def _clock(device: Device, clock_mhz: float | None, *, attention: bool = False) -> float | None:
    """Return a clock that the device can have; a job refuses others in the same words.

    Attention may run at its boost clock too, which is above the clock of some datasheet peaks.
    """
    if clock_mhz is None:
        return None
    peak = device.peak_clock_mhz
    if attention:
        peak = max(peak, device.attention_boost_clock_mhz or 0.0)
    is_number = isinstance(clock_mhz, Real) and not isinstance(clock_mhz, _NO_NUMBERS)
    if not (is_number and 1 <= clock_mhz <= peak):
        msg = (
            f"clock_mhz is a number from 1 to the peak clock of {device.name} ({peak:g} MHz), "
            f"got {clock_mhz!r}"
        )
        raise ConfigError(msg, key="clock_mhz", value=clock_mhz, allowed=f"1 to {peak:g}")
    return float(clock_mhz)


_NO_NUMBERS = (bool, np.bool_, np.timedelta64)
"""Types that call themselves integers."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, _NO_NUMBERS)


def _check_groups(heads: NDArray[np.int64], kv_heads: NDArray[np.int64]) -> None:
    wrong = np.flatnonzero((heads > 0) & (heads % np.maximum(kv_heads, 1) + (kv_heads < 1) > 0))
    if wrong.size:
        row = wrong[0]
        msg = f"kv_heads ({kv_heads[row]}) does not divide heads ({heads[row]})"
        allowed = f"a divisor of {heads[row]}"
        raise ConfigError(msg, key="kv_heads", value=int(kv_heads[row]), allowed=allowed)


def _within(columns: dict[str, NDArray[np.float64]], name: str, most: float) -> None:
    # NaN compares false, so it is refused as well.
    wrong = columns[name][~((columns[name] >= 0.0) & (columns[name] <= most))]
    if wrong.size:
        msg = f"{name} is a number from 0 to {most:g}, got {wrong[0]:g}"
        raise ConfigError(msg, key=name, value=float(wrong[0]), allowed=f"0 to {most:g}")


def _number_array(name: str, value: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{name} is no number and no array of numbers: {error}"
        raise ConfigError(msg, key=name, value=value, allowed="numbers") from None
    if array.dtype.kind not in "iuf":
        msg = f"{name} is no number and no array of numbers, got {value!r}"
        raise ConfigError(msg, key=name, value=value, allowed="numbers")
    return array.astype(np.float64)


def _broadcast(**values: ArrayLike) -> tuple[dict[str, NDArray[np.float64]], tuple[int, ...]]:
    given = [_number_array(name, value) for name, value in values.items()]
    try:
        shape = np.broadcast_shapes(*(array.shape for array in given))
    except ValueError as error:
        msg = f"{', '.join(values)} do not broadcast to one shape of numbers: {error}"
        raise ConfigError(msg, key=next(iter(values))) from None
    flat = (np.array(np.broadcast_to(array, shape)).reshape(-1) for array in given)
    return dict(zip(values, flat, strict=True)), shape


def _extents(columns: dict[str, NDArray[np.float64]], names: tuple[str, ...]) -> NDArray[np.int64]:
    stacked = np.stack([columns[name] for name in names], axis=1)
    legal = (stacked >= 0) & (stacked <= MAX_EXTENT) & (stacked == np.floor(stacked))
    if not np.all(legal):
        row, column = np.argwhere(~legal)[0]
        name, value = names[column], stacked[row, column]
        msg = f"{name} is an integer from 0 to 2**40, got {value:g}"
        raise ConfigError(msg, key=name, value=float(value), allowed="0 <= integer <= 2**40")
    return stacked.astype(np.int64)


def _shaped(seconds: NDArray[np.float64], shape: tuple[int, ...]) -> float | NDArray[np.float64]:
    return float(seconds[0]) if shape == () else seconds.reshape(shape)
