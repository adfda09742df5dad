"""The machines a job runs on, and the host software that feeds them."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from projector.config import _base
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.network import Network, load_network, renamed
from projector.errors import ConfigError


class LossKernels(_base.Config):
    """What a cross-entropy does to each logit of a rank, in whole bytes.

    The defaults are those of the plain loss: logits are read in 16 bits, and FP32 copies of them
    are passed over five times forward and three times backward. Kept is the logarithm of the
    softmax; its own gradient and that of the logits, both in FP32, lie beside it when the backward
    begins (``nll_loss`` and ``log_softmax`` of PyTorch), and so do the 16-bit logits: a caller
    holds them, or their block is too small for anything in FP32. Counted, not measured.
    """

    forward_bytes: _base.Count = 22
    """Read and written in the forward pass."""
    backward_bytes: _base.Count = 12
    """Read and written in the backward pass."""
    saved_bytes: _base.CountOrNone = 4
    """Kept until the backward pass."""
    transient_bytes: _base.CountOrNone = 10
    """Held for a moment beside what is kept."""
    divided_bytes: _base.CountOrNone = 0
    """Held besides where tensor parallelism divides the vocabulary."""
    launches: _base.Count = 8
    """Kernels of one pass, whatever the number of logits."""


class FusedLossKernels(LossKernels):
    """The same for one kernel that works on 16-bit logits in place.

    Counted from the Triton kernels of Transformer Engine, not measured: one reads the logits for
    maximum and sum, one replaces them by their gradient, and the backward scales that in place.
    """

    forward_bytes: _base.Count = 6
    backward_bytes: _base.Count = 4
    saved_bytes: _base.CountOrNone = 2
    transient_bytes: _base.CountOrNone = 2
    launches: _base.Count = 2


class FlatShards(_base.Config):
    """What sharding copies beside its collectives: bytes read or written for each byte sent.

    The defaults are those of FSDP 1, whose flat parameter is gathered in place, and whose gradients
    are copied into one buffer. Counted from the code of PyTorch, not measured.
    """

    gather_passes: _base.NotNegative = 0.0
    """Of the gathered weights of a layer."""
    reduce_passes: _base.NotNegative = 2.0
    """Of its gradients before they are reduced."""


class ParameterShards(FlatShards):
    """The same for FSDP 2, which copies each parameter out of what was gathered as well.

    Its copies run in the stream of the compute (Chopper sees them there).
    """

    gather_passes: _base.NotNegative = 2.0


class AllocatorConfig(_base.Config):
    """What a caching allocator reserves beside what is allocated."""

    expandable_segments: Annotated[bool, _base.USABLE] = False
    """Whether segments grow in place, so that freed blocks of any size serve again."""
    idle_share: Annotated[float, _base.USABLE] = Field(default=0.138, ge=0, le=4)
    """Of activations and working sets, what lies in freed blocks that serve no later request: a
    block serves only requests that are no larger. Fitted over all published rows of reserved and
    device memory (``validation/fit_memory.py``). It is given back before anything fails."""
    pinned_share: Annotated[float, _base.USABLE] = Field(default=0.03, ge=0, le=4)
    """Of the same, what cannot be given back: remainders of blocks whose segments are in use.
    Assumed, not verified; published runs whose idle blocks would not fit did run."""


class ExpertPasses(_base.Config):
    """What biases and clamps of routed experts move in operators of their own, in whole bytes.

    Counted from ``TEGroupedMLP._apply_bias`` and ``weighted_bias_quick_geglu_impl`` of
    Megatron-Core 0.15 and from the derivatives of PyTorch, not measured. The bias of the second
    projection is multiplied by the weight of each row and added in FP32, expert by expert; the
    results are put together and rounded. Both halves before the activation are clamped and put
    together again; the backward makes masks of what was clamped.
    """

    bias_forward_bytes: _base.Count = 28
    """Of an element of the experts' output: product 4, sum 10, concatenation 8, rounding 6."""
    bias_backward_bytes: _base.Count = 40
    """The same backward: widening 6, narrowing 6, gradients of each expert put together 4, of the
    bias 12 and of the weights of the rows 12."""
    bias_transient_bytes: _base.CountOrNone = 10
    """Held for a moment of such an element: FP32 sums, put together once more, and the result."""
    clamp_forward_bytes: _base.Count = 16
    """Of an element of the activation: clamps 8, concatenation 8."""
    clamp_backward_bytes: _base.Count = 30
    """The same backward: masks and choices 22, both halves put together 8."""


