"""DeepSpeed's JSON file: batch, precision, ZeRO and the degrees it knows.

Settings and defaults: docs/_pages/config-json.md and deepspeed/runtime/zero/config.py of
deepspeedai/DeepSpeed (2026). The file names neither model, sequence nor devices.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from projector.config.formats import read_job
from projector.config.formats.values import integer, number
from projector.config.resources import settings_of

TOOL: Final = "DeepSpeed"

ASSUMED: Final = "derived as DeepSpeed does"

PREFIX: Final = "deepspeed."
"""Before its settings where they stand beside those of a trainer."""

AUTO: Final = "auto"
"""A value that the trainer fills in."""

_TABLE: Final = settings_of("deepspeed")

HARMLESS: Final = frozenset(
    PREFIX + name for name in [*_TABLE["harmless"].split(), f"{read_job.CARRIED}."]
)
"""Settings that cannot change a projection; sections whose decisive settings were read."""


def read_deepspeed(data: Mapping[str, Any], *, path: Path = Path()) -> read_job.ReadJob:
    """Read a parsed DeepSpeed file alone: no trainer's arguments, no model, sequence or device."""
    stated = read_job.Stated(without_auto(data), TOOL, prefix=PREFIX)
    stated.put("name", path.stem, origin="the file's name")
    stated.put("training.framework", "huggingface", origin="assumed: DeepSpeed under transformers")
    stated.ask_for("model", "model=NAME (projector models lists them) or model=config.json")
    stated.ask_for("training.seq_length", "training.seq_length=4096")
    batch = Batch(stated)
    zero(stated)
    sections = [data.get(each) for each in ("bf16", "fp16")]
    kinds = [each.get("enabled") for each in sections if isinstance(each, Mapping)]
    if AUTO in kinds and True not in kinds:
        precision(stated, "bf16")
        del stated.job["training"]["precision"]
        stated.ask_for("training.precision", "training.precision=bf16: the trainer fills it in")
    else:
        precision(stated)
    degrees(stated)
    section, checkpoints = f"{PREFIX}activation_checkpointing.", _TABLE["checkpoints"].split()
    if any(f"{section}{key}" in stated.values for key in checkpoints):
        stated.warn(
            "activation_checkpointing only works where the model calls it: nothing is recomputed "
            "unless training.recompute says so"
        )
    unmodelled(stated)
    return stated.read_job(HARMLESS, derive=batch.derive, least_nodes=batch.data_parallel == 0)


