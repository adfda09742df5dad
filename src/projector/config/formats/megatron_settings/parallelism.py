"""Settings that say how a job is split, and the schedule of its pipeline."""

import math
import re
from collections.abc import Mapping
from typing import Any

from projector.config.formats.megatron_settings.fields import CHOICES
from projector.config.formats.megatron_settings.settings import Settings, section_of
from projector.config.formats.megatron_settings.values import integer, pipeline_layout
from projector.config.formats.read_job import Derived


def layout_stages(layout: str) -> int:
    """Count the stages (model chunks) of a layout string."""
    groups = re.finditer(r"\(([^()]*)\)\*(\d+)", layout)
    repeated = [match[1].count("|") * (int(match[2]) - 1) for match in groups]
    return layout.count("|") + sum(repeated) + 1


def virtual_stages(settings: Settings) -> None:
    """Set the model chunks of a rank: by a layout, by their number, or by their layers."""
    pp = settings.integer("pipeline_model_parallel_size", 1)
    name = "pipeline_model_parallel_layout"
    if settings.has(name):
        layout = settings.read(name, pipeline_layout)
        settings.put(f"parallelism.{name}", layout, name)
        stages = layout_stages(layout)
        if stages % max(pp, 1):
            text = f" has {stages} stages, not a multiple of PP {pp}"
            settings.fail(name, text, value=layout)
        settings.put("parallelism.vpp", stages // max(pp, 1), name)
        return
    for name in ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"):
        if settings.has(name):
            settings.put("parallelism.vpp", settings.integer(name), name)
            return
    name = "num_layers_per_virtual_pipeline_stage"
    if not settings.has(name):
        return
    if settings.missing.keys() & {"model.num_layers", "parallelism.pp"}:
        settings.leave_open("parallelism.vpp", name, " hangs on the layers of a stage")
        return
    layers = settings.num_layers() + settings.on("account_for_embedding_in_pipeline_split")
    layers += settings.on("account_for_loss_in_pipeline_split")
    length = settings.integer(name)
    if length < 1 or pp < 1 or layers % (pp * length):
        text = f" ({length}) times PP ({pp}) does not divide {layers} layers"
        settings.fail(name, text, value=length)
    settings.put("parallelism.vpp", layers // (pp * length), name)


def context(settings: Settings) -> None:
    """Set how context parallelism exchanges keys and values."""
    name = "cp_comm_type"
    if settings.has(name):
        settings.put(f"parallelism.{name}", settings.choice(name), name)
        if settings.word(name) == "a2a+p2p":
            settings.warn(name, " a2a+p2p is projected as a2a")


def placement(settings: Settings) -> None:
    """Set the order of ranks."""
    name = "use_tp_pp_dp_mapping"
    if settings.on(name):
        settings.put("parallelism.rank_order", "tp-cp-ep-pp-dp", name)


def sharding(settings: Settings) -> None:
    """Set what data parallelism divides."""
    strategy, fsdp = "data_parallel_sharding_strategy", "use_megatron_fsdp"
    if settings.on("use_torch_fsdp2"):
        settings.put("parallelism.fsdp", 2, "use_torch_fsdp2")
        return
    if settings.on(fsdp):
        settings.put("parallelism.zero_stage", settings.choice(strategy), fsdp)
        return
    if settings.word(strategy) != "no_shard":
        settings.warn(strategy, f" was ignored: it only works with {settings.spell(fsdp)}")
    name = "use_distributed_optimizer"
    settings.put("parallelism.zero_stage", int(settings.on(name)), name)


def schedule(settings: Settings) -> None:
    """Set the order of the pipeline's work."""
    if settings.on("patch_primus_pipeline") and settings.has("pp_algorithm"):
        kind = settings.read("pp_algorithm", CHOICES["pp_algorithm"])
        if kind == "interleaved" and settings.native("parallelism").get("vpp", 1) <= 1:
            kind = "1f1b"
        settings.put("training.schedule", kind, "pp_algorithm")
    elif settings.on("patch_zero_bubble") and settings.on("zero_bubble_v_schedule"):
        setup = "zero_bubble_v_schedule_mem_setup"
        kind = settings.choice(setup)
        settings.put("training.schedule", kind, "zero_bubble_v_schedule", setup)
        settings.put("parallelism.vpp", 2, "zero_bubble_v_schedule")
    elif settings.on("patch_zero_bubble") and settings.on("enable_zero_bubble"):
        settings.put("training.schedule", "zerobubble", "enable_zero_bubble")
    if settings.on("patch_zero_bubble"):
        _zero_bubble_runtime(settings)
    # Without virtual stages Megatron turns it off; that is the default here as well.
    if settings.has("overlap_p2p_comm") and not settings.on("overlap_p2p_comm"):
        settings.put("parallelism.overlap_p2p_comm", False, "overlap_p2p_comm")


def _zero_bubble_runtime(settings: Settings) -> None:
    """Read what only the zero-bubble runtime looks at."""
    name = "enable_optimizer_post_validation"
    if settings.on(name):
        settings.put("training.optimizer_post_validation", True, name)
    name = "zero_bubble_max_pending_backward"
    if settings.has(name) and settings.word(name) != "auto":
        settings.put(f"training.{name}", settings.read(name, integer), name)


def batch(settings: Settings) -> None:
    """Megatron's default global batch is one microbatch for each data-parallel rank."""
    name = "global_batch_size"
    if settings.has(name):
        return
    text = " is missing, and nothing says how many GPUs a node has"
    settings.leave_open("training.global_batch_size", name, text, allowed="an integer")
    settings.derived.append(lambda job: _one_microbatch_each(settings, job))


def _one_microbatch_each(settings: Settings, job: dict[str, Any]) -> Derived:
    """Return the global batch of a job with one microbatch on each data-parallel rank."""
    cluster, split = section_of(job, "cluster"), section_of(job, "parallelism")
    world = _count(cluster, "gpus_per_node", 0) * _count(cluster, "nodes", 1)
    ranks = math.prod(_count(split, name, 1) for name in ("tp", "pp", "cp"))
    micro = _count(section_of(job, "training"), "micro_batch_size", 0)
    if not world or not micro or ranks < 1 or world % ranks:
        return {}
    return {"training.global_batch_size": (micro * (world // ranks), settings.dialect.origin)}


def _count(section: Mapping[str, Any], name: str, default: int) -> int:
    value = section.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
