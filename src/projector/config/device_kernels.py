"""What a device file says about kernels: GEMMs, power, attention, layers of experts, exchanges."""

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from projector.config._base import Config, Count, CountOrNone, NotNegative, Positive

MatrixType = Literal[
    "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8", "fp8_block", "mxfp6", "mxfp4"
]
"""Type of both operands. ``fp8`` has a scale for each tensor, row or column; ``fp8_block`` one for
every 1 x 128 of A and 128 x 128 of B; the MX types one for every 32 elements."""

MATRIX_TYPES: tuple[MatrixType, ...] = get_args(MatrixType)

_SPELLINGS = {"fp8_blockwise": "fp8_block"}


def matrix_type_named(text: object) -> object:
    """Return the name of a matrix type such as ``fp8-blockwise``; what is none stays for checks."""
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
    whole_k: tuple[MatrixType, ...] = ()
    """Types whose K it does not split all the same."""
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
    loaded_share: Positive = 0.97
    """Share of the cap that a device holds under a load of a second."""
    short_share: Positive = 1.0
    """The same for a few launches, before the controller reacts."""


class WsPersistent(Config):
    """Constants of the documented model of warp-specialised persistent GEMMs."""

    setup_clk: NotNegative = 8000.0
    """Clocks before the first load."""
    epilogue_clk: NotNegative = 1000.0
    """Clocks of an epilogue whatever its size."""
    first_load_bytes: NotNegative = 32.0
    """Bytes of K of each operand row that the first load brings."""


Evidence = Literal["width", "device", "family", "none"]
"""Where a kernel was measured: on this device at this head width, on it at others, on other
devices of the family, or nowhere."""


class AttentionHeadDim(Config):
    """What a fused attention (`AttentionKernel`) does otherwise at heads of one width.

    What is left out is as at 128.
    """

    forward_rows: Count | None = None
    forward_columns: Count | None = None
    backward_columns: Count | None = None
    backward_rows: Count | None = None
    forward_scale: float = Field(default=1.0, gt=0, le=4)
    """Efficiency of the forward inner loop over that at heads of 128; no more than makes it 1."""
    backward_scale: float = Field(default=1.0, gt=0, le=4)
    """Efficiency of the backward inner loop over that at heads of 128; no more than makes it 1."""
    forward_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Efficiency that forward_scale multiplies, where another kernel runs at this width."""
    backward_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Efficiency that backward_scale multiplies, where another kernel runs at this width."""
    mask_rows: CountOrNone = 0
    """Multiple of keys up to which masked work is done all the same; 0 means one inner step."""


class AttentionKernel(Config):
    """One attention implementation on this device.

    Its own fields describe heads of 128 elements; efficiencies are shares of the peak matrix rate
    at the clock of attention.
    """

    forward_rows: Count
    """Query rows of one work-group in the forward pass."""
    forward_columns: Count
    """Key columns of one inner step in the forward pass."""
    backward_columns: Count
    """Key columns of one work-group in the backward pass."""
    backward_rows: Count
    """Query rows of one inner step in the backward pass."""
    forward_efficiency: float = Field(gt=0, le=1)
    """Share of the matrix rate in the forward inner loop."""
    backward_efficiency: float = Field(gt=0, le=1)
    """Share of the matrix rate in the backward inner loop."""
    softmax_exposed: float = Field(ge=0, le=2)
    """Share of the softmax work that the matrix pipe does not hide."""
    tile_overhead_us: NotNegative
    """Start and finish of one work-group (load Q, store O)."""
    atomic_gb_per_s: Positive | None = None
    """Rate of FP32 atomic adds for dQ; none means dQ is written without atomics."""
    atomic_contention: NotNegative = 0.0
    """By how much of an uncontended add each further writer of one dQ in flight slows it (a
    writer is a block of keys; more of them meet in longer sequences and over more dies)."""
    dq_order_exposed: float = Field(default=0.0, ge=0, le=1)
    """Share that shows of the steps by which the blocks of one head start apart where they add
    their parts of dQ in a fixed order (deterministic backward); 0 means any order."""
    backward_softmax_exposed: float | None = Field(default=None, ge=0, le=2)
    """softmax_exposed of the backward; none means as forward."""
    backward_tile_overhead_us: NotNegative | None = None
    """tile_overhead_us of the backward; none means as forward."""
    longest_first: bool = False
    """Whether the longest work-groups of all heads start first in the forward. Otherwise the heads
    follow one another, each in the order of the sequence."""
    backward_longest_first: bool = False
    """The same in the backward."""
    vector_saving: float = Field(default=1.0, ge=1, le=8)
    """How many times fewer vector instructions the softmax takes than one a number and step."""
    mask_exposed: float = Field(default=0.0, ge=0, le=8)
    """By how much of its softmax work an inner step that is partly masked takes longer."""
    packs_heads: bool = False
    """Whether the query heads of one key head share the rows of a work-group (PackGQA)."""
    half_efficiency: float = Field(default=0.0, ge=0, le=1)
    """Efficiency of work-groups of half the rows over that of whole ones; the library takes them
    where they end sooner, as in grids that would leave units idle. 0 means it has none."""
    start_us: NotNegative | None = None
    """Fixed time of the forward's kernels; none means that of one GEMM."""
    backward_start_us: NotNegative | None = None
    """Fixed time of the backward's kernels; none means twice the forward's."""
    query_passes: NotNegative = 0.0
    """Passes of Q through memory that belong to the implementation (rotary positions)."""
    key_passes: NotNegative = 0.0
    """Passes of new K and V through memory that belong to it (append to a paged cache)."""
    token_ns: NotNegative = 0.0
    """Time of each new token in those passes."""
    forward_score_passes: NotNegative = 0.0
    """Passes over all scores through memory; 0 means that they are fused away."""
    backward_score_passes: NotNegative = 0.0
    """The same backward."""
    mask_score_passes: NotNegative = 0.0
    """Further passes over scores in memory where they are masked, forward."""
    head_dims: dict[Count, AttentionHeadDim] = Field(default_factory=dict, max_length=8)
    """Other head widths that the implementation has a tile or an efficiency for. A head takes the
    narrowest that holds it, else the widest."""
    forward_measured: dict[str, tuple[Count, ...]] = Field(default_factory=dict, max_length=32)
    """Head widths whose forward was measured, by name of the device. Elsewhere the numbers are
    those of other devices of the family, and a projection's band is wider."""
    backward_measured: dict[str, tuple[Count, ...]] = Field(default_factory=dict, max_length=32)
    """The same of the backward."""
    dtypes: tuple[MatrixType, ...] = ()
    """Types of Q, K and V that it takes. None given means any: the numbers are those of 16 bits,
    and other types have the same shares of their own matrix rate."""

    def evidence(self, device: str, width: int, *, backward: bool) -> Evidence:
        """Return where a pass was measured, for a device by its name and a width of its heads."""
        measured = self.backward_measured if backward else self.forward_measured
        if device in measured:
            return "width" if width in measured[device] else "device"
        return "family" if measured else "none"


