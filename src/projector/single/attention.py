"""Attention of given shapes with every term of its time, alone, packed or split over ranks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints
from projector.config.bands import Band, attention_time_band
from projector.config.device import Device
from projector.config.device_file import attention_band
from projector.config.device_kernels import AttentionKernel, Evidence, MatrixType
from projector.envelope import told
from projector.errors import ConfigError
from projector.kernels import attention
from projector.kernels.device import MATRIX_TYPES
from projector.lower.hardware import device_record
from projector.single import inputs
from projector.units import MEGA

SIXTEEN_BITS = ("fp16", "bf16")
"""Types of an implementation that lists no types."""

EXTENTS = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "v_head_dim")
"""Columns of the extents, as in `projector.attention_time`."""


@dataclass(frozen=True, slots=True)
class AttentionProjection:
    """Attentions on one device, each with its terms."""

    device: Device
    impl: str
    """Name that was asked for."""
    dtype: str
    backward: bool
    clock_mhz: float
    extents: Ints
    """``EXTENTS`` of each row."""
    causal: bool
    window: Ints
    terms: dict[str, Floats]
    """Columns ``TERMS`` of the kernel."""
    bound: tuple[str, ...]
    """What limits each row: matrix, softmax, memory, atomics or overhead."""
    peak_flop_per_s: float
    """Matrix rate at the clock."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.extents)

    @property
    def time_s(self) -> Floats:
        """Seconds of each row."""
        return self.terms["time_s"]

    @property
    def flop_per_s(self) -> Floats:
        """Rate of the visible work of each row; 0 for a row without work."""
        time_s = self.time_s
        return np.divide(self.terms["flop"], time_s, out=np.zeros_like(time_s), where=time_s > 0.0)

    @property
    def kernel(self) -> AttentionKernel:
        """The implementation."""
        return self.device.attention_kernels.get(self.impl, self.device.attention)

    @property
    def evidence(self) -> Evidence:
        """Where this pass of the kernel was measured, for the row known the least."""
        widths = {int(width) for width in self.extents[:, EXTENTS.index("head_dim")]}
        known = [
            self.kernel.evidence(self.device.name, width, backward=self.backward)
            for width in sorted(widths)
        ]
        return max(known, key=attention_band, default="none")

    @property
    def basis(self) -> str:
        """What the numbers of the kernel rest on, as a sentence."""
        measured = self.kernel.backward_measured if self.backward else self.kernel.forward_measured
        widths = " and ".join(str(width) for width in measured.get(self.device.name, ()))
        return {
            "width": "measured on this device at these heads",
            "device": f"measured on this device at heads of {widths} alone",
            "family": f"not measured on this device: shares of {' and '.join(measured)}",
            "none": "no published row of this pass: shares as hardware/attention.yaml explains",
        }[self.evidence]

    @property
    def band(self) -> Band:
        """Where the time of attentions lies that are known as well as this one."""
        return attention_time_band(self.evidence, self.basis)

    @property
    def uncertainty(self) -> dict[str, Any]:
        """The band as the JSON object has it."""
        return self.band.to_dict()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Assumptions of the projection: a type that the kernel is not described for."""
        if self.kernel.dtypes or self.dtype in SIXTEEN_BITS:
            return ()
        known = " and ".join(SIXTEEN_BITS)
        text = (
            f"attention {self.impl!r} of {self.device.name} is known for {known}; {self.dtype} was "
            f"given the same shares of its own matrix rate"
        )
        return (text,)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, one object for each row."""
        names = [name for name in attention.TERMS if name != "time_s"]
        return {
            "device": self.device.name,
            **told(self, "impl dtype"),
            "pass": "backward" if self.backward else "forward",
            **told(self, "causal clock_mhz"),
            "peak_tflops": self.peak_flop_per_s * 1e-12,
            "time_ms": float(self.time_s.sum()) * 1e3,
            "rows": [
                {
                    **dict(zip(EXTENTS, (int(value) for value in self.extents[row]), strict=True)),
                    "window": int(self.window[row]),
                    "time_ms": float(self.time_s[row]) * 1e3,
                    "tflops": float(self.flop_per_s[row]) * 1e-12,
                    "bound": self.bound[row],
                    "terms": {name: float(self.terms[name][row]) for name in names},
                }
                for row in range(len(self))
            ],
        }


