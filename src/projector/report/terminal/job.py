"""Parts of every report of a job: title, configuration, verdict, filled-in values."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.job import Job
from projector.config.training import RecomputeConfig
from projector.envelope import flatten
from projector.lower.batch import data_parallel
from projector.projection.bands import AT_RISK, DOES_NOT_FIT, FITS, WORDS
from projector.projection.memory import MemoryProjection
from projector.projection.provenance import Provenance
from projector.report.terminal.grid import DIM, gib, heading, pairs, plain
from projector.units import to_gib

LONG_ENTRY = 40
"""Longer entries go to the end of their list."""


def title(job: Job) -> Text:
    """Name model, devices, precision and framework in one line."""
    cluster = job.cluster
    line = Text(job.model.name, style="bold")
    line.append(f" on {cluster.gpus:,} x {cluster.device.name}", style="bold")
    nodes = "node" if cluster.nodes == 1 else "nodes"
    line.append(f" ({cluster.nodes:,} {nodes} of {cluster.gpus_per_node})", style="not bold")
    line.append(f", {precision(job)}", style="not bold")
    if job.training.framework is not None:
        line.append(f", {job.training.framework}", style="not bold")
    if job.name and job.name != job.model.name:
        line.append(f", job {job.name}", style="not bold dim")
    return line


def short_title(job: Job) -> str:
    """Name model and devices, for figures and traces."""
    return f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}"


def precision(job: Job) -> str:
    """Name the training type, with its recipe where it has one."""
    training = job.training
    return (
        f"FP8 ({training.fp8_recipe})"
        if training.precision == "fp8"
        else training.precision.upper()
    )


def recompute(config: RecomputeConfig) -> str:
    """Describe recomputation in a few words."""
    if config.granularity == "none":
        return "none"
    if config.granularity == "selective":
        return ", ".join(config.modules)
    if config.layers is not None:
        return f"full ({len(config.layers)} layers)"
    if config.method == "block":
        return f"full (block, {config.num_layers} layers a chunk)"
    return (
        "full"
        if config.num_layers in (None, 1)
        else f"full (uniform, units of {config.num_layers})"
    )


def sharding(job: Job) -> tuple[str, str]:
    """Name what is sharded over data parallelism."""
    split = job.parallelism
    return ("FSDP", str(split.fsdp)) if split.fsdp else ("ZeRO", str(split.zero_stage))


def configuration(job: Job, schedule: str) -> Padding:
    """List parallelism and batch, a line each."""
    split, training = job.parallelism, job.training
    dp = data_parallel(job)
    microbatches = training.global_batch_size // (training.micro_batch_size * dp)
    degrees = {"TP": split.tp, "PP": split.pp, "VPP": split.vpp, "CP": split.cp}
    if job.model.moe is not None:
        degrees |= {"EP": split.ep, "ETP": split.expert_tp}
    first = [(name, str(value)) for name, value in {**degrees, "DP": dp}.items()]
    first += [sharding(job), ("schedule", schedule)]
    second = [
        ("MBS", str(training.micro_batch_size)),
        ("GBS", f"{training.global_batch_size:,}"),
        ("microbatches", f"{microbatches:,}"),
        ("sequence", f"{training.seq_length:,}"),
        ("recompute", recompute(training.recompute)),
    ]
    if training.adapter is not None:
        base = training.adapter.base_precision
        kind = f"{training.adapter.kind}{f' over {base}' if base else ''}"
        second.append(("adapters", f"{kind}, rank {training.adapter.rank}"))
    return Padding(Group(pairs(first), pairs(second)), (0, 0, 0, 2))


STYLES = {FITS: "green", AT_RISK: "yellow", DOES_NOT_FIT: "red"}


def verdict(memory: MemoryProjection) -> Text:
    """Say whether the job fits, how far the peak may be off, and how much is left."""
    line = Text(WORDS[memory.verdict].upper(), style=f"bold {STYLES[memory.verdict]}")
    free_bytes, device_gib = memory.headroom_bytes, to_gib(memory.device_memory_bytes)
    line.append(
        f"  peak {gib(memory.peak_bytes)} GiB ({memory.peak_band}) on stage "
        f"{memory.peak_stage}, usable {gib(memory.usable_bytes)} of {device_gib:,.2f}, "
        f"{gib(abs(free_bytes))} {'free' if memory.fits else 'over'}",
        style="not bold default",
    )
    return line


def search_hint(memory: MemoryProjection) -> list[RenderableType]:
    """Name the search where a job does not fit."""
    if memory.verdict != DOES_NOT_FIT:
        return []
    text = "`projector search` with the same job ranks all layouts, or says how many GPUs would do."
    return [Text(text), Text()]


def risk(name: str) -> Text:
    """Return a verdict as tables write it; nothing where a job fits."""
    return Text("" if name == FITS else WORDS[name], style=STYLES[name])


def filled_in(job: Job, provenance: Provenance, *, listed: bool) -> list[RenderableType]:
    """Count what the job leaves out, or list it: derived values with their origin, then defaults.

    Defaults that change nothing in this job are only counted; ``--json`` has all of them.
    """
    defaults = flatten(provenance.defaults)
    if not listed:
        count = f"{len(provenance.derived)} derived values, {len(defaults)} defaults"
        return [heading("Filled in", f"{count}; --defaults lists them")]
    text = Text(style=DIM)
    derived = [f"{key} = {value}" for key, value in provenance.derived.items()]
    if derived:
        text.append("derived: ", style="italic").append("; ".join(sorted(derived, key=len)))
    sections: dict[str, list[str]] = {}
    idle = (*_idle_parallelism(job), *_idle_training(job), *_idle_software(job))
    left_out = 0
    for key, value in defaults.items():
        if key.startswith(idle):
            left_out += 1
            continue
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name}={plain(value)}")
    for section, values in sections.items():
        text.append("\n" if text else "").append(f"{section} defaults: ", style="italic")
        text.append("  ".join(_shortened(values)))
    note = f"{left_out} more defaults change nothing here; --json lists them" if left_out else ""
    return [heading("Filled in", note), Padding(text, (0, 0, 0, 2))]


def _shortened(values: list[str]) -> list[str]:
    """Return entries, long ones last; of neighbours in one group the first alone names it."""
    entries = sorted(values, key=lambda entry: len(entry) > LONG_ENTRY)
    groups = [entry.split("=")[0].rpartition(".")[0] for entry in entries]
    return [
        entry[len(group) :] if group and group == before else entry
        for entry, group, before in zip(entries, groups, ["", *groups], strict=False)
    ]


def _idle_parallelism(job: Job) -> list[str]:
    split, moe = job.parallelism, job.model.moe
    idle: list[str] = []
    if moe is None:
        idle += ["parallelism.overlap_moe", "parallelism.moe_", "parallelism.ep"]
    elif not moe.shared_expert_ffn_hidden_size:
        idle.append("parallelism.moe_shared_expert_overlap")
    if split.cp == 1:
        idle.append("parallelism.cp_comm_type")
    if split.tp == 1:
        idle += ["parallelism.tp_comm_overlap", "parallelism.keep_gathered_input"]
    if split.tp == 1 or split.tp_comm_overlap != "async_tp":
        idle.append("cluster.software.async_tp_exposed")
    if split.pp == 1:
        idle += [f"parallelism.{name}" for name in ("account_for_", "divide_pipeline", "vpp")]
        idle.append("training.schedule")
    idle.append("parallelism.zero_stage" if split.fsdp else "parallelism.fsdp_reshard")
    idle += [f"cluster.software.fsdp{form}_copies" for form in (1, 2) if form != split.fsdp]
    if split.sharding_stage < 3:
        idle += ["parallelism.fsdp_forward_prefetch", "parallelism.fsdp_backward_prefetch"]
    return idle


def _idle_experts(job: Job) -> list[str]:
    """Return assumptions of software that have no effect in a job with experts."""
    moe, software = job.training.moe, job.cluster.software
    stated = software.moe_layer_ms if moe.host_sync else software.moe_layer_sync_free_ms
    if stated is None:
        idle = ["moe_layer_"]
    else:
        idle = ["moe_layer_sync_free_ms" if moe.host_sync else "moe_layer_ms"]
    if stated is not None or job.training.cuda_graphs:
        idle.append("expert_call")
    biased = job.model.mlp_bias and not moe.fused_experts
    clamped = job.model.activation_clamp > 0.0 and not moe.fused_experts
    idle += [] if clamped else ["expert_passes.clamp"]
    idle += [] if biased else ["expert_passes.bias", "expert_calls.biased"]
    if moe.permute_fusion:
        idle += ["atomic_bytes", "expert_calls.route", "expert_calls.chunk"]
        idle += [] if biased or clamped else ["eager_share"]
    else:
        idle.append("expert_calls.fused")
    if job.parallelism.ep == 1:
        idle += ["expert_calls.exchange", "expert_calls.chunk"]
    return idle


def _idle_training(job: Job) -> list[str]:
    training = job.training
    idle: list[str] = []
    if job.model.moe is None:
        names = ("moe_", "grouped_", "expert_", "eager_share", "atomic_bytes")
        idle += ["training.moe.", *(f"cluster.software.{name}" for name in names)]
    else:
        if training.moe.load == "balanced":
            idle.append("training.moe.zipf_exponent")
        if not training.moe.dispatcher_units:
            idle.append("training.moe.dispatcher_sms")
        idle += [f"cluster.software.{name}" for name in _idle_experts(job)]
        if not (job.model.mlp_bias or job.model.activation_clamp):
            idle.append("training.moe.fused_experts")
    if training.flash_attention:
        idle.append("training.attention_dropout")
    if training.elementwise == "fused" or training.torch_compile:
        idle += ["cluster.software.gate_copy_bytes", "cluster.software.attention_copy_bytes"]
    if training.precision in {"fp32", "bf16", "fp16"}:
        idle += ["training.fp8_", "training.first_last_layers_bf16", "training.moe.padding_fusion"]
    elif training.precision != "fp8":
        idle.append("training.fp8_recipe")
    if not job.parallelism.fsdp:
        idle.append("training.fp8_weight_cache")
    unused = "unfused_loss" if training.cross_entropy_fusion else "fused_loss"
    idle.append(f"cluster.software.{unused}.")
    if training.schedule not in {"auto", "all", "seaailab-ilp"}:
        idle.append("training.schedule_solver_work")
    if training.recompute.granularity != "selective":
        idle.append("training.recompute.modules")
    if training.recompute.granularity != "full":
        idle += [f"training.recompute.{name}" for name in ("method", "num_layers", "layers")]
        idle.append("training.recompute_early_stop")
    if not job.model.mtp_num_layers:
        idle.append("training.mtp_loss")
    return idle


def _idle_software(job: Job) -> list[str]:
    """Return what is off, or leaves the rates of the device as they are."""
    training, software = job.training, job.cluster.software
    idle = [
        f"training.{name}"
        for name in ("fp8_attention", "activation_offload_fraction")
        if not getattr(training, name)
    ]
    if job.parallelism.ep == 1:
        idle.append("cluster.variation.layer_spread")
    if job.model.diffusion is not None:
        idle.append("training.cross_entropy_fusion")
        idle += ["cluster.software.fused_loss.", "cluster.software.unfused_loss."]
    if software.gemm_share is None:
        idle.append("cluster.software.gemm_share")
    if not training.first_last_layers_bf16:
        idle.append("training.first_last_layers_bf16")
    idle += [
        f"training.optimizer.{name}"
        for name in ("update_bytes", "offload_fraction")
        if not getattr(training.optimizer, name)
    ]
    loss = "fused_loss" if training.cross_entropy_fusion else "unfused_loss"
    if not getattr(software, loss).divided_bytes:
        idle.append(f"cluster.software.{loss}.divided_bytes")
    if not software.allocator.expandable_segments:
        idle.append("cluster.software.allocator.expandable_segments")
    if software.grouped_gemm_share == 1.0:
        idle.append("cluster.software.grouped_gemm_share")
    if training.precision != "fp8" or training.fp8_recipe != "rowwise":
        idle.append("cluster.software.rowwise_gemm_share")
    return idle
