"""torchtitan's TOML files: sections of settings over a flavour of a model.

Settings and their defaults are those of ``torchtitan/config/job_config.py`` of pytorch/torchtitan,
from the releases of 2024 to those of January 2026; later ones write recipes as Python. Old places
of a setting (`MOVED`) are read as new ones.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from projector.config import resources
from projector.config.formats import read_job
from projector.config.formats.read_job import Derived, ReadJob, Stated
from projector.config.formats.values import integer
from projector.config.model_file import model_of
from projector.config.resources import settings_of
from projector.errors import ConfigError, shown

# What settings are called and mean.

TOOL: Final = "torchtitan"

ASSUMED: Final = "derived as torchtitan does"

_TABLE: Final = settings_of("torchtitan")

MOVED: Final[Mapping[str, str]] = {
    f"{section}.{name}": f"parallelism.{name}"
    for section in ("training", "experimental")
    for name in _TABLE["parallelism"].split()
} | _TABLE["moved"]
"""Where releases of 2024 and 2025 wrote a setting -> where the last ones with TOML do."""

FLAVORS: Final[Mapping[str, Mapping[str, Any]]] = _TABLE["flavors"]
"""``model.name`` -> ``model.flavor`` in small letters -> the same architecture here (a shipped
name, or its fields)."""

_MEANINGS: Final[Mapping[str, Mapping[str, Any]]] = _TABLE["meanings"]

COMM_TYPES: Final = _MEANINGS["rotations"]

DISPATCHERS: Final = _TABLE["fields"]["parallelism.expert_parallel_comm_backend"]["means"]

SCHEDULES: Final[Mapping[str, tuple[str, str]]] = _TABLE["schedules"]
"""Schedule of torch.distributed.pipelining in small letters -> its spelling, and the name here."""


def read_toml(text: str, *, path: Path) -> ReadJob:
    """Read the text of a TOML file."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not valid TOML: {error}"
        raise ConfigError(msg, key="config", value=str(path), allowed="a TOML file") from None
    if not isinstance(data.get("model"), Mapping) or not data.keys() & {"training", "parallelism"}:
        msg = f"{path} is not torchtitan's: it has no [model] beside [training] or [parallelism]"
        raise ConfigError(msg, key="config", value=str(path), allowed="a TOML file of torchtitan")
    return read_torchtitan(data, name=path.stem)


def read_torchtitan(
    data: Mapping[str, Any],
    *,
    name: str = "",
    assumed: Mapping[str, Any] | None = None,
    assumed_origin: str = "",
) -> ReadJob:
    """Read the sections of a torchtitan job without a device.

    Nodes, the batch and what depends on the number of layers are derived. ``name`` holds where the
    description says nothing, ``assumed`` (settings by dotted name, from ``assumed_origin``) where
    the file says nothing.
    """
    stated = Stated(data, TOOL, MOVED, assumed=assumed, assumed_origin=assumed_origin)
    stated.put("name", stated.word("job.description", name), "job.description")
    stated.origins.pop("name", None)
    stated.put("training.framework", "torchtitan", "model.name")
    _model(stated)
    stated.take(_TABLE["fields"])
    _precision(stated)
    _training(stated)
    _sharding(stated)
    _degrees(stated)
    pipeline = _pipeline(stated)
    _compiler(stated)
    rest = _Rest(stated, pipeline)
    stated.unmodelled(_TABLE)
    return stated.read_job(
        _TABLE["harmless"].split(), derive=rest.derive, least_nodes=not rest.data_parallel
    )


def _model(stated: Stated) -> None:
    """Set the architecture that a flavour stands for, or leave it to an override."""
    name, flavor = stated.word("model.name", "llama3"), stated.word("model.flavor", "debugmodel")
    hub = stated.word("hf_transformers.model")
    known = FLAVORS.get(name.removeprefix("simple_fsdp."), {})
    found: Any = known.get(flavor.lower())
    if hub:
        shipped = resources.index("models").get(resources.normalise(hub))
        found = None if shipped is None else shipped.stem
    if isinstance(found, Mapping):
        found = {"name": f"{name} {flavor}", **found}
    layers = "model.n_layers"
    if found is not None and stated.has(layers):
        base = found if isinstance(found, Mapping) else {"extends": found}
        found = {**base, "num_layers": stated.integer(layers, 1)}
    if found is not None:
        stated.put("model", found, "model.name", "model.flavor", "hf_transformers.model")
        return
    given = f"model.flavor {shown(flavor)} of {name}" if known else f"model.name {shown(name)}"
    flavors = ", ".join(known or FLAVORS)
    msg = (
        f"{shown(hub) if hub else given} is not known; known: {flavors}. Give the architecture: "
        "model=NAME, or model=FILE"
    )
    stated.missing["model"] = ConfigError(
        msg, key="model.flavor", value=flavor, allowed=list(known or FLAVORS)
    )


