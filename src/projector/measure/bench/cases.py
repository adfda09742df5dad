"""What a benchmark measures: one program each, made from extents as a user gives them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from projector.config.device_kernels import MATRIX_TYPES, matrix_type_named
from projector.errors import ConfigError
from projector.kernels.collective_algorithms import OPERATIONS
from projector.kernels.device import ALIGNED_BYTES, OPERAND_BYTES
from projector.measure.keys import OperationKey, PhaseName
from projector.measure.task import ClockProgram, CopyProgram, LayerSpec, OperationProgram

BenchKind = Literal["gemm", "attention", "collective", "memory", "clock"]

CaseProgram = OperationProgram | CopyProgram | ClockProgram

PASSES = ("fwd", "bwd")

LAYOUTS: dict[str, PhaseName] = {"tn": "forward", "nn": "backward", "nt": "weight"}
"""How operands lie, as `projector.single.gemm` names it, and the pass of a linear layer whose
GEMM has them so."""

ATTENTION_BACKENDS = ("flash", "cudnn", "sdpa", "math")

MEASURED_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Collectives that a worker can run, by their names in `projector.kernels`."""

assert set(MEASURED_COLLECTIVES) <= set(OPERATIONS)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to be measured."""

    kind: BenchKind
    program: CaseProgram
    asked: dict[str, int] = field(default_factory=dict)
    """Extents as they were asked for, where padding changed them."""

    @property
    def key(self) -> OperationKey:
        """Key of a GEMM, an attention or a collective."""
        assert isinstance(self.program, OperationProgram)
        return self.program.key


def once(cases: Iterable[Case]) -> list[Case]:
    """Return cases without those that another one measures already."""
    found: dict[str, Case] = {}
    for case in cases:
        found.setdefault(case.program.model_dump_json(), case)
    return list(found.values())


def named_type(text: str, where: str = "") -> str:
    """Return a matrix type however it is spelled; ``where`` begins the message of an error."""
    name = matrix_type_named(text)
    if name not in MATRIX_TYPES:
        msg = f"{where}dtype must be one of {', '.join(MATRIX_TYPES)}, got {text!r}"
        raise ConfigError(msg, key="dtype", value=text, allowed=list(MATRIX_TYPES))
    return str(name)


def aligned_elements(dtype: str) -> int:
    """Return how many elements of a type fill 16 bytes, to which every extent is padded."""
    size = float(OPERAND_BYTES[MATRIX_TYPES.index(dtype)])
    # What is over a half of a byte is the element's share of the scales.
    return int(ALIGNED_BYTES / (size - size % 0.5))


def output_bytes(dtype: str) -> float:
    """Return the bytes of an output element: 16 bits, of wider operands as many as they have."""
    return 4.0 if dtype in ("fp32", "tf32", "int8") else 2.0


def gemm_case(
    m: int, n: int, k: int, dtype: str, *, batch: int = 1, groups: int = 0, layout: str = "tn",
    pad: bool = True,
) -> Case:  # fmt: skip
    """Return C[m, n] = A[m, k] @ B[k, n], with both operands of a matrix type ``dtype``.

    ``batch`` counts equal problems in one launch; ``groups`` those of a grouped GEMM, ``m`` rows
    each (0 for a plain one). With ``pad`` extents are padded to 16 bytes, as kernels of libraries
    and copy engines need it.
    """
    to = aligned_elements(dtype) if pad else 1
    padded = {name: -(-value // to) * to for name, value in (("m", m), ("n", n), ("k", k))}
    asked = {"m": m, "n": n, "k": k}
    key = OperationKey(
        label="grouped gemm" if groups else "gemm",
        phase=LAYOUTS[layout],
        kind="gemm",
        dtype=dtype,
        batch=groups or batch,
        out_bytes=output_bytes(dtype),
        expert=groups > 0,
        **padded,
    )
    return Case("gemm", OperationProgram(key=key), asked if asked != padded else {})


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Extents of one attention."""

    batch: int
    heads: int
    seq: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int = 0
    causal: bool = True


def attention_case(shape: AttentionShape, dtype: str, phase: str, backend: str) -> Case:
    """Return one pass of a fused attention."""
    if shape.heads % shape.kv_heads:
        msg = f"kv_heads ({shape.kv_heads}) does not divide heads ({shape.heads})"
        allowed = f"a divisor of {shape.heads}"
        raise ConfigError(msg, key="kv_heads", value=shape.kv_heads, allowed=allowed)
    key = OperationKey(
        label="attention",
        phase="backward" if phase == "bwd" else "forward",
        kind="attention",
        dtype=dtype,
        m=shape.seq,
        n=shape.seq,
        k=shape.head_dim,
        d_v=shape.v_head_dim,
        batch=shape.batch,
        heads=shape.heads,
        key_heads=shape.kv_heads,
        causal=shape.causal,
        window=shape.window,
    )
    layer = LayerSpec(kind="dense", columns={}, dtype=dtype, attention=backend)
    return Case("attention", OperationProgram(key=key, layer=layer))


def collective_cases(operations: Sequence[str], sizes: Sequence[int], ranks: int) -> list[Case]:
    """Return collectives among all ranks, by operation, then by size: bytes of the whole buffer."""
    for operation in operations:
        if operation not in MEASURED_COLLECTIVES:
            names = ", ".join(MEASURED_COLLECTIVES)
            msg = f"a collective must be one of {names}, got {operation!r}"
            allowed = list(MEASURED_COLLECTIVES)
            raise ConfigError(msg, key="operation", value=operation, allowed=allowed)
    if ranks < 2:
        msg = f"ranks: a collective needs at least 2 ranks, got {ranks}"
        raise ConfigError(msg, key="ranks", value=ranks, allowed="at least 2")
    return [
        Case(
            "collective",
            OperationProgram(
                key=OperationKey(
                    label=operation,
                    phase="forward",
                    kind="collective",
                    operation=operation,
                    ranks=ranks,
                    local=ranks,
                    bytes=float(size),
                )
            ),
        )
        for operation in operations
        for size in sizes
    ]


def copy_cases(sizes: Sequence[int]) -> list[Case]:
    """Return copies of so many bytes."""
    return [Case("memory", CopyProgram(bytes=size)) for size in sizes]


def clock_cases(dtypes: Sequence[str], seconds: float) -> list[Case]:
    """Return loads of matrix types under which the clock is watched."""
    if not 0.0 < seconds <= MOST_LOAD_S:
        msg = f"seconds must be above 0 and up to {MOST_LOAD_S:g}, got {seconds:g}"
        raise ConfigError(msg, key="seconds", value=seconds, allowed=f"0 to {MOST_LOAD_S:g}")
    return [Case("clock", ClockProgram(dtype=dtype, seconds=seconds)) for dtype in dtypes]


MOST_LOAD_S = 600.0
