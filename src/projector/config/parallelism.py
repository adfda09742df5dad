"""How a job is split over devices, in Megatron's terms."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from projector.config import _base
from projector.config.resources import SPELLINGS
from projector.errors import ConfigError, shown

MAX_DEGREE = 1 << 20

RANK_ORDER = "tp-cp-ep-dp-pp"
"""Megatron's order of ranks, the fastest degree first."""


class ParallelismConfig(_base.Config):
    """Degrees of every parallel axis, what is sharded over them, and what overlaps."""

    tp: Annotated[int, _base.Label("tensor parallel (TP)")] = Field(default=1, gt=0, le=MAX_DEGREE)
    """Tensor parallelism: devices that share the matrices of one layer."""
    pp: Annotated[int, _base.Label("pipeline parallel (PP)")] = Field(default=1, gt=0, le=1024)
    """Pipeline parallelism: devices the layers are cut over."""
    vpp: Annotated[int, _base.Label("virtual stages a rank (VPP)")] = Field(default=1, gt=0, le=64)
    """Model chunks of one pipeline rank (virtual pipeline size); 1 is not interleaved."""
    cp: Annotated[int, _base.Label("context parallel (CP)")] = Field(default=1, gt=0, le=MAX_DEGREE)
    """Context parallelism: devices that share one sequence."""
    ep: Annotated[int, _base.Label("expert parallel (EP)")] = Field(default=1, gt=0, le=MAX_DEGREE)
    """Expert parallelism: devices the experts of one layer are spread over."""
    etp: Annotated[_base.Count | None, _base.Label("expert tensor parallel (ETP)")] = Field(
        default=None, le=MAX_DEGREE
    )
    """Tensor parallelism of the experts; none given means tp."""
    dp: Annotated[
        _base.Count | None,
        _base.Label("data parallel (DP)"),
        _base.Shares("replica", "checked against the cluster, which decides it"),
    ] = Field(default=None, le=1 << 24)
    """Data parallelism of the dense parameters; derived from the cluster when left out."""
    sequence_parallel: bool | None = None
    """Split norms and residuals over TP as well; none given means whenever tp > 1."""
    keep_gathered_input: bool = False
    """Keep what sequence parallelism gathers for a linear layer, instead of gathering it again."""
    zero_stage: Annotated[int, _base.Label("ZeRO stage"), _base.GATHERS] = Field(
        default=1, ge=0, le=3
    )
    """ZeRO stage over data parallelism; 1 is Megatron's distributed optimizer."""
    fsdp: Literal[False, 1, 2] = False
    """PyTorch FSDP generation; implies ZeRO stage 3 with layer-wise gathers."""
    fsdp_reshard_after_forward: Annotated[bool, _base.GATHERS] = True
    """Whether FSDP frees gathered weights after the forward and gathers them again."""
    rank_order: Annotated[str, _base.PLACES] = RANK_ORDER
    """How ranks are numbered, the fastest degree first: decides which ranks share a node.
    Megatron's ``use_tp_pp_dp_mapping`` is ``tp-cp-ep-pp-dp``."""
    num_distributed_optimizer_instances: Annotated[int, _base.GATHERS] = Field(
        default=1, gt=0, le=1 << 24
    )
    """Copies of what ZeRO or FSDP shard (hybrid sharding): DP times CP ranks divided by it share
    one, and its gradients are summed over the copies."""
    sharding_group_size: Annotated[_base.Count | None, _base.GATHERS] = Field(
        default=None, le=1 << 24
    )
    """The same by the ranks of a copy, out of DP times CP; none given means by their number."""
    fsdp_forward_prefetch: Annotated[int, _base.GATHERS] = Field(default=1, ge=0, le=64)
    """Layers whose weights FSDP and ZeRO 3 gather ahead of the one that computes, forward. 1 is
    what PyTorch does unasked: its host runs ahead, and its limit of all-gathers holds two."""
    fsdp_backward_prefetch: Annotated[int, _base.GATHERS] = Field(default=1, ge=0, le=64)
    """The same in the backward: 1 is PyTorch's ``BACKWARD_PRE``. 0 is ``BACKWARD_POST``, which
    gathers when the layer before has computed, so that only reductions run beside compute."""
    cp_comm_type: Literal["p2p", "all_gather", "a2a"] = "p2p"
    """How context parallelism moves keys and values: a ring, one gather, or head exchange."""
    decoder_first_pipeline_num_layers: _base.CountOrNone | None = None
    """Layers of the first pipeline stage, where the rest is divided evenly."""
    decoder_last_pipeline_num_layers: _base.CountOrNone | None = None
    """Layers of the last pipeline stage, where the rest is divided evenly."""
    pipeline_model_parallel_layout: str | None = None
    """Megatron layout string: stages apart by ``|``, E embedding, t layer, m MTP, L loss;
    ``t*3`` repeats, ``(tt|)*4`` repeats a group."""
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as a layer when layers are divided."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the output layer and loss as a layer when layers are divided."""
    divide_pipeline_by_work: bool = False
    """Give each stage layers until it has more than its share of the weights of layers and head."""
    overlap_grad_reduce: Annotated[bool, _base.REDUCES] = True
    """Reduce gradients beside the last backward instead of after it."""
    overlap_param_gather: Annotated[bool, _base.GATHERS] = True
    """Gather updated parameters beside the first forward instead of before it."""
    ddp_bucket_size: Annotated[int | None, _base.REDUCES] = Field(default=None, gt=0, le=1 << 40)
    """Parameters of a gradient bucket; none given means max(40 M, 1 M * ranks), Megatron's."""
    microbatch_group_size_per_vp_stage: Annotated[_base.Count | None, _base.ORDER] = None
    """Microbatches that a chunk takes before the next chunk's turn, in the interleaved schedule;
    none given means pp."""
    overlap_p2p_comm: Annotated[bool | None, _base.SENDS] = None
    """Send activations between pipeline ranks beside compute; otherwise a rank waits until what it
    sends has arrived. None given means with virtual stages or a split backward, as in Megatron."""
    tp_comm_overlap: Literal[False, True, "user_buffers", "async_tp"] = False
    """Overlap tensor-parallel collectives with the GEMM beside them, in TP chunks: with the user
    buffers of Transformer Engine (also ``true``) or with PyTorch's AsyncTP, which hides less
    (``cluster.software.async_tp_exposed``)."""
    overlap_moe_expert_parallel_comm: bool = False
    """Hide the expert all-to-all of one microbatch behind another one's compute."""
    moe_shared_expert_overlap: bool = False
    """Run shared experts beside the expert all-to-all, which hides behind them; without effect
    where overlap_moe_expert_parallel_comm hides it behind the whole layer."""
    aliases: ClassVar = SPELLINGS["parallelism"]

    @field_validator("fsdp", mode="before")
    @classmethod
    def _fsdp_generation(cls, value: object) -> object:
        if value is True:
            msg = "fsdp is false, 1 or 2 (the generation), not true"
            raise ConfigError(msg, value=True, allowed=[False, 1, 2])
        if value in (0, None, "false", "none"):
            return False
        return int(value) if value in ("1", "2") else value

    @field_validator("rank_order", mode="after")
    @classmethod
    def _order_is_whole(cls, value: str) -> str:
        if sorted(value.split("-")) != sorted(RANK_ORDER.split("-")):
            msg = f"rank_order {shown(value)} should hold each degree of {RANK_ORDER} once"
            raise ConfigError(msg, value=value, allowed=f"an order of {RANK_ORDER}")
        return value

    @model_validator(mode="after")
    def _copies_are_legal(self) -> Self:
        copies, ranks = self.num_distributed_optimizer_instances, self.sharding_group_size
        name = "sharding_group_size" if ranks else "num_distributed_optimizer_instances"
        if ranks and copies > 1:
            msg = (
                f"sharding_group_size ({ranks}) and num_distributed_optimizer_instances "
                f"({copies}) say the same: state one of them"
            )
            raise ConfigError(msg, key=name, value=ranks)
        if (ranks or copies > 1) and self.sharding_stage == 0:
            msg = f"{name} ({ranks or copies}) divides what ZeRO shards, but zero_stage is 0"
            raise ConfigError(msg, key="zero_stage", value=0, allowed=[1, 2, 3])
        return self

    @field_validator("tp_comm_overlap", mode="before")
    @classmethod
    def _tp_overlap_named(cls, value: object) -> object:
        if isinstance(value, str):
            return {"true": True, "false": False, "none": False}.get(value.lower(), value)
        return bool(value) if value in (0, 1, None) else value

    @model_validator(mode="after")
    def _combination_is_legal(self) -> Self:
        if self.vpp > 1 and self.pp == 1:
            msg = (
                f"vpp ({self.vpp}) interleaves pipeline stages, but pp is 1; set pp > 1 or vpp = 1"
            )
            raise ConfigError(msg, key="vpp", value=self.vpp, allowed=[1])
        if self.pipeline_model_parallel_layout and (
            self.decoder_first_pipeline_num_layers is not None
            or self.decoder_last_pipeline_num_layers is not None
        ):
            msg = (
                "pipeline_model_parallel_layout already places every layer; leave out "
                "decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers"
            )
            raise ConfigError(msg, key="pipeline_model_parallel_layout")
        if self.fsdp and "zero_stage" in self.model_fields_set and self.zero_stage != 3:
            msg = f"fsdp is ZeRO stage 3, but zero_stage is {self.zero_stage}; leave it out"
            raise ConfigError(msg, key="zero_stage", value=self.zero_stage, allowed=[3])
        if self.sequence_parallel and self.tp == 1 and "sequence_parallel" in self.model_fields_set:
            # Megatron turns it off silently with one tensor-parallel rank, and so does this.
            object.__setattr__(self, "sequence_parallel", False)
        return self

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism of the experts."""
        return self.tp if self.etp is None else self.etp

    def least_nodes(self, gpus_per_node: int, *, experts: bool) -> int:
        """Return the least number of nodes that the degrees divide; its multiples do as well.

        With ``experts``, ``etp * ep * pp`` has to divide the GPUs too.
        """
        shared = self.sharding_group_size or self.num_distributed_optimizer_instances
        world = self.tp * self.pp * math.lcm(self.cp * (self.dp or 1), shared)
        if experts:
            world = math.lcm(world, self.expert_tp * self.ep * self.pp)
        return math.lcm(world, gpus_per_node) // gpus_per_node

    @property
    def tp_overlap(self) -> Literal["none", "user_buffers", "async_tp"]:
        """What hides tensor-parallel collectives beside their GEMM."""
        if self.tp_comm_overlap is True:
            return "user_buffers"
        return "none" if self.tp_comm_overlap is False else self.tp_comm_overlap

    @property
    def splits_sequence(self) -> bool:
        """Whether norms and residuals are divided over TP."""
        return self.tp > 1 if self.sequence_parallel is None else self.sequence_parallel

    @property
    def sharding_stage(self) -> int:
        """ZeRO stage in effect; FSDP is stage 3."""
        return 3 if self.fsdp else self.zero_stage


def divisors(number: int, limit: int = 1 << 20) -> list[int]:
    """Return the divisors of ``number`` up to ``limit``, ascending."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return [
        value for value in sorted({*small, *(number // value for value in small)}) if value <= limit
    ]