def _precision(stated: Stated) -> None:
    setting, reduce = "training.mixed_precision_param", "training.mixed_precision_reduce"
    types = _MEANINGS["types"]
    kind = stated.choice(setting, types, "bfloat16")
    names = [setting]
    converters = stated.words("model.converters")
    if stated.on("float8.enable_float8_linear"):
        converters.append("float8")
    if any(one in ("float8", "quantize.linear.float8") for one in converters):
        kind, names = "fp8", ["model.converters"]
        stated.take(_TABLE["float8"])
        name = "quantize.linear.float8.recipe_name"
        if stated.word(name) == "rowwise_with_gw_hp":
            stated.warn(f"{stated.spell(name)} rowwise_with_gw_hp is projected as rowwise")
    elif any(one in ("mx", "quantize.linear.mx") for one in converters):
        kind, names = "mxfp8", ["model.converters"]
        stated.word("quantize.linear.mx.recipe_name")
    if any("lora" in one for one in converters):
        name, why = "model.converters", "adapters are not read from torchtitan's files"
        raise stated.refusal(name, why, "converters without adapters")
    known = tuple(_TABLE["known_converters"].split())
    others = [one for one in converters if not one.startswith(known)]
    if others:
        stated.warn(f"model.converters {', '.join(others)}: not modelled, and left out")
    whole = stated.choice("training.dtype", types, "float32")
    if whole != "fp32":
        # Parameters, gradients and states are all of this type, without an FP32 copy.
        kind = kind if kind in {"fp8", "mxfp8"} else whole
        for field in ("gradient_dtype", "optimizer.moment_dtype"):
            stated.put(f"training.{field}", whole, "training.dtype")
        stated.put("training.optimizer.master_weights", "none", "training.dtype")
    else:
        stated.put("training.gradient_dtype", "fp32")
        stated.put("training.grad_reduce_dtype", stated.choice(reduce, types, "float32"), reduce)
    stated.put("training.precision", kind, *names)


def _training(stated: Stated) -> None:
    # torch adds gradients by a kernel of their own; FSDP reduces them at once.
    stated.put("training.gradient_accumulation_fusion", False)
    name = "optimizer.name"
    rule = stated.word(name, "AdamW").lower()
    if rule not in _MEANINGS["optimizers"]:
        stated.warn(f"{stated.spell(name)} {shown(rule)} is projected as adam")
    stated.put("training.optimizer.name", _MEANINGS["optimizers"].get(rule, "adam"), name)
    name = "training.enable_cpu_offload"
    if stated.on(name):
        stated.put("training.optimizer.offload_fraction", 1.0, name)
        stated.warn(
            f"{stated.spell(name)}: states are projected in host memory, weights and gradients "
            "on the device"
        )


def _sharding(stated: Stated) -> None:
    name = "parallelism.fsdp_reshard_after_forward"
    shard_name = "parallelism.data_parallel_shard_degree"
    copies_name = "parallelism.data_parallel_replicate_degree"
    reshard = stated.choice(name, _MEANINGS["reshards"], "default")
    copies = stated.integer(copies_name, 1)
    cp = stated.integer("parallelism.context_parallel_degree", 1)
    shard = stated.get(shard_name, integer, -1)
    if shard == 0 or shard < -1:
        stated.fail(shard_name, "an integer >= 1, or -1 for all that is left")
    if shard == 1 and cp == 1:
        stated.put("parallelism.zero_stage", 0, shard_name)
        return
    stated.put("parallelism.fsdp", 2, shard_name)
    if stated.has(copies_name):
        stated.put("parallelism.num_distributed_optimizer_instances", copies, copies_name)
    pipelined = stated.integer("parallelism.pipeline_parallel_degree", 1) > 1
    stated.put(name, not pipelined if reshard is None else reshard, name)