class ExpertKernels(Config):
    """One kind of grouped GEMM and the passes around it in a mixture-of-experts layer."""

    start_us: NotNegative = 25.0
    """Fixed time of a layer on one rank: all its kernels start and end, in a graph."""
    expert_clk: NotNegative = 260.0
    """Clocks that an expert with tokens adds to each of the two GEMMs."""
    wave_clk: NotNegative = 3400.0
    """Clocks that each wave of tiles takes to start and end."""
    matrix_efficiency: Share = 0.9
    """Share of the matrix rate at peak_clock_mhz that the main loop reaches."""
    gemm_share: Share | None = None
    """Instead: share of a plain GEMM's rate (gemm_efficiency at sustained_clock_mhz)."""
    slowdown: Positive = 1.0
    """What the main loop and the memory take of a release, over what they take of a later one."""
    pass_elements_per_clk_per_cu: Positive = 12.0
    """Elements that a compute unit reads or writes per clock in passes over rows, beside what the
    memory takes: they gather rows and convert types."""
    tuned: bool = True
    """The tile was tuned on equal loads of up to `ExpertLayerCosts.tuned_tokens` tokens; otherwise
    it is picked for the loads."""
    quantises_apart: bool = True
    """Block scales: the activation is quantised in a pass of its own."""
    gathers: bool = False
    """A pass copies the rows together before finalising."""
    fuses: bool = False
    """The GEMMs gather their rows, apply the activation and sum the results of a token
    themselves, without passes of their own."""
    sum_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the peak memory rate at which fused GEMMs add their 16-bit results to the tokens'
    rows; none means that it is hidden."""
    row_tiles: tuple[Count, ...] = Field(default=(), max_length=8)
    """Its tile heights, where they are not those of `ExpertLayerCosts.row_tiles`."""
    slice_columns: CountOrNone = 0
    """Columns of an expert that a work-group takes through both GEMMs, where they are one kernel;
    0 means two kernels."""
    fullest_expert_clk: NotNegative = 0.0
    """Clocks that a row of the fullest expert costs in an activation that gives every expert the
    same few work-groups; 0 where rows are shared out evenly."""


class ExpertLayerCosts(Config):
    """What one rank's mixture-of-experts layer costs beside rates of the device."""

    row_tiles: tuple[Count, ...] = Field(default=(16, 32, 64, 128, 256), min_length=1, max_length=8)
    """Tile heights (tokens of one expert) that the grouped GEMM chooses from."""
    column_tiles: tuple[Count, ...] = Field(default=(64, 128), min_length=1, max_length=4)
    """Tile widths that the grouped GEMM chooses from."""
    libraries: tuple[str, ...] = ()
    """Libraries and releases whose measured layers the constants are fitted to."""
    tuned_tokens: Count = 8192
    """Most tokens that the library tunes its grouped GEMMs for; fewer are tuned for by the next
    power of two below."""
    overlap_loss: float = Field(default=0.2, ge=0, le=1)
    """Share of the shorter of compute and memory time that a grouped GEMM does not hide."""
    memory_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the peak memory rate at which grouped GEMMs stream weights and rows; none given
    means hbm_efficiency."""
    l2_efficiency: float = Field(default=0.0, ge=0, le=1)
    """Share of l2_tb_per_s at which all tiles together take in their operands; 0: never binds."""
    routing_start_us: NotNegative = 0.0
    """Fixed time of the kernels that route, sort and quantise, where start_us is that of the GEMMs
    alone; 0 where start_us holds it."""
    sort_unit_clk: NotNegative = 20.0
    """Clocks of one compute unit to sort one pick of a token by its expert."""
    fused_router_topk: Count = 16
    """Most picks for which routing is one fused kernel."""
    fused_router_experts: Count = 512
    """Most experts for which routing is one fused kernel."""
    unfused_router_us: NotNegative = 30.0
    """Fixed cost of routing that is not fused."""
    unfused_router_unit_clk: NotNegative = 7.0
    """Clocks of one compute unit that it adds for each score (token and expert)."""
    kernels: dict[str, ExpertKernels] = Field(
        default_factory=lambda: {"bf16": ExpertKernels()}, min_length=1
    )
    """By matrix type; ``fp8_block`` has a scale for every 128 elements, ``nvfp4_low_latency`` fuses
    activation and finalising into the GEMMs, ``mxfp4_fp8`` multiplies weights of the first type by
    activations of the second, and ``fp8_one`` is one kernel for both GEMMs. ``NAME@RELEASE`` is
    what an older release of the library ran. A type without an entry runs as the next wider one
    that has one."""


class ExchangeKernel(Config):
    """Dispatch or combine of one fused exchange kernel; ``docs/moe.md`` has the formula.

    The defaults are those of Hopper.
    """

    start_us: NotNegative = 25.0
    """Fixed time inside a scale-up domain."""
    scan_ns: NotNegative = 194.0
    """What a channel needs to look at one token, wherever it goes."""
    message_ns: NotNegative = 25.7
    """What a channel needs for each copy of a token, whatever its size."""
    copy_gb_per_s: Positive = 45.7
    """Rate at which one channel copies."""
    link_efficiency: float = Field(default=0.64, gt=0, le=1)
    """Share of the scale-up links' rate that all channels together reach."""
    first_gb_per_s: Positive = 6.1
    """Rate at which the first token passes through, before the pipeline of copies is full."""
    network_start_us: NotNegative = 13.0
    """Fixed time where the exchange leaves the scale-up domain, instead of start_us."""
    doubling_us: NotNegative = 3.1
    """What each doubling of the domains adds."""
    forward_slowdown: float = Field(default=1.15, ge=1, le=16)
    """How much longer copies take that forward tokens from other domains."""
    adapter_share: float = Field(default=1.03, gt=0, le=2)
    """Rate through the network adapters over the one that large collectives reach."""
    chunk_tokens: NotNegative = 12.0
    """Tokens of a channel that are on their way before the first one is forwarded."""


