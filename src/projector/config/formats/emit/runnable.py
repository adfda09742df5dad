"""What a framework cannot run: known before a job is written, and to a search beforehand."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from projector.config.formats.emit.layer_words import has_pattern, stage_layers
from projector.config.formats.emit.primus import ALGORITHMS
from projector.config.formats.torchtitan import SCHEDULES as _TORCHTITAN_SCHEDULES
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig
from projector.errors import UnsupportedError


class Setting(NamedTuple):
    """The sections of a job that decide whether a framework can run it."""

    model: ModelConfig
    split: ParallelismConfig
    training: TrainingConfig
    gpus: int

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return max(1, self.gpus // (self.split.tp * self.split.pp * self.split.cp))


Refusal = tuple[str, str]
"""A dotted field, and why its value cannot be."""


def refusals(format: str, setting: Setting) -> Iterator[Refusal]:  # noqa: A002  # the option's name
    """Yield what the framework of a format cannot run of a job."""
    return _RULES[format](setting)


def check_runnable(format: str, setting: Setting) -> None:  # noqa: A002  # the option's name
    """Raise the first of `refusals`."""
    for field, why in refusals(format, setting):
        raise UnsupportedError(f"{why} ({field})", key=field, value=format, allowed=why)


def _megatron(setting: Setting) -> Iterator[Refusal]:
    """Yield what ``validate_args`` of Megatron-LM asserts against (megatron/training)."""
    model, split, training, _ = setting
    fsdp = "parallelism.fsdp"
    if split.fsdp == 1:
        yield fsdp, "Megatron-LM has no FSDP 1; give fsdp=2, or fsdp=false zero_stage=3"
    ends = split.decoder_first_pipeline_num_layers or split.decoder_last_pipeline_num_layers
    layers = model.num_layers + split.account_for_embedding_in_pipeline_split
    layers += split.account_for_loss_in_pipeline_split
    uneven = layers % (split.pp * split.vpp) and not ends
    yield from _kinds(model, split)
    uneven = uneven and not has_pattern(model)
    if model.mtp_num_layers and uneven and not split.pipeline_model_parallel_layout:
        yield (
            "parallelism.pipeline_model_parallel_layout",
            "with multi-token prediction Megatron-LM needs a layout of uneven stages; give one",
        )
    if training.precision == "fp8" and training.fp8_recipe == "rowwise":
        yield (
            "training.fp8_recipe",
            "Megatron-LM has no recipe rowwise; give delayed, tensorwise or blockwise",
        )
    if split.fsdp == 2:
        if split.pp > 1:
            yield fsdp, "FSDP 2 of Megatron-LM takes no pipeline; give pp=1, or zero_stage=3"
        if split.ep > 1:
            yield fsdp, "FSDP 2 of Megatron-LM takes no expert parallelism; give zero_stage=3"
        if model.tied_embeddings:
            yield fsdp, "FSDP 2 of Megatron-LM needs untied embeddings; give zero_stage=3"
        if training.precision == "fp16":
            yield fsdp, "FSDP 2 of Megatron-LM does not train in fp16; give precision=bf16"
    sharded = not split.fsdp and split.zero_stage >= 2  # gradients are sharded
    if sharded and training.optimizer.name not in {"adam", "sgd"}:
        yield "training.optimizer.name", "Megatron FSDP (zero_stage=2, 3) has Adam and SGD alone"
    if split.vpp > 1 and split.overlap_p2p_comm is False and split.pp < 3:
        yield (
            "parallelism.overlap_p2p_comm",
            "virtual stages of Megatron-LM need overlap_p2p_comm=true, or more than two stages",
        )


def _kinds(model: ModelConfig, split: ParallelismConfig) -> Iterator[Refusal]:
    """Yield what kinds of layers ask of a layout, and how a pattern is not cut into stages."""
    if "kda" in model.mixers and split.tp > 1:
        yield "parallelism.tp", "Kimi delta attention of Primus takes no tensor parallelism"
    if model.mla and model.mla.index_heads and split.cp > 1 and split.cp_comm_type != "all_gather":
        yield "parallelism.cp_comm_type", "sparse attention of Megatron-LM has all_gather alone"
    heads = model.recurrent.num_groups if model.recurrent and "gdn" in model.mixers else 0
    if heads % (split.tp * split.cp):
        yield "parallelism.cp", f"Megatron-LM divides the {heads} heads of keys by TP and CP"
    if not has_pattern(model):
        return
    instead = "a pattern of layers is cut into stages by |: give a layout such as Et*9|t*7L"
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        if getattr(split, name):
            yield f"parallelism.{name}", instead
    if split.pp * split.vpp > 1 and stage_layers(split, model.num_layers) is None:
        if split.pipeline_model_parallel_layout is not None:
            yield "parallelism.pipeline_model_parallel_layout", instead
        elif split.vpp > 1:
            yield "parallelism.vpp", instead


def _torchtitan(setting: Setting) -> Iterator[Refusal]:
    """Yield what ``parallelize.py`` of its models and ``parallel_dims.py`` refuse."""
    _, split, training, _ = setting
    alone = split.tp == split.pp == split.cp == 1
    if not split.sharding_stage and setting.ranks > 1 and not (alone and split.ep == 1):
        yield (
            "parallelism.zero_stage",
            "torchtitan takes copies without FSDP on one axis alone; give fsdp=2",
        )
    if split.ep > 1 and split.expert_tp not in {1, split.tp}:
        yield "parallelism.etp", f"torchtitan divides experts by 1 or by TP ({split.tp})"
    part = split.tp * (2 * split.cp if split.cp > 1 else 1)
    if training.seq_length % part:
        yield "training.seq_length", f"torchtitan needs a multiple of {part}: TP, times 2 CP"
    if setting.model.moe and training.moe.dispatcher == "deepep" and split.ep == 1:
        yield "training.moe.dispatcher", "DeepEP of torchtitan needs expert parallelism"


def _deepspeed(setting: Setting) -> Iterator[Refusal]:
    """Yield what its engines assert against (deepspeed/runtime)."""
    split = setting.split
    if split.pp > 1 and split.sharding_stage >= 2:  # gradients are sharded
        yield (
            "parallelism.zero_stage",
            "pipelines of DeepSpeed take no ZeRO 2 or 3; give zero_stage=1, or pp=1",
        )
    batch = setting.ranks * setting.training.micro_batch_size
    if setting.training.global_batch_size % batch:
        yield "training.global_batch_size", f"DeepSpeed needs a multiple of {batch}"


_RULES: Final[dict[str, Callable[[Setting], Iterator[Refusal]]]] = {
    "megatron": _megatron,
    "primus": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
}

_USUAL: Final = frozenset({"auto", "1f1b", "interleaved"})

SCHEDULES: Final = {
    "megatron": _USUAL,
    "primus": _USUAL | ALGORITHMS.keys(),
    "torchtitan": {"auto", *(ours for _, ours in _TORCHTITAN_SCHEDULES.values())},
    "deepspeed": frozenset({"auto", "1f1b"}),
}
"""Format -> schedules that its framework has; another one is carried in a file, and no search
chooses it."""


def searchable(format: str, setting: Setting) -> Iterator[Refusal]:  # noqa: A002
    """Yield what a search for a framework leaves out: refusals, and what it would do otherwise."""
    yield from refusals(format, setting)
    schedule = setting.training.schedule
    if schedule not in SCHEDULES[format]:
        yield "training.schedule", f"{format} has no schedule {schedule}"
    split = setting.split
    if format == "deepspeed" and split.vpp > 1:
        yield "parallelism.vpp", "DeepSpeed has no virtual stages"
    if format == "torchtitan" and split.fsdp == 1:
        yield "parallelism.fsdp", "torchtitan has no FSDP 1"
    if format == "torchtitan" and not split.fsdp and split.zero_stage and setting.ranks > 1:
        yield "parallelism.zero_stage", "torchtitan shards by FSDP 2 alone"


SHARDINGS: Final = {"torchtitan": ((2, 3), (False, 0))}
"""Format -> pairs of ``fsdp`` and ``zero_stage`` to search, where others cannot be run."""
