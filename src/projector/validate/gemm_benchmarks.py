"""What a GEMM row says of the benchmark that timed it: library, loop, and what is quantised.

What a loop adds to a kernel belongs to its benchmark and is no property of a device: each floor is
a reading of the smallest rows of that benchmark.
"""

import re
from dataclasses import dataclass

from projector.lower.hardware import Run
from projector.validate.kind import Row

_LIBRARIES = (
    (re.compile(r"CUTLASS CuTeDSL"), "cutedsl"),
    (re.compile(r"DeepGEMM"), "deepgemm"),
    (re.compile(r"Triton|tritonBLAS|.*\(Triton\b"), "triton"),
    (re.compile(r"CK\b|.*\(CK\)|Primus-Turbo gemm_fp8 blockwise,"), "ck"),
    # rocBLAS takes its kernels from the same generator, and PyTorch takes hipBLASLt's.
    (re.compile(r"hipBLASLt|rocBLAS|.*\(hipBLASLt|Primus-Turbo gemm_fp8 tensorwise"), "hipblaslt"),
    (re.compile(r"torch\.m"), "hipblaslt"),
    (re.compile(r"HipKittens"), "hipkittens"),
    # Of what AITER's tuner took, these are kernels of others.
    (re.compile(r"AITER torch"), "hipblaslt"),
    (re.compile(r"AITER triton"), "triton"),
    (re.compile(r"AITER"), "aiter"),
    (re.compile(r"PyTorch"), "pytorch"),
)
"""Beginning of a library's name -> name of a GEMM library in device files."""

_INFERENCE_LIBRARIES = {"fp8_block": "deepgemm", "nvfp4": "trtllm_nvfp4"}
"""Library that TensorRT-LLM uses for a type, if the device describes it."""


_MEMBERS = {
    "AITER asm": "aiter_asm",
    "AITER cktile": "cktile",
    "AITER ck": "ck",
    "AITER flydsl": "flydsl",
    "AITER opus": "flydsl",
}
"""Beginning of the name of a kernel that AITER's tuner took -> library that has it."""


def member_of(row: Row) -> str:
    """Return the library that has the kernel which a tuner took, where the row names it."""
    name, config = row.get("library") or "", row.get("kernel_config") or ""
    if name.startswith("AITER ck,") and "preshuffle" in config:
        return "ck_preshuffled"
    return next((known for start, known in _MEMBERS.items() if name.startswith(start)), "")


def library_of(row: Row, scaling: str) -> str:
    """Return the GEMM library of a row by its name in device files; ``default`` for any other.

    ``scaling`` is the type of the operands, ``fp8_block`` where FP8 has a scale for each block. A
    single group of 16 bits runs faster than CK's grouped kernels could (`grouped_kernel`).
    """
    name = row.get("library") or ""
    if name.startswith("TensorRT-LLM"):
        return _INFERENCE_LIBRARIES.get(scaling, "default")
    lone = (row.get("groups") or "").strip() == "1" and scaling in ("bf16", "fp16")
    if name.startswith("Primus-Turbo grouped_gemm (CK)") and lone:
        return "hipblaslt"
    return next((known for start, known in _LIBRARIES if start.match(name)), "default")


@dataclass(frozen=True, slots=True)
class Loop:
    """How a benchmark calls a kernel, and what that costs."""

    vendor: str
    """Vendor of its devices; ``""`` for any."""
    rows: re.Pattern[str]
    """Found in ``library | op | in_dtype | gpu | source`` of its rows."""
    added_us: float = 0.0
    """Time of every call beside the kernels, whatever they do."""
    least_us: float = 0.0
    """What the host takes for a call, so that shorter kernels wait."""
    run: Run | None = None
    """Clocks that its rows met, where ``clock_note`` does not say."""


LOOPS = (
    # Operators of a training framework meet the clock of training.
    Loop("", re.compile(r"^TransformerEngine"), run="training"),
    # Readings of several tables that launch every call themselves, rather than in a graph.
    Loop("nvidia", re.compile(r"^(cuBLASLt|CUTLASS) \|"), added_us=3.0),
    Loop("nvidia", re.compile(r"^PyTorch \|"), added_us=11.0),
    # All sixteen rows of the two smallest shapes lie at 23 to 26 us, whatever the tile.
    Loop("", re.compile(r"^CUTLASS CuTeDSL.*\| nvfp4"), least_us=24.0),
    # HipKittens' figures. At 1024 x 1024 x 1024 kernels that are launched directly take 7 to 15 us.
    # Through PyTorch they take 36 to 40 us on MI355X, 28 more than the same kernel of hipBLASLt.
    # Both libraries on MI325X (27 and 36 us) and the FP6 kernel (29 us) have 14 us less of it.
    Loop(
        "amd", re.compile(r"^(HipKittens|PyTorch) \| \w+ \| (fp6 |\w+ \| MI325X )"), added_us=14.0
    ),
    Loop("amd", re.compile(r"^(hipBLASLt|HipKittens|CK) \|"), added_us=4.0),
    Loop("amd", re.compile(r"^(PyTorch|AITER|Triton) \|"), added_us=28.0),
    # The logic files of hipBLASLt for MI210: the nine smallest of each type lie 28 to 35 us above a
    # MI250X die with two more units, whose own logic file begins at 6 us.
    Loop("amd", re.compile(r"^hipBLASLt, fastest of the tuner.*\| MI210 "), added_us=31.0),
    # Loops of Primus-Turbo: a call of PyTorch a hundred times, at the clock of training. A call of
    # a grouped GEMM is the same 64 to 67 us for a group of 512 or 1,024 rows, a backward 140 to 150
    # us, and one that quantises first 113 to 121 us up to three times as much work. Its dense rows
    # are all longer than its host.
    Loop(
        "amd",
        re.compile(r"^Primus-Turbo grouped_gemm .*\| grouped gemm \(fwd"),
        least_us=64.0,
        run="training",
    ),
    Loop(
        "amd",
        re.compile(r"^Primus-Turbo grouped_gemm .*\| grouped gemm \(bwd"),
        least_us=140.0,
        run="training",
    ),
    Loop(
        "amd", re.compile(r"^Primus-Turbo grouped_gemm_fp8 .*\(fwd"), least_us=114.0, run="training"
    ),
    Loop("amd", re.compile(r"^Primus-Turbo"), run="training"),
)
"""Loops whose cost shows in their rows, the first that is found counting. Others time the kernel
alone, as a profiler or a graph does: the tuner of AITER lies at 2.6 to 4 us where there is next to
nothing to do, the logic files of hipBLASLt for MI250X at 6 us."""

_NONE = Loop("", re.compile(""))


def loop_of(row: Row, vendor: str) -> Loop:
    """Return the loop of a row's benchmark."""
    columns = ("library", "op", "in_dtype", "gpu", "source")
    text = " | ".join((row.get(column) or "").strip() for column in columns)
    fits = (loop for loop in LOOPS if loop.vendor in ("", vendor) and loop.rows.search(text))
    return next(fits, _NONE)