class LowLatencyExchange(Config):
    """Dispatch and combine of the kernel for few tokens, which sends each copy by itself."""

    start_us: NotNegative = 28.0
    doubling_us: NotNegative = 3.2
    link_efficiency: float = Field(default=0.8, gt=0, le=1)
    """Share of the scale-up links' rate that it reaches, copies to the own rank counted."""


class ExpertExchange(Config):
    """What a de-duplicating dispatcher (DeepEP) costs on this device."""

    dispatch: ExchangeKernel = ExchangeKernel()
    """Tokens on their way to the experts."""
    combine: ExchangeKernel = ExchangeKernel(
        start_us=26.0, scan_ns=760.0, message_ns=4.6, copy_gb_per_s=580.0, link_efficiency=0.67,
        first_gb_per_s=2.85, network_start_us=14.0, forward_slowdown=1.46,
    )  # fmt: skip
    """Tokens on their way back, summed."""
    bulk_dispatch: ExchangeKernel = ExchangeKernel(
        scan_ns=0.0, message_ns=0.0, copy_gb_per_s=58.0, link_efficiency=0.77, forward_slowdown=1.0
    )
    """The same by a kernel whose copies are bulk transfers (DeepEP V2, HybridEP)."""
    bulk_combine: ExchangeKernel = ExchangeKernel(
        start_us=26.0, scan_ns=0.0, message_ns=0.0, copy_gb_per_s=58.0, link_efficiency=0.77,
        first_gb_per_s=2.85, network_start_us=14.0, forward_slowdown=1.0,
    )  # fmt: skip
    """Tokens on their way back by such a kernel."""
    low_latency: LowLatencyExchange = LowLatencyExchange()
