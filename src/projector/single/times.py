"""Times of single kernels and collectives from Python: scalars or arrays, like numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints, Records
from projector.config.device import Device
from projector.errors import ConfigError
from projector.kernels.attention import attention_time_columns
from projector.kernels.device import MATRIX_TYPES
from projector.lower.hardware import device_record
from projector.single.collective import collective_case
from projector.single.gemm import gemm_case
from projector.single.inputs import (
    DeviceLike,
    broadcast,
    check_range,
    clock_within,
    device_from,
    extents_of,
    is_text,
    matrix_type,
    run_named,
    shaped,
)

MAX_OUT_BYTES = 1024.0
"""Widest element of an output; real ones have 1 to 16 bytes."""


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
    model: str = "tile",
    library: str = "default",
    run: str = "training",
    tile: str | None = None,
    l2_hit_rate: float = 0.0,
) -> float | Floats:
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
        Instead of the clock that ``run`` implies.
    model : str
        ``tile``, ``ws_persistent`` or ``sol`` (`projector.single.gemm`).
    library : str
        ``default``, or a GEMM library that the device describes.
    run : str
        ``training``: the sustained clock. ``loaded`` (a second of the same kernel) or ``short``
        (a few launches): the highest clock that the power cap allows.
    tile : str, optional
        The only tile, ``128x256`` or with its cluster ``128x256:2x1``; else the fastest.
    l2_hit_rate : float
        Share of the loads that ``ws_persistent`` takes from L2; no other model has it.

    Returns
    -------
    float or float64 array
        Seconds, without launching from the host and without quantising passes.

    Raises
    ------
    ConfigError
        For an unknown device, type, model, library or run, an invalid extent, or a clock above the
        peak.
    """
    columns, shape = broadcast(m=m, n=n, k=k, batch=batch, out_bytes=out_bytes)
    extents = extents_of(columns, ("m", "n", "k", "batch"))
    check_range(columns, "out_bytes", MAX_OUT_BYTES)
    case = gemm_case(
        device,
        dtype,
        clock_mhz=clock_mhz,
        model=model,
        library=library,
        run=run,
        tile=tile,
        l2_hit_rate=l2_hit_rate,
    )
    return shaped(case.times_s(extents, columns["out_bytes"]), shape)


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
    run: str = "training",
) -> float | Floats:
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
        Type of Q, K and V. An implementation that is described for no type in particular is known
        for 16 bits; other types have the same shares of their own matrix rate.
    impl : str
        Implementation by the device's name for it (``fa2``, ``cudnn``, ``unfused`` ...); the
        default is the best that the device's stack offers for training.
    clock_mhz : float, optional
        Instead of the clock that ``run`` implies.
    run : str
        ``training``: the clock of attention in a training step, also of ``loaded`` (long) runs.
        ``short`` (benchmarks): its boost clock.

    Returns
    -------
    float or float64 array
        Seconds.

    Raises
    ------
    ConfigError
        For an unknown device, type or implementation, a type that the implementation does not take,
        an invalid extent, key heads that do not divide the query heads, a clock beyond
        the boost clock, or an unknown run.
    """
    profile = device_from(device)
    kind = matrix_type(profile, dtype)
    check_impl(profile, impl, kind)
    code = MATRIX_TYPES.index(kind)
    clock = clock_within(profile, clock_mhz, attention=True)
    extents, windows, shape = attention_columns(
        batch,
        heads,
        seq_q,
        seq_kv,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        window=window,
        causal=causal,
        backward=backward,
    )
    record = device_record(profile, clock, impl, run=run_named(run))
    columns = kernel_columns(extents, windows, record, code, causal=causal, backward=backward)
    return shaped(attention_time_columns(*columns)[0], shape)


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
) -> tuple[Ints, Ints, tuple[int, ...]]:
    """Return extents (as the kernel wants them), windows, and the shape they were broadcast to."""
    for key, switch in (("causal", causal), ("backward", backward)):
        if not isinstance(switch, bool | np.bool_):
            msg = f"{key} must be True or False, got {switch!r}"
            raise ConfigError(msg, key=key, value=switch, allowed=[True, False])
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "v_head_dim")
    columns, shape = broadcast(
        batch=batch,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        seq_q=seq_q,
        seq_kv=seq_q if seq_kv is None else seq_kv,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        window=window,
    )
    extents = extents_of(columns, names)
    _check_groups(extents[:, 1], extents[:, 2])
    return extents, extents_of(columns, ("window",))[:, 0], shape


def kernel_columns(
    extents: Ints, windows: Ints, record: Records, code: int, *, causal: bool, backward: bool
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Records]:
    """Return the arguments of `attention_time_columns` for rows on one device."""
    rows = len(extents)
    return (
        extents,
        np.full(rows, int(causal)),
        windows,
        np.full(rows, int(backward)),
        np.full(rows, code),
        np.zeros(rows, np.int64),
        record,
    )


def check_impl(device: Device, impl: str, dtype: str) -> None:
    """Refuse an attention implementation that a device does not describe, or not for a type."""
    legal = ["default", *device.attention_kernels]
    if not is_text(impl) or impl not in legal:
        msg = f"{device.name} has no attention implementation {impl!r}; it has {', '.join(legal)}"
        raise ConfigError(msg, key="impl", value=impl, allowed=legal)
    types = device.attention_kernels.get(impl, device.attention).dtypes
    if types and dtype not in types:
        others = [
            name
            for name, kernel in device.attention_kernels.items()
            if not kernel.dtypes or dtype in kernel.dtypes
        ]
        msg = (
            f"attention {impl!r} of {device.name} takes {', '.join(types)}, not {dtype}; "
            f"{dtype} has {', '.join(others)}"
        )
        raise ConfigError(msg, key="dtype", value=dtype, allowed=list(types))


def collective_time(
    operation: str,
    num_bytes: ArrayLike,
    ranks: ArrayLike,
    *,
    device: DeviceLike,
    network: str | Mapping[str, Any] | None = None,
    stride: int = 1,
    algorithm: str | None = None,
) -> float | Floats:
    """Return the seconds of a collective, with the best algorithm or with a named one.

    Parameters
    ----------
    operation : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``,
        ``send_recv``, ``reduce`` or ``all_to_all_v`` (blocks of unequal size).
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
    algorithm : str, optional
        The only algorithm, whether or not the device's library has it; else the fastest that the
        library has.

    Returns
    -------
    float or float64 array
        Seconds.

    Raises
    ------
    ConfigError
        For an unknown name, an invalid size, or an algorithm that cannot serve a group.
    """
    given = collective_case(operation, device=device, network=network, stride=stride)
    return given.times_s(num_bytes, ranks, algorithm)


def _check_groups(heads: Ints, kv_heads: Ints) -> None:
    wrong = np.flatnonzero((heads > 0) & (heads % np.maximum(kv_heads, 1) + (kv_heads < 1) > 0))
    if wrong.size:
        row = wrong[0]
        msg = f"kv_heads ({kv_heads[row]}) does not divide heads ({heads[row]})"
        allowed = f"a divisor of {heads[row]}"
        raise ConfigError(msg, key="kv_heads", value=int(kv_heads[row]), allowed=allowed)
