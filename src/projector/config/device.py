"""One accelerator: what its datasheet, microbenchmarks and libraries say about it.

Rates are decimal (1 TB/s = 1e12 bytes/s), capacities binary. In a device file every number
is given with its source, ``{value: 304, source: name}``, where ``name`` is a key of the file's
``sources`` table or free text; in a user's own file or override a bare number will do.
"""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from projector.config import device_kernels as kernels
from projector.config._base import (
    USABLE,
    AtLeastOne,
    Count,
    CountOrNone,
    Label,
    NotNegative,
    Positive,
    Sourced,
    check_most,
)
from projector.errors import ConfigError

CollectiveAlgorithm = Literal[
    "ring", "tree", "halving_doubling", "bruck", "direct", "hierarchical", "in_network", "pairwise",
    "pat",
]  # fmt: skip
"""What a library may do to serve a collective; ``docs/collectives.md`` has the terms of each."""

TrainingClass = Literal["16_bit", "8_bit"]
"""Matrix types that share a constant of training: those of 16 bits and more, and the narrower."""

TrainingShare = Annotated[float, Field(gt=0, le=2)]
"""Rate within a training step over that of the same kernel alone, at its sustained clock."""

STALE_PEAK = 0.15
"""A datasheet peak this far from units * rate * clock is not this device's."""