def _degrees(stated: Stated) -> None:
    name = "parallelism.context_parallel_rotate_method"
    kind = stated.choice(name, COMM_TYPES, "allgather")
    if stated.integer("parallelism.context_parallel_degree", 1) > 1:
        stated.put("parallelism.cp_comm_type", kind, name)
    split = "parallelism.expert_tensor_parallel_degree"
    etp = stated.integer(split, 1)
    if stated.integer("parallelism.expert_parallel_degree", 1) > 1:
        # Without expert parallelism experts are split as all else.
        stated.put("parallelism.etp", etp, split)


def _pipeline(stated: Stated) -> "_Stages | None":
    """Set schedule and microbatches; return how layers are cut, None without a pipeline."""
    local_name = "training.local_batch_size"
    local = stated.integer(local_name, 8)
    pp = stated.integer("parallelism.pipeline_parallel_degree", 1)
    name = "parallelism.pipeline_parallel_schedule"
    schedule = stated.word(name, "1F1B")
    size_name = "parallelism.pipeline_parallel_microbatch_size"
    size = stated.integer(size_name, 1)
    count_name = "parallelism.pipeline_parallel_microbatches"
    is_old = stated.spell("parallelism.pipeline_parallel_degree").startswith("experimental.")
    count = stated.integer(count_name, pp if is_old and not stated.has(size_name) else 0, least=0)
    stages = _Stages.of(stated, pp, schedule)
    if pp == 1:
        stated.put("training.micro_batch_size", local, local_name)
        return None
    if count:
        size = max(1, local // count)
    stated.put("training.micro_batch_size", size, size_name, count_name)
    meant = SCHEDULES.get(schedule.lower())
    if meant is None:
        known = sorted(spelling for spelling, _ in SCHEDULES.values())
        why = _TABLE["unsupported_schedules"].get(schedule.lower(), "unknown schedule")
        stated.missing["training.schedule"] = stated.refusal(
            name, f"{why}; give training.schedule=NAME to project another", known
        )
    else:
        stated.put("training.schedule", meant[1], name)
    if stated.word("parallelism.pipeline_parallel_schedule_csv"):
        stated.warn("pipeline_parallel_schedule_csv is not modelled: the named schedule is")
    if stated.integer("training.global_batch_size", -1, least=-1) > 0:
        stated.warn(
            "the pipeline of torchtitan drains after each local batch; all microbatches of a step "
            "are projected in one pass"
        )
    if stages.vpp:
        stated.put("parallelism.vpp", stages.vpp, name)
    return stages


def _compiler(stated: Stated) -> None:
    name, parts = "compile.enable", "compile.components"
    enabled = stated.on(name)
    components = stated.words(parts) if stated.has(parts) else ["model", "loss"]
    compiled = enabled and "model" in components
    stated.put("training.torch_compile", compiled, name)
    stated.put("training.cross_entropy_fusion", enabled and "loss" in components, name)
    name = "parallelism.enable_async_tensor_parallel"
    if stated.on(name):
        if compiled:
            stated.put("parallelism.tp_comm_overlap", "async_tp", name)
        else:
            stated.warn(f"{stated.spell(name)} was ignored: it needs compile.enable")


class _Stages(NamedTuple):
    pp: int
    vpp: int
    ends: tuple[int, int]
    """Layers that embedding and head count for."""
    length: int
    """Layers of a stage, 0 where their number follows from the stages."""
    parts: list[str]
    """Stages of a layout, if the file lists the modules of each."""

    @classmethod
    def of(cls, stated: Stated, pp: int, schedule: str) -> "_Stages":
        start = "parallelism.pipeline_parallel_"
        ends = (
            stated.integer(f"{start}first_stage_less_layers", 1, least=0),
            stated.integer(f"{start}last_stage_less_layers", 1, least=0),
        )
        length = stated.integer(f"{start}layers_per_stage", 0, least=0)
        listed = stated.get(_PARTS, lambda _, value: value, [])
        if not isinstance(listed, list) or not all(isinstance(part, list) for part in listed):
            stated.fail(_PARTS, "a list of lists of modules")
        parts = []
        for part in listed:
            names = [str(name) for name in part]
            layers = sum(name.startswith("layers.") for name in names)
            start = "E" if "tok_embeddings" in names else ""
            end = "L" if "output" in names or "lm_head" in names else ""
            parts.append(start + (f"t*{layers}" if layers else "") + end)
        vpp = 2 if schedule.lower() in _TABLE["several_stages"].split() else 1
        if parts and pp > 1:
            if len(parts) % pp:
                stated.fail(_PARTS, f"a list of a multiple of {pp} parts")
            vpp = len(parts) // pp
        return cls(pp, 0 if length and not parts else vpp, ends, length, parts)

    def fields(self, layers: int, split: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the pipeline for a model with this many layers.

        Nothing where overrides changed the ranks, or chunks of which the file lists the modules.
        """
        given = split.get("vpp")
        vpp = given if isinstance(given, int) else self._chunks(layers)
        if split.get("pp") != self.pp or not vpp or (self.parts and vpp != self.vpp):
            return {}
        if not self.parts and not sum(self.ends) and layers % (self.pp * vpp) == 0:
            return {"parallelism.vpp": vpp}
        layout = "|".join(self.parts) if self.parts else _layout(layers, self.ends, self.pp * vpp)
        placed = {"parallelism.pipeline_model_parallel_layout": layout} if layout else {}
        return {"parallelism.vpp": vpp, **placed}

    def _chunks(self, layers: int) -> int:
        """Return the stages of a rank, 0 where they do not come out even."""
        if self.vpp:
            return self.vpp
        vpp, rest = divmod(-(-(layers + sum(self.ends)) // self.length), self.pp)
        return 0 if rest else vpp


_PARTS = "parallelism.module_fqns_per_model_part"


def _layout(layers: int, ends: tuple[int, int], stages: int) -> str:
    """Deal layers to stages as torchtitan does: embedding and head stand for layers of their own.

    Where they do not come out even, the first stages have one layer more. ``""`` where a stage
    would have less than nothing.
    """
    if not 1 < stages <= layers + sum(ends):
        return ""
    length, longer = divmod(layers + sum(ends), stages)
    counts = [length + (stage < longer) for stage in range(stages)]
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    if min(counts) < 0:
        return ""
    text = [f"t*{count}" if count else "" for count in counts]
    return "|".join(["E" + text[0], *text[1:-1], text[-1] + "L"])


class _Rest:
    """What follows from the number of devices and of layers, which overrides may set."""

    def __init__(self, stated: Stated, stages: _Stages | None):
        self.stages = stages
        self.schedule = stated.job["training"].get("schedule")
        """The schedule of the file: another one deals layers otherwise."""
        copies = stated.integer("parallelism.data_parallel_replicate_degree", 1)
        shard = stated.get("parallelism.data_parallel_shard_degree", integer, -1)
        self.data_parallel = max(0, shard) * copies
        """Data-parallel ranks of the file, 0 where it takes all devices that there are."""
        self.local = stated.integer("training.local_batch_size", 8)
        self.steps = stated.integer("training.global_batch_size", -1, least=-1)
        if self.steps > 0:
            name = "training.global_batch_size"
            stated.put(name, self.steps, name)
        name, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
        self.every: int = stated.choice(name, _MEANINGS["modes"], "selective")
        """Of so many layers one is recomputed, 0 for none, below for a part of all."""
        if stated.word(name) == "memory_budget":
            stated.warn(f"{name} memory_budget is not modelled: nothing is recomputed")
        if self.every == 2:
            chosen = stated.word(option, "2")
            if chosen != "op" and not (chosen.isdecimal() and int(chosen[:9]) > 0):
                stated.fail(option, "op or an integer >= 1")
            self.every = -1 if chosen == "op" else int(chosen[:9])
        if self.every < 2:
            kinds = {0: "none", 1: "full", -1: {"granularity": "selective", "modules": ["per_op"]}}
            stated.put("training.recompute", kinds[self.every], name, option)

    def derive(self, data: dict[str, Any]) -> Derived:
        fields: dict[str, Any] = {**read_job.nodes_of_ranks(self.data_parallel, data)}
        dp = read_job.data_parallel(data) or self.data_parallel
        if dp:
            fields["training.global_batch_size"] = self.local * dp
        model = model_of(data)
        layers = None if model is None or model.mtp_num_layers else model.num_layers
        if layers is not None and self.every > 1:
            chosen = list(range(self.every - 1, layers, self.every))
            kind = {"granularity": "full", "layers": chosen} if chosen else "none"
            fields["training.recompute"] = kind
        schedule = (data.get("training") or {}).get("schedule")
        if layers is not None and self.stages is not None and schedule == self.schedule:
            fields |= self.stages.fields(layers, data.get("parallelism") or {})
        return {name: (value, ASSUMED) for name, value in fields.items()}