def attention_time(
    batch: ArrayLike,
    heads: ArrayLike,
    seq_q: ArrayLike,
    seq_kv: ArrayLike | None = None,
    *,
    head_dim: ArrayLike,
    device: inputs.DeviceLike,
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

    Args:
        batch, heads, seq_q, seq_kv, head_dim, kv_heads, v_head_dim, window (int or int array):
            Extents, broadcast like numpy. Keys default to the queries' length, key heads to the
            query heads, the value width to ``head_dim``; ``window`` 0 sees everything.
        device (str, Path, mapping or Device): Accelerator, as in a job.
        causal (bool): Whether a query sees only earlier keys.
        backward (bool): Whether to time the backward instead of the forward.
        dtype (str): Type of Q, K and V. An implementation that is described for no type in
            particular is known for 16 bits; other types have the same shares of their own matrix
            rate.
        impl (str): Implementation by the device's name for it (``fa2``, ``cudnn``, ``unfused``
            ...); the default is the best that the device's stack offers for training.
        clock_mhz (float, optional): Instead of the clock that ``run`` implies.
        run (str): ``training``: the clock of attention in a training step, also of ``loaded``
            (long) runs. ``short`` (benchmarks): its boost clock.

    Returns:
        float or float64 array: Seconds.

    Raises:
        ConfigError: For an unknown device, type or implementation, a type that the implementation
            does not take, an invalid extent, key heads that do not divide the query heads, a clock
            beyond the boost clock, or an unknown run.
    """
    sizes = (batch, heads, seq_q, seq_kv, head_dim, kv_heads, v_head_dim, window)
    _, _, columns, shape = _prepared(
        sizes, device, dtype, impl, clock_mhz, run, causal=causal, backward=backward
    )
    return inputs.shaped(attention.attention_time_columns(*columns)[0], shape)


def project_attention(
    batch: ArrayLike,
    heads: ArrayLike,
    seq_q: ArrayLike,
    seq_kv: ArrayLike | None = None,
    *,
    head_dim: ArrayLike,
    device: inputs.DeviceLike,
    kv_heads: ArrayLike | None = None,
    v_head_dim: ArrayLike | None = None,
    causal: bool = True,
    window: ArrayLike = 0,
    backward: bool = False,
    dtype: str = "bf16",
    impl: str = "default",
    clock_mhz: float | None = None,
    run: str = "training",
) -> AttentionProjection:
    """Return attentions with every term of their time; see `projector.attention_time`."""
    sizes = (batch, heads, seq_q, seq_kv, head_dim, kv_heads, v_head_dim, window)
    profile, kind, columns, _ = _prepared(
        sizes, device, dtype, impl, clock_mhz, run, causal=causal, backward=backward
    )
    _, bound = attention.attention_time_columns(*columns)
    terms = attention.attention_term_columns(*columns)
    rate = float(columns[-1]["attention_flop_per_s"][0][MATRIX_TYPES.index(kind)])
    per_clk = profile.matrix_flop_per_clk_per_cu[kind] * profile.compute_units
    return AttentionProjection(
        profile,
        impl,
        kind,
        bool(backward),
        rate / per_clk / MEGA,
        columns[0],
        bool(causal),
        columns[2],
        terms,
        tuple(attention.BOUNDS[limiter] for limiter in bound),
        rate,
    )


def _prepared(
    sizes: tuple[Any, ...],
    device: inputs.DeviceLike,
    dtype: str,
    impl: str,
    clock_mhz: float | None,
    run: str,
    *,
    causal: bool,
    backward: bool,
) -> tuple[Device, MatrixType, attention.AttentionColumns, tuple[int, ...]]:
    """Return device, type, columns and the shape that sizes were broadcast to, all checked."""
    profile = inputs.device_from(device)
    kind = inputs.matrix_type(profile, dtype)
    _check_impl(profile, impl, kind)
    clock = inputs.clock_within(profile, clock_mhz, attention=True)
    for key, switch in (("causal", causal), ("backward", backward)):
        if not isinstance(switch, bool | np.bool_):
            msg = f"{key} must be True or False, got {switch!r}"
            raise ConfigError(msg, key=key, value=switch, allowed=[True, False])
    batch, heads, seq_q, seq_kv, head_dim, kv_heads, v_head_dim, window = sizes
    columns, shape = inputs.broadcast(
        batch=batch,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        seq_q=seq_q,
        seq_kv=seq_q if seq_kv is None else seq_kv,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        window=window,
    )
    extents = inputs.extents_of(columns, EXTENTS)
    _check_groups(extents[:, 1], extents[:, 2])
    windows = inputs.extents_of(columns, ("window",))[:, 0]
    record = device_record(profile, clock, impl, run=inputs.run_named(run))
    rows = len(extents)
    each = (int(causal), int(backward), MATRIX_TYPES.index(kind), 0)
    masks, passes, codes, devices = (np.full(rows, value, np.int64) for value in each)
    return profile, kind, (extents, masks, windows, passes, codes, devices, record), shape


def packed_time_s(documents: AttentionProjection) -> float:
    """Return the seconds of documents that one kernel runs together (a packed sequence).

    Work-groups of all documents fill each other's gaps, so that the idle time of one of them
    remains; the kernels start once.
    """
    terms = documents.terms
    if not len(documents):
        return 0.0
    busy_s = float(np.sum(terms["compute_s"] - terms["idle_s"]) + np.max(terms["idle_s"]))
    busy_s = max(busy_s, float(np.sum(terms["atomics_s"])))
    memory_s = float(np.sum(terms["memory_s"]))
    overlapped_s = max(busy_s, memory_s) + attention.HIDDEN_LOSS * min(busy_s, memory_s)
    return overlapped_s + float(np.sum(terms["passes_s"]) + np.max(terms["start_s"]))


def _check_impl(device: Device, impl: str, dtype: str) -> None:
    """Refuse an attention implementation that a device does not describe, or not for a type."""
    legal = ["default", *device.attention_kernels]
    if not inputs.is_text(impl) or impl not in legal:
        msg = f"{device.name} has no attention implementation {impl!r}; it has {', '.join(legal)}"
        raise ConfigError(msg, key="impl", value=impl, allowed=legal)
    types = device.attention_kernels.get(impl, device.attention).dtypes
    if types and dtype not in types:
        takes = {name: kernel.dtypes for name, kernel in device.attention_kernels.items()}
        others = [name for name, given in takes.items() if not given or dtype in given]
        msg = (
            f"attention {impl!r} of {device.name} takes {', '.join(types)}, not {dtype}; "
            f"{dtype} has {', '.join(others)}"
        )
        raise ConfigError(msg, key="dtype", value=dtype, allowed=list(types))


def _check_groups(heads: Ints, kv_heads: Ints) -> None:
    wrong = np.flatnonzero((heads > 0) & (heads % np.maximum(kv_heads, 1) + (kv_heads < 1) > 0))
    if wrong.size:
        row = wrong[0]
        msg = f"kv_heads ({kv_heads[row]}) does not divide heads ({heads[row]})"
        allowed = f"a divisor of {heads[row]}"
        raise ConfigError(msg, key="kv_heads", value=int(kv_heads[row]), allowed=allowed)