class ExpertCalls(_base.Config):
    """Operators of a layer of experts, forward and backward, that the host dispatches.

    They come on top of the kernels that are counted one by one. Counted from router.py,
    moe_utils.py, token_dispatcher.py and experts.py of Megatron-Core 0.14 and from GroupedLinear
    of Transformer Engine, where views count nothing; not measured. Assumed: a backward has about
    two thirds of the operators of its forward.
    """

    call_us: _base.NotNegative = 25.0
    """Host time of one of them, Python around it included. PyTorch's whole round trip of an
    operator was measured at about 20; 25 suits 92 published steps with experts on NVIDIA devices
    best (docs/moe.md). Graphs need none of it."""
    route: tuple[_base.NotNegative, _base.NotNegative] = (70, 45)
    """Router (40 and 25: scores, picks, map, loss of balance) and permutation (30 and 20: masks,
    gathers, scatters)."""
    fused: tuple[_base.NotNegative, _base.NotNegative] = (24, 14)
    """The same with ``training.moe.permute_fusion``, whose recipes fuse the router as well: 12 and
    6, and 12 and 8."""
    exchange: tuple[_base.NotNegative, _base.NotNegative] = (41, 12)
    """Buffers, streams and events around dispatch and combine (16 and 12), and 25 for counts of
    tokens that ranks tell each other and the host reads back."""
    chunk: tuple[_base.NotNegative, _base.NotNegative] = (0.2, 0.3)
    """Of each chunk, one from each rank for each local expert, that is split off and put together
    without ``training.moe.permute_fusion``."""
    expert: tuple[_base.NotNegative, _base.NotNegative] = (5, 10)
    """Of each local expert: a GEMM apart for each projection, gradient and weight gradient, with
    its description; lists of weights; quantising; hooks of gradients."""
    biased: tuple[_base.NotNegative, _base.NotNegative] = (2, 6)
    """The same besides, where its bias is an operator of its own."""


