"""How a device multiplies matrices: the tiles its libraries offer, and the power it takes."""

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from projector.config._base import Config, Count, NotNegative, Positive

MatrixType = Literal[
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "mxfp8",
    "nvfp4",
    "int8",
    "fp8_block",
    "mxfp6",
    "mxfp4",
]
"""Type of both operands. ``fp8`` has a scale for each tensor, row or column; ``fp8_block`` one for
every 1 x 128 of A and 128 x 128 of B; the MX types one for every 32 elements."""

MATRIX_TYPES: tuple[MatrixType, ...] = get_args(MatrixType)

_SPELLINGS = {"fp8_blockwise": "fp8_block"}


def matrix_type_named(text: object) -> object:
    """Return the name of a matrix type that may be spelled otherwise, such as ``fp8-blockwise``.

    What is no such name is returned as it is, to be refused where it is checked.
    """
    if not isinstance(text, str):
        return text
    name = text.strip().lower().replace("-", "_")
    name = _SPELLINGS.get(name, name)
    return name if name in MATRIX_TYPES else text


SpelledMatrixType = Annotated[MatrixType, BeforeValidator(matrix_type_named)]
"""A matrix type in a user's own input."""


Share = Annotated[float, Field(gt=0, le=1)]

MOST_TILES = 64
"""Longest tile menu."""

K_PARTS = (2, 4, 8, 16)
"""Numbers of parts that most libraries cut K into."""

MOST_SPLITS = 24
"""Most numbers of parts to choose from."""

MOST_PARTS = 64
"""Parts of K beyond which no library goes."""

MOST_ROWS = 1024
"""Rows or columns beyond which no compute unit holds a tile."""

MOST_UNITS = 16
"""Units beyond which no device forms a cluster."""


Parts = Annotated[int, Field(gt=1, le=MOST_PARTS)]


class GemmTile(Config):
    """One output tile of a compute unit that a GEMM library offers."""

    m: int = Field(gt=0, le=MOST_ROWS)
    """Rows of the output tile."""

    n: int = Field(gt=0, le=MOST_ROWS)
    """Columns of the output tile."""

    k_bytes: Count
    """Bytes of the K dimension that one step of the main loop takes of each operand row."""

    efficiency: float = Field(default=1.0, gt=0, le=1)
    """Share of the matrix pipe that the main loop keeps busy at a given clock."""

    cluster_m: int = Field(default=1, gt=0, le=MOST_UNITS)
    """Units of a thread-block cluster along M; they share one load of B from L2."""

    cluster_n: int = Field(default=1, gt=0, le=MOST_UNITS)
    """Units of a thread-block cluster along N; they share one load of A from L2."""

    pair: Literal["m", "n"] | None = None
    """Whether two units along M (or N) run one instruction, so that each takes in only half of
    B (or A)."""

    step_clk: NotNegative | None = None
    """Clocks that each step of its main loop adds, instead of those of its library."""


class GemmLibrary(Config):
    """What one GEMM library does otherwise than the device's default one."""

    tiles: tuple[GemmTile, ...] = Field(default=(), max_length=MOST_TILES)
    """Its tile menu; none given means the device's ``gemm_tiles``."""

    tiles_of: dict[MatrixType, Annotated[tuple[GemmTile, ...], Field(max_length=MOST_TILES)]] = (
        Field(default_factory=dict)
    )
    """Menus of the types that have their own."""

    members: tuple[str, ...] = ()
    """Libraries of the device whose kernels it picks from; then it has no menu,
    efficiency or ``step_clk`` of its own, and takes theirs kernel by kernel."""

    step_clk: NotNegative | None = None
    """Instead of ``gemm_step_clk``."""

    overhead_us: NotNegative | None = None
    """Its fixed cost, instead of ``gemm_overhead_us``."""

    split_k: Annotated[tuple[Parts, ...], Field(max_length=MOST_SPLITS)] | bool = True
    """Whether it splits K, into 2, 4, 8 or 16 parts, or the numbers of parts that it offers."""

    group_m: Count | None = None
    """Rows of tiles that are worked off together before the next columns; none given means the
    near-square groups of tiles that libraries swizzle to."""

    efficiency: dict[MatrixType, Share] = Field(default_factory=dict)
    """Instead of ``gemm_efficiency``."""

    clk_per_k: dict[MatrixType, NotNegative] = Field(default_factory=dict)
    """Instead of ``gemm_clk_per_k``."""


class Quantising(Config):
    """The kernels with which an inference library quantises a 16-bit activation."""

    start_us: NotNegative
    """What they cost whatever the size."""

    bytes_per_element: Positive
    """Traffic of one element of the activation."""

    tb_per_s: Positive
    """Rate of that traffic."""


class Power(Config):
    """What a kernel takes at the clock it runs at; CMOS, voltage linear in the clock.

    ``watts = idle_w + (joules of its FLOP and bytes) * V^2 / time`` with
    ``V = voltage_floor + (1 - voltage_floor) * clock / max_clock_mhz``.
    """

    max_clock_mhz: Positive
    """Highest clock, of a short kernel on a cool device."""

    idle_w: NotNegative
    """Power whatever the kernel does."""

    voltage_floor: float = Field(ge=0, lt=1)
    """Voltage at the lowest clock over that at the highest."""

    pj_per_flop: dict[MatrixType, Positive]
    """Energy of one FLOP at the highest clock, random data. A type without one runs at its
    sustained clock."""

    pj_per_hbm_byte: NotNegative
    """Energy of one byte from memory."""

    loaded_share: float = Field(default=0.97, gt=0)
    """Share of the cap that a device holds under a load of a second."""

    short_share: float = Field(default=1.0, gt=0)
    """The same for a few launches, before the controller reacts."""


class WsPersistent(Config):
    """Constants of the documented model of warp-specialised persistent GEMMs."""

    setup_clk: NotNegative = 8000.0
    """Clocks before the first load."""

    epilogue_clk: NotNegative = 1000.0
    """Clocks of an epilogue whatever its size."""

    first_load_bytes: NotNegative = 32.0
    """Bytes of K of each operand row that the first load brings."""