def without_auto(data: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out values that a trainer would fill in."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found[name] = {key: item for key, item in value.items() if item != AUTO}
        elif value != AUTO:
            found[name] = value
    if isinstance(found.get("zero_optimization"), bool):
        found["zero_optimization"] = {"stage": int(found["zero_optimization"])}
    return found


def unmodelled(stated: read_job.Stated) -> None:
    """Warn of what changes a run and is not modelled."""
    stated.unmodelled(_TABLE, prefix=PREFIX)


def zero(stated: read_job.Stated) -> None:
    """Set what data parallelism divides, what overlaps, and what the host holds."""
    section = f"{PREFIX}zero_optimization."
    name = f"{section}stage"
    stage = stated.integer(name, 0, least=0)
    if stage > 3:
        stated.fail(name, "0, 1, 2 or 3", [0, 1, 2, 3])
    stated.put("parallelism.zero_stage", stage, name)
    name = f"{section}overlap_comm"
    stated.put("parallelism.overlap_grad_reduce", stated.on(name, default=stage == 3), name)
    # Weights are gathered after the update, or, with stage 3, ahead of each layer.
    stated.put("parallelism.overlap_param_gather", stage == 3, f"{section}stage")
    name = f"{section}reduce_bucket_size"
    size = stated.integer(name, 500_000_000, least=0)
    stated.put("parallelism.ddp_bucket_size", max(1, size), name)
    name = f"{section}mics_shard_size"
    if stated.get(name, integer, -1) > 0:
        stated.put("parallelism.sharding_group_size", stated.integer(name, 1), name)
    name, ratio = f"{section}offload_optimizer.device", f"{section}offload_optimizer.ratio"
    if stated.word(name, "none") != "none" or stated.on(f"{section}cpu_offload"):
        share = stated.get(ratio, number, 1.0)
        stated.put("training.optimizer.offload_fraction", share, name, f"{section}cpu_offload")
        if stated.word(name) == "nvme":
            stated.warn(f"{name.removeprefix(PREFIX)} nvme is projected as host memory")
    name = f"{section}offload_param.device"
    if stated.word(name, "none") != "none" or stated.on(f"{section}cpu_offload_param"):
        stated.warn("offload_param is not modelled: weights are projected on the device")


def precision(stated: read_job.Stated, kind: str = "") -> None:
    """Set the types of weights, gradients and states; ``kind`` is what a trainer asks for."""
    names = {"bf16": f"{PREFIX}bf16.enabled", "fp16": f"{PREFIX}fp16.enabled"}
    given = [each for each, name in names.items() if stated.on(name)]
    if len(given) == 2:
        stated.fail(names["fp16"], "off where bf16 is on", False)
    found = given[0] if given else kind or "fp32"
    stated.put("training.precision", found, *names.values(), "bf16", "fp16")
    name = f"{PREFIX}data_types.grad_accum_dtype"
    # By default gradients have the type of the model, and 32 bits for BF16 without ZeRO
    # (`get_data_types` of DeepSpeed's engine).
    sharded = stated.integer(f"{PREFIX}zero_optimization.stage", 0, least=0) > 0
    kept = found == "fp32" or (found == "bf16" and not sharded)
    wide = stated.choice(name, _TABLE["dtypes"], "fp32" if kept else "bf16")
    stated.put("training.gradient_dtype", wide, name)
    stated.put("training.gradient_accumulation_fusion", False)
    stated.take(_TABLE["states"], PREFIX)
    name = f"{PREFIX}torch_autocast.enabled"
    if stated.on(name):
        kind = stated.choice(f"{PREFIX}torch_autocast.dtype", _TABLE["autocast"], "bfloat16")
        stated.put("training.precision", kind, name)
        stated.put("training.optimizer.master_weights", "shared", name)
    name = f"{PREFIX}optimizer.type"
    if stated.has(name):
        rule = stated.word(name).lower().replace("_", "")
        if rule not in _TABLE["optimizers"]:
            stated.warn(f"{stated.spell(name)} {stated.values[name]} is projected as adam")
        stated.put("training.optimizer.name", _TABLE["optimizers"].get(rule, "adam"), name)


def degrees(stated: read_job.Stated) -> None:
    """Set the degrees of a job."""
    stated.take(_TABLE["degrees"], PREFIX)
    split = stated.job.get("parallelism", {})
    if split.get("cp", 1) > 1:
        # Ulysses exchanges heads.
        stated.put("parallelism.cp_comm_type", "a2a", f"{PREFIX}sequence_parallel_size")
    if split.get("tp", 1) > 1:
        stated.put("parallelism.sequence_parallel", False, f"{PREFIX}tensor_parallel.autotp_size")


class Batch:
    """Global batch = micro-batch * accumulation * data-parallel ranks, of which one may be open."""

    def __init__(
        self, stated: read_job.Stated, *, trainer: tuple[str, str] = ("", ""), micro: int = 0
    ):
        """Read what is stated.

        ``trainer`` names the trainer's settings of the micro-batch and of the accumulation,
        ``micro`` is the trainer's default of the first.
        """
        whole = f"{PREFIX}train_batch_size"
        part = f"{PREFIX}train_micro_batch_size_per_gpu"
        times = f"{PREFIX}gradient_accumulation_steps"
        size, steps = trainer
        self.whole = stated.integer(whole, 0, least=0)
        self.micro = stated.integer(part, stated.integer(size, micro, least=0), least=0)
        self.steps = stated.integer(times, stated.integer(steps, 0, least=0), least=0)
        if not self.whole and not self.micro:
            stated.ask_for("training.micro_batch_size", "training.micro_batch_size=1")
        if self.whole:
            stated.put("training.global_batch_size", self.whole, whole)
        if self.micro:
            stated.put("training.micro_batch_size", self.micro, part, size)
        self.is_deepspeed = any(name.startswith(PREFIX) for name in stated.values)
        self.data_parallel = 0
        """Ranks that follow from the rest, 0 where they do not."""
        if self.whole and self.micro and self.steps:
            ranks, rest = divmod(self.whole, self.micro * self.steps)
            if rest or not ranks:
                stated.fail(
                    whole, f"a multiple of micro-batch * accumulation ({self.micro} * {self.steps})"
                )
            self.data_parallel = ranks

    def derive(self, data: dict[str, Any]) -> read_job.Derived:
        """Return the nodes, or the part of the batch that is open."""
        fields: dict[str, Any] = {**read_job.nodes_of_ranks(self.data_parallel, data)}
        ranks, training = read_job.data_parallel(data), data.get("training") or {}
        steps = self.steps or 1
        micro, whole = training.get("micro_batch_size"), training.get("global_batch_size")
        if ranks and isinstance(micro, int):
            fields["training.global_batch_size"] = micro * steps * ranks
        if ranks and isinstance(whole, int):
            fields["training.micro_batch_size"] = max(1, whole // (steps * ranks))
        split = read_job.section_of(data, "parallelism") if self.is_deepspeed else {}
        pp, stage = split.get("pp"), split.get("zero_stage")
        if isinstance(pp, int) and isinstance(stage, int) and pp > 1 and stage > 1:
            fields["notes"] = ["pipelines of DeepSpeed take no ZeRO 2 or 3: projected all the same"]
        return {name: (value, ASSUMED) for name, value in fields.items()}