class Device(Sourced):
    """An accelerator, as the kernels see it."""

    name: str
    vendor: Literal["amd", "nvidia", "other"]
    """Decides nothing; shown in reports and used to choose a default node."""
    architecture: str
    """Family name, e.g. ``cdna3`` or ``hopper``; decides nothing."""
    compute_units: Annotated[Count, Label("compute units")]
    """Streaming multiprocessors or compute units."""
    dies: Count = 1
    """Compute dies with an L2 of their own (XCDs on CDNA)."""
    peak_clock_mhz: Annotated[Positive, Label("peak clock")]
    """Clock at which the datasheet peaks hold."""
    sustained_clock_mhz: Annotated[dict[kernels.MatrixType, Positive], Label("sustained clock")]
    """Clock under a long dense matrix load of each type, within the power cap."""
    matrix_flop_per_clk_per_cu: Annotated[dict[kernels.MatrixType, Positive], Label("matrix rate")]
    """Dense matrix rate of one compute unit, for every type that it has natively."""
    matrix_instructions: dict[kernels.MatrixType, str] = Field(default_factory=dict)
    """Matrix instruction of long main loops, where it is known; decides nothing, shown in
    explanations."""
    matrix_peak_tflops: Annotated[dict[kernels.MatrixType, Positive], Label("matrix peak")]
    """Dense datasheet peak, the denominator of MFU."""
    gemm_efficiency: dict[kernels.MatrixType, kernels.Share]
    """Share of the rate at the sustained clock that the best large GEMM reaches."""
    vector_tflops: Annotated[Positive, Label("vector rate")]
    """FP32 vector rate."""
    transcendental_per_clk_per_cu: Annotated[Positive, Label("transcendental rate")]
    """Exponentials a compute unit starts per clock."""
    lds_kib_per_cu: Annotated[Positive, Label("shared memory", "KiB per compute unit")]
    """Shared memory (LDS) of one compute unit."""
    l2_fill_bytes_per_clk_per_cu: Annotated[Positive, Label("L2 fill rate")]
    """Bytes a compute unit can take from L2 per clock."""
    l2_mib: Annotated[Positive, Label("L2 cache")]
    """L2 of the whole device."""
    l2_tb_per_s: Annotated[Positive, Label("L2 bandwidth")]
    """L2 read bandwidth of the whole device at ``peak_clock_mhz``."""
    mall_mib: Annotated[NotNegative, Label("last-level cache")] = 0.0
    """Memory-side cache (Infinity Cache); 0 without one."""
    mall_tb_per_s: Annotated[NotNegative, Label("last-level cache bandwidth")] = 0.0
    """Bandwidth of the memory-side cache."""
    hbm_gib: Annotated[Positive, Label("memory size"), USABLE]
    """Memory as the driver reports it."""
    hbm_peak_tb_per_s: Annotated[Positive, Label("memory bandwidth")]
    """Datasheet memory bandwidth."""
    hbm_efficiency: Annotated[float, Label("share of memory bandwidth reached")] = Field(gt=0, le=1)
    """Share of the peak bandwidth that a long streaming kernel reaches."""
    elementwise_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the peak bandwidth that memory-bound operators of a framework reach (norms,
    activations, quantising, permutation); none given means hbm_efficiency."""
    hbm_latency_us: Annotated[NotNegative, Label("memory latency")]
    """Load latency from memory, idle."""
    tdp_w: Annotated[Positive, Label("power limit")]
    """Power cap."""
    kernel_start_us: NotNegative
    """Time from one kernel's end to the next one's first work when the queue is full."""
    kernel_start_graph_us: NotNegative
    """The same inside a CUDA or HIP graph."""
    gemm_overhead_us: NotNegative
    """Fixed cost of one GEMM kernel: launch within a full queue, prologue, first loads."""
    gemm_split_k_us: NotNegative
    """Cost of reducing the partial results of one split-K GEMM."""
    gemm_overlap_loss: float = Field(default=0.1, ge=0, le=1)
    """Share of the shorter of compute and memory time that a GEMM does not hide. Fits over
    GEMM tables barely see it (0.0 to 0.3 do equally well)."""
    gemm_epilogue_clk: NotNegative = 0.0
    """Clocks that a tile's epilogue takes whatever its size."""
    gemm_epilogue_bytes_per_clk_per_cu: Positive = 64.0
    """Bytes of output that a compute unit drains, converts and stores per clock."""
    gemm_epilogue_exposed: float = Field(default=1.0, ge=0, le=1)
    """Share of a tile's epilogue that the next tile of a compute unit waits for: 1 where
    work-groups follow one another, less in persistent kernels that overlap them."""
    gemm_clk_per_k: dict[kernels.MatrixType, NotNegative] = Field(default_factory=dict)
    """Least clocks that a tile needs for one element of K, however small it is."""
    gemm_step_clk: NotNegative = 0.0
    """Clocks that each step of a main loop adds: barriers, and waits that no prefetch hides."""
    gemm_scale_instructions: NotNegative = 0.0
    """Vector instructions that an accumulator takes for each block of K with scales of its own
    (``fp8_block``) in a library that is named, while the matrix pipe waits; of the default one, and
    where it is 0, the efficiency of the type holds them."""
    gemm_scale_lanes_per_cu: Positive = 128.0
    """FP32 lanes of a compute unit that start such an instruction each clock."""
    gemm_fill_bytes_per_clk_per_cu: Positive | None = None
    """Bytes of operands that the main loop of a GEMM brings to the matrix pipe of a compute unit
    per clock, through L1 and shared memory; none given means ``l2_fill_bytes_per_clk_per_cu``."""
    gemm_l2_miss_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the loads beyond the first of each element that miss L2 although it would fit."""
    gemm_unaligned_loads: AtLeastOne = 1.0
    """By how much longer L2 takes to load A and B where they lie along K and their rows are no
    multiple of 16 bytes."""
    gemm_hbm_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the peak bandwidth that GEMMs reach; none given means hbm_efficiency."""
    gemm_die_aware: bool = True
    """Whether neighbouring tiles run on one die, rather than in turn on all of them."""
    gpc_units: tuple[Count, ...] = ()
    """Compute units of each graphics cluster, which a thread-block cluster cannot cross; none
    given means that only the whole device bounds it. Where they do not add up to
    ``compute_units``, the device was changed, and they are taken in proportion."""
    grouped_gemm_efficiency_forward: float = Field(default=1.0, gt=0, le=1)
    """Rate of a grouped GEMM (experts) over that of one dense GEMM of the same size, forward."""
    grouped_gemm_efficiency_backward: float = Field(default=1.0, gt=0, le=1)
    """The same for input and weight gradients."""
    expert_family: str | None = None
    """Architecture whose layers of experts (``hardware/experts.yaml``) this device has; what stands
    under ``expert_layer`` and ``expert_exchange`` is laid over them."""
    expert_layer: kernels.ExpertLayerCosts = kernels.ExpertLayerCosts()
    """Grouped GEMMs over unequal loads, and the kernels around them (inference)."""
    expert_exchange: kernels.ExpertExchange = kernels.ExpertExchange()
    """Dispatch and combine of a mixture of experts by a fused kernel (DeepEP)."""
    gemm_tiles: tuple[kernels.GemmTile, ...] = Field(min_length=1, max_length=kernels.MOST_TILES)
    """Tile menu of the GEMM library that training uses by default."""
    gemm_libraries: dict[str, kernels.GemmLibrary] = Field(default_factory=dict)
    """Other GEMM libraries on this device, by name."""
    quantising: dict[str, kernels.Quantising] = Field(default_factory=dict)
    """Quantising kernels by the scaling they serve: ``fp8``, ``fp8_block``, ``nvfp4``."""
    ws_persistent: kernels.WsPersistent = Field(default_factory=kernels.WsPersistent)
    """Constants of the documented GEMM model; the defaults are those of its author for B200."""
    power: kernels.Power | None = None
    """Where it is known, the clock of a single kernel follows from it; training runs at
    ``sustained_clock_mhz`` all the same."""
    gemm_family: str | None = None
    """Architecture whose GEMM libraries and constants (``hardware/gemm.yaml``) this device has;
    what the device gives itself is laid over them."""
    training_gemm_share: Annotated[
        dict[TrainingClass, TrainingShare], Label("GEMM rate kept in training")
    ] = Field(default_factory=dict)
    """Rate of a GEMM within a training step over that of the same GEMM alone at its sustained
    clock: its operands are cold or transposed, and it shares compute units with collectives and
    power with what surrounds it. The architecture's (``hardware/training.yaml``), unless the device
    states its own; 1 where neither has a class."""
    training_attention_share: Annotated[TrainingShare, Label("attention rate kept in training")] = (
        1.0
    )
    """Rate of attention within a training step over that of the same kernel alone. Published runs
    do not ask for one; a calibration to a user's own runs may."""
    training_memory_share: Annotated[TrainingShare, Label("memory rate kept in training")] = 1.0
    """The same of memory-bound operators: it also stands for passes that a framework makes more or
    less than what is counted."""
    calibrated_to: tuple[str, ...] = ()
    """Model and precision of each of a user's own runs that its constants were fitted to
    (``projector calibrate --from-run``)."""
    attention_family: str | None = None
    """Architecture whose attention kernels (``hardware/attention.yaml``) this device has; what
    stands under ``attention`` and ``attention_kernels`` is laid over them."""
    attention_clock_mhz: Positive | None = None
    """Clock of attention in a training step; none means the sustained clock of bf16."""
    attention_boost_clock_mhz: Positive | None = None
    """Clock of attention in short runs (benchmarks); none means the peak clock."""
    attention: kernels.AttentionKernel
    """The attention that training uses by default."""
    attention_kernels: dict[str, kernels.AttentionKernel] = Field(default_factory=dict)
    """Attentions on this device by the name that a job may ask for."""
    context_gib: NotNegative = 0.5
    """Memory of the driver's context with the kernels that it has loaded."""
    communicator_gib: NotNegative = 0.6
    """Memory that one communicator of the collective library keeps for its channels."""
    exchange_peer_gib: NotNegative = 0.45
    """Memory of its channels for each peer that a rank exchanges tokens with directly."""
    gemm_workspace_mib: NotNegative = 32.0
    """Workspace that PyTorch, and a library of fused layers once more, allocate for GEMMs."""
    scale_up_gb_per_s: Annotated[Positive, Label("scale-up bandwidth")]
    """Bandwidth of one device into its scale-up fabric, per direction."""
    scale_up_peer_gb_per_s: Annotated[Positive, Label("scale-up to one peer")]
    """The most one pair of devices gets, per direction: one link of a mesh, all of a switch."""
    scale_up_efficiency: Annotated[float, Label("share of scale-up bandwidth reached")] = Field(
        gt=0, le=1
    )
    """Share of the link rate that large ring collectives reach."""
    scale_up_latency_us: Annotated[NotNegative, Label("scale-up latency")]
    """One hop of a ring or tree within the scale-up domain."""
    collective_start_us: NotNegative
    """Fixed cost of any collective."""
    in_network_all_reduce_gb_per_s: NotNegative = 0.0
    """Algorithm bandwidth of a switch-reduced all-reduce (NVLS); 0 where there is none."""
    in_network_all_reduce_min_gpus: CountOrNone = 0
    """Fewest devices for which the library uses it."""
    collective_tree_efficiency: float = Field(default=0.92, gt=0, le=1)
    """Share of the rates of a domain (of its links, or of a reduction in its switch) that its part
    of a tree across domains reaches; 0.92 is what NCCL's tuner takes (src/graph/tuning.cc)."""
    in_network_chunk_us: NotNegative = 0.0
    """As collective_chunk_us, of a switch-reduced all-reduce."""
    collective_simple_start_us: NotNegative = 0.0
    """What a collective without flags beside its data (NCCL's Simple protocol) costs on top of one
    with flags (LL). 0 where collective_start_us holds it already."""
    collective_flag_traffic: AtLeastOne = 2.0
    """Time on the wire of a byte with flags beside it, over that of one without: LL moves four
    bytes of flags with four of data, and also keeps fewer bytes in flight."""
    collective_flagged_algorithms: tuple[CollectiveAlgorithm, ...] = (
        "ring",
        "tree",
        "hierarchical",
        "pairwise",
    )
    """Algorithms that the library has with flags. Others are made of sends without flags."""
    collective_chunk_us: NotNegative = 0.0
    """What cutting a message into one more chunk costs. A collective without flags fills and drains
    its links in 2·sqrt(chunk · time on the wire), with as many chunks as are best."""
    collective_fill_limit_us: NotNegative = 100.0
    """The most that filling and draining takes: chunks have a largest size as well."""
    collective_exchange_efficiency: float = Field(default=1.0, gt=0, le=1)
    """Rates within a domain in an all-to-all or message over those in a ring."""
    collective_exchange_step_us: NotNegative | None = None
    """An exchange with partners other than the neighbours in a ring or tree, to which a library
    sends all the time; scale_up_latency_us where none is given."""
    collective_exchange_issue_us: NotNegative | None = None
    """Each message of such an exchange; scale_up_latency_us where none is given."""
    collective_exchange_simple_start_us: NotNegative | None = None
    """As collective_simple_start_us, of an all-to-all or message; the same where none is given."""
    collective_exchange_flag_kib: NotNegative = 16.0
    """Largest message of an all-to-all, or between two ranks, that has flags."""
    collective_pat_efficiency: float = Field(default=0.75, gt=0, le=1)
    """Rate of an adapter under aggregated trees (PAT) over that under a ring, as NCCL's tuner has
    it."""
    collective_self_copy_share: float = Field(default=0.0, ge=0, le=2)
    """Share of m/n that an out-of-place collective moves on top of its ring traffic (its self
    copy); 0 where scale_up_efficiency was taken from large rings and holds it already."""
    collective_ring_gpus: tuple[Annotated[int, Field(ge=2, le=16)], ...] = ()
    """Numbers of devices of a mesh for which the library has rings over all their links; a smaller
    group of another number has one ring, over one link of each device. Empty: any number."""
    collective_gather_ring_kib: NotNegative = 0.0
    """Buffer of a gather or scatter within an irregular node up to which it has one ring over the
    slowest link, where larger ones, reductions and broadcasts have all rings."""
    collective_algorithms: tuple[CollectiveAlgorithm, ...] = get_args(CollectiveAlgorithm)
    """What may serve a collective; the default is whatever can."""
    fp8_transposes: bool = True
    """Whether FP8 GEMMs with one scale a tensor read both operands along K alone, so that what a
    gradient reads as well is quantised into two layouts."""
    collective_network_algorithms: tuple[CollectiveAlgorithm, ...] = (
        "ring", "tree", "direct", "in_network", "pairwise", "pat",
    )  # fmt: skip
    """Those of them that the library has between domains; what no other serves may be any. NCCL and
    RCCL gather and scatter in one ring through all ranks (NVIDIA/nccl ``src/graph/tuning.cc``), and
    by ``pat`` where each domain has one rank."""
    comm_compute_slowdown: float = Field(default=0.0, ge=0, le=1)
    """Share by which compute is slowed while a collective of one scale-up domain runs beside it."""
    comm_compute_slowdown_network: float | None = Field(default=None, ge=0, le=1)
    """The same while it moves between domains, by the share of hops of a ring that do; none given
    means as within."""
    compute_comm_slowdown: float = Field(default=0.0, ge=0, le=4)
    """Share by which a collective takes longer while compute runs beside it."""
    fsdp1_clock_share: float = Field(default=1.0, gt=0, le=1)
    """Clock that a training step sustains under FSDP 1 over that under anything else. A locked
    clock (``cluster.gpu_clock_mhz``) is not lowered."""
    fsdp1_memory_clock_share: float = Field(default=1.0, gt=0, le=1)
    """The same of the memory's clock, and so of its bandwidth."""
    host_link_gb_per_s: Annotated[Positive, Label("link to the host")]
    """Host link, per direction."""
    network: str
    """Cluster network that this device usually comes with (``hardware/networks.yaml``)."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Check what fields must have in common; each by itself is taken for legal."""
        for field in ("sustained_clock_mhz", "matrix_peak_tflops", "gemm_efficiency"):
            missing = self.matrix_flop_per_clk_per_cu.keys() - getattr(self, field).keys()
            if missing:
                msg = f"{field} lacks {', '.join(sorted(missing))}, which the device has natively"
                raise ConfigError(msg, key=field, allowed=sorted(self.matrix_flop_per_clk_per_cu))
        for kind, clock in self.sustained_clock_mhz.items():
            name = f"sustained_clock_mhz.{kind}"
            check_most(name, clock, "peak_clock_mhz", self.peak_clock_mhz)
        if self.power is not None:
            self._check_power(self.power)
        self._check_libraries()
        fastest = self.attention_boost_clock_mhz or self.peak_clock_mhz
        check_most("attention_clock_mhz", self.attention_clock_mhz or 0.0, "its boost", fastest)
        name, other = "scale_up_peer_gb_per_s", "scale_up_gb_per_s"
        check_most(name, self.scale_up_peer_gb_per_s, other, self.scale_up_gb_per_s)

    def _check_power(self, power: kernels.Power) -> None:
        cap_w = self.tdp_w * min(power.loaded_share, power.short_share)
        if power.idle_w >= cap_w:
            msg = f"power.idle_w ({power.idle_w:g}) must be below the cap ({cap_w:g} W)"
            raise ConfigError(msg, key="power.idle_w", value=power.idle_w, allowed=f"< {cap_w:g}")

    def _check_libraries(self) -> None:
        if "default" in self.gemm_libraries:
            msg = "gemm_libraries.default: this name stands for gemm_tiles; choose another"
            raise ConfigError(msg, key="gemm_libraries.default", value="default")
        known = [name for name, library in self.gemm_libraries.items() if not library.members]
        for name, library in self.gemm_libraries.items():
            for member in library.members:
                if member not in known:
                    key = f"gemm_libraries.{name}.members"
                    msg = f"{key}: {member!r} is no library with kernels of its own"
                    raise ConfigError(msg, key=key, value=member, allowed=known)
            if library.members:
                self._check_members(name, library)

    def _check_members(self, name: str, library: kernels.GemmLibrary) -> None:
        key = f"gemm_libraries.{name}"
        for field in ("tiles", "tiles_of", "efficiency", "step_clk"):
            if getattr(library, field):
                msg = f"{key}.{field}: it takes the kernels of its members; set it of one of those"
                raise ConfigError(msg, key=f"{key}.{field}", allowed=list(library.members))
        members = [self.gemm_libraries[member] for member in library.members]
        most = max(
            sum(len(each.tiles_of.get(kind) or each.tiles or self.gemm_tiles) for each in members)
            for kind in kernels.MATRIX_TYPES
        )
        if most > kernels.MOST_TILES:
            msg = f"{key}.members: they have {most} tiles together, more than {kernels.MOST_TILES}"
            raise ConfigError(
                msg, key=f"{key}.members", value=most, allowed=f"<= {kernels.MOST_TILES}"
            )

    def gemm_library(self, name: str) -> kernels.GemmLibrary:
        """Return a GEMM library by name, the default one for any other name."""
        return self.gemm_libraries.get(name, kernels.GemmLibrary())

    @property
    def highest_clock_mhz(self) -> float:
        """Highest clock of a kernel: the boost may lie above the clock of a datasheet's peak."""
        return max(self.peak_clock_mhz, 0.0 if self.power is None else self.power.max_clock_mhz)

    def peak_tflops(self, kind: kernels.MatrixType) -> float:
        """Return the dense peak of a type, the denominator of MFU.

        The datasheet's, or units * rate * peak clock where that is higher (some datasheets quote
        a lower clock), or where they are `STALE_PEAK` apart: then an override changed the
        device and the datasheet speaks of another one.
        """
        rate = self.matrix_flop_per_clk_per_cu[kind] * self.compute_units * self.peak_clock_mhz
        computed = rate * 1e-6
        stated = self.matrix_peak_tflops[kind]
        return computed if abs(stated / computed - 1.0) > STALE_PEAK else max(stated, computed)