class SoftwareConfig(_base.Config):
    """Costs of the host side of training; these belong to a framework, not to a chip."""

    allocator: AllocatorConfig = AllocatorConfig()
    """The caching allocator of device memory."""
    launch_us: _base.NotNegative = 4.5
    """Host time to launch one kernel from Python (4-6 us measured on NVIDIA drivers)."""
    operator_us: _base.NotNegative = 8.0
    """Host time of the framework around one operator (dispatch, autograd), beside the launch;
    PyTorch's whole round trip was measured at about 20 us. Assumed, not verified."""
    gemm_share: float | None = Field(default=None, gt=0, le=2)
    """Rate of a GEMM within a training step over that of the same GEMM alone, for all matrix
    types; none given means the device's ``training_gemm_share``."""
    host_sync_us: _base.NotNegative = 40.0
    """A wait of the host for the device, and refilling the queue. Assumed, not verified."""
    expert_calls: ExpertCalls = ExpertCalls()
    """Operators that the host dispatches for a layer of experts."""
    expert_passes: ExpertPasses = ExpertPasses()
    """Biases and clamps of experts without ``training.moe.fused_experts``."""
    eager_share: float = Field(default=0.6, gt=0, le=1)
    """Rate of these and of unfused permutation over that of other memory-bound operators: their
    operands are halves of rows, broadcast, gathered or of two types."""
    atomic_bytes: _base.Count = 32
    """Traffic that takes as long as one atomic addition of 16 bits, by which an unfused permutation
    adds rows up (``index_add_``, ``scatter_add_``). Assumed: each is a transaction of one sector
    of 32 bytes."""
    moe_layer_ms: _base.NotNegative | None = None
    """Host time of one mixture-of-experts layer and microbatch, both ways, where the host waits
    for token counts; none given means that of its launches and ``expert_calls``."""
    moe_layer_sync_free_ms: _base.NotNegative | None = None
    """The same where nothing is waited for (dropped tokens or a sync-free dispatcher)."""
    moe_layer_parts: tuple[_base.NotNegative, _base.NotNegative] = (1.0, 2.0)
    """How a stated host time divides into forward and backward. Assumed to be as the work is (the
    backward has two GEMMs for each one of the forward), not verified."""
    async_tp_exposed: float = Field(default=0.47, ge=0, le=1)
    """Share of a tensor-parallel collective that ``tp_comm_overlap: async_tp`` leaves exposed, at
    least 1 / TP. Derived, not measured: PyTorch reports about 8 % end to end for Llama 3 7B and 70B
    with TP 8 (PyTorch Forums, Introducing Async Tensor Parallelism), where to hide all but the
    first of eight chunks would gain 14 %."""
    rowwise_gemm_share: float = Field(default=0.76, gt=0, le=1)
    """Rate of an FP8 GEMM with a scale for each row (``fp8_recipe: rowwise``) over that with one
    for each tensor. Derived, not measured: pytorch/torchtitan@7a04053 states that Llama 3 8B on 8
    H100 is 25 % faster than in BF16 with scales by tensor and 11 % faster with scales by row; this
    share gives the same quotient."""
    grouped_gemm_share: float = Field(default=1.0, gt=0, le=1)
    """Rate of the grouped GEMMs of routed experts over what the device states, in releases whose
    kernels for a new architecture were not yet those of today (``hardware/software.yaml``)."""
    fsdp1_copies: FlatShards = FlatShards()
    """Copies of FSDP 1."""
    fsdp2_copies: ParameterShards = ParameterShards()
    """Copies of FSDP 2."""
    unfused_loss: LossKernels = LossKernels()
    """The loss without ``training.cross_entropy_fusion``."""
    fused_loss: FusedLossKernels = FusedLossKernels()
    """The loss with it."""
    gate_copy_bytes: _base.CountOrNone = 0
    """Kept besides of an element of a gated activation, where ``training.elementwise`` is eager: 2
    where its activated gate stays for the backward of the product."""
    attention_copy_bytes: _base.CountOrNone = 0
    """The same of K and V, and of attention's output unless the micro-batch is 1: 2 where originals
    stay beside what is copied together or transposed."""
    step_overhead_ms: Annotated[_base.NotNegative, _base.OF_STEP] = 5.0
    """Data loading, logging and gradient-norm bookkeeping of one step."""

    @field_validator("moe_layer_parts", mode="after")
    @classmethod
    def _parts_are_some(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not sum(value) > 0.0:
            raise ValueError("forward and backward cannot both be 0 parts")
        return value


class VariationConfig(_base.Config):
    """How far equal devices differ, so that the slowest of many sets the pace."""

    device_spread: Annotated[float, _base.OF_STEP] = Field(default=0.024, ge=0, le=0.5)
    """Standard deviation of the time that equal devices take for equal work, relative to its mean.
    Sinha et al., Not All GPUs Are Created Equal (arXiv:2208.11035), give a variation of 8 %, on
    average over applications and five clusters of V100, MI60 and RTX 5000, and of 22 % at most.
    Taken for the width between the whiskers of a box plot (assumed) these are 5.4 standard
    deviations of a normal law, so 0.015 and 0.041. With that as a prior it is fitted to the slopes
    of 26 published weak-scaling series (``validation/weak_scaling.py``)."""
    layer_spread: Annotated[float, _base.OF_STEP] = Field(default=0.033, ge=0, le=0.5)
    """The same of what a device computes between two exchanges of experts, from layer to layer:
    each exchange waits for the slowest of its EP ranks. Nobody has measured it: it is fitted to
    published training runs, with a wide prior around ``device_spread``
    (``validation/fit_training.py``)."""


class ClusterConfig(_base.Config):
    """Devices, their number, and how they are joined."""

    device: Device
    """Accelerator: a shipped name, a device file, or a mapping (``extends`` starts from one)."""
    nodes: Annotated[
        int, _base.Shares("replica", "the number of devices is compared beside it")
    ] = Field(default=1, gt=0, le=1 << 20)
    """Hosts."""
    gpus_per_node: Annotated[int, _base.Label("GPUs a node")] = Field(default=8, gt=0, le=1024)
    """Devices of one host; left out, the network's."""
    network: Network
    """Interconnect: a name from ``hardware/networks.yaml`` or a mapping; left out, the
    device's usual one."""
    memory_reserve_gib: Annotated[_base.NotNegative | None, _base.USABLE] = None
    """Device memory that training cannot use: driver context, communicators, libraries. None given
    means what the device and the groups of the job say (``context_gib``, ``communicator_gib``,
    ``exchange_peer_gib`` of the device)."""
    fragmentation: Annotated[float | None, _base.USABLE] = Field(default=None, ge=0, lt=1)
    """Share of allocated memory that the caching allocator reserves on top. None given means what
    ``software.allocator`` says."""
    gpu_clock_mhz: _base.Positive | None = None
    """Clock to assume instead of the sustained one, for every type; never above the peak."""
    software: SoftwareConfig = SoftwareConfig()
    """Host-side costs."""
    variation: VariationConfig = VariationConfig()
    """How far its devices differ."""
    aliases: ClassVar = {"gpu": "device", "nnodes": "nodes", "num_nodes": "nodes"}

    @model_validator(mode="before")
    @classmethod
    def _fill_from_device(cls, data: Any) -> Any:
        """Load the device and the network by name; take what is missing from them."""
        if not isinstance(data, Mapping):
            return data
        filled = {cls.aliases.get(str(key), str(key)): value for key, value in data.items()}
        if "device" not in filled:
            msg = "device is missing: name the GPU, for example mi355x"
            raise ConfigError(msg, key="device", allowed="a GPU name")
        if not isinstance(filled["device"], Device):
            filled["device"] = load_device(filled["device"], key="device")
        network = filled.get("network")
        usual = filled["device"].network
        if isinstance(network, Mapping):
            # A partial mapping overrides the network it extends, or the device's usual one.
            base = load_network(network.get("extends", usual), key="network").model_dump(
                exclude={"sources"}
            )
            stated = {key: value for key, value in network.items() if key != "extends"}
            changed = stated.get("transport", base["transport"]) != base["transport"]
            # Another transport or proxy brings its own numbers along.
            base = renamed(base, stated)
            if changed:
                base["name"] = f"{base['name']}; {stated['transport']}"
            network = load_network({**base, **stated}, key="network")
        elif not isinstance(network, Network):
            network = load_network(network or usual, key="network")
        filled["network"] = network
        if filled.get("gpus_per_node") is None:
            filled["gpus_per_node"] = network.gpus_per_node
        return filled

    @field_validator("gpu_clock_mhz", mode="after")
    @classmethod
    def _clock_is_plausible(cls, value: float | None) -> float | None:
        if value is not None and value < 1:
            raise ValueError(f"gpu_clock_mhz must be at least 1, got {value}")
        return value

    @model_validator(mode="after")
    def _clock_within_peak(self) -> Self:
        clock, peak = self.gpu_clock_mhz, self.device.peak_clock_mhz
        if clock is not None and clock > peak:
            of = f"the peak clock of {self.device.name} ({peak:g} MHz)"
            msg = f"gpu_clock_mhz ({clock:g}) exceeds {of}"
            raise ConfigError(msg, key="gpu_clock_mhz", value=clock, allowed=f"at most {peak:g}")
        return self

    @property
    def gpus(self) -> int:
        """Devices of the whole cluster."""
        return self.nodes * self.gpus_per_node
