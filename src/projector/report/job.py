"""What every report says about its job: title, configuration, verdict, what was filled in."""

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.job import Job
from projector.config.training import RecomputeConfig
from projector.lower.jobs import data_parallel
from projector.projection.memory import MemoryProjection
from projector.projection.provenance import Provenance
from projector.report.tables import DIM, flatten, gib, plain
from projector.units import to_gib


def title(job: Job) -> Text:
    """Name model, devices and precision in one line."""
    cluster = job.cluster
    line = Text(job.model.name, style="bold")
    line.append(f" on {cluster.gpus:,} x {cluster.device.name}", style="bold")
    nodes = "node" if cluster.nodes == 1 else "nodes"
    line.append(f" ({cluster.nodes:,} {nodes} of {cluster.gpus_per_node})", style="not bold")
    line.append(f", {precision(job)}", style="not bold")
    if job.name and job.name != job.model.name:
        line.append(f"  {job.name}", style="not bold dim")
    return line


def precision(job: Job) -> str:
    """Name the training type, with its recipe where it has one."""
    training = job.training
    return (
        f"FP8 ({training.fp8_recipe})" if training.precision == "fp8" else training.precision.upper()
    )


def recompute(config: RecomputeConfig) -> str:
    """Describe recomputation in a few words."""
    if config.granularity == "none":
        return "none"
    if config.granularity == "selective":
        return f"selective ({', '.join(config.modules)})"
    if config.layers is not None:
        return f"full ({len(config.layers)} layers)"
    if config.method == "block":
        return f"full (block, {config.num_layers} layers a chunk)"
    return "full" if config.num_layers in (None, 1) else f"full (uniform, units of {config.num_layers})"


def sharding(job: Job) -> str:
    """Name what is sharded over data parallelism."""
    split = job.parallelism
    return f"FSDP{split.fsdp}" if split.fsdp else f"ZeRO {split.zero_stage}"


def configuration(job: Job, schedule: str) -> Padding:
    """List parallelism and batch, a line each."""
    split, training = job.parallelism, job.training
    dp = data_parallel(job)
    microbatches = training.global_batch_size // (training.micro_batch_size * dp)
    degrees = {"TP": split.tp, "PP": split.pp, "VPP": split.vpp, "CP": split.cp}
    if job.model.moe is not None:
        degrees |= {"EP": split.ep, "ETP": split.expert_tp}
    first = [(name, str(value)) for name, value in {**degrees, "DP": dp}.items()]
    first += [("sharding", sharding(job)), ("schedule", schedule)]
    second = [
        ("micro-batch", str(training.micro_batch_size)),
        ("global batch", f"{training.global_batch_size:,}"),
        ("microbatches", f"{microbatches:,}"),
        ("sequence", f"{training.seq_length:,}"),
        ("recompute", recompute(training.recompute)),
    ]
    text = Text()
    for line in (first, second):
        if text:
            text.append("\n")
        for index, (name, value) in enumerate(line):
            text.append(("  " if index else "") + name + "\u00a0", style=DIM)
            text.append(value.replace(" ", "\u00a0"))
    return Padding(text, (0, 0, 0, 2))


def verdict(memory: MemoryProjection) -> Text:
    """Say whether the job fits, and by how much."""
    fits = memory.fits
    line = Text("FITS" if fits else "DOES NOT FIT", style="bold green" if fits else "bold red")
    line.append(
        f"  peak {gib(memory.peak_bytes)} GiB on stage {memory.peak_stage}, "
        f"usable {gib(memory.usable_bytes)} of {to_gib(memory.device_memory_bytes):,.2f}, ",
        style="not bold default",
    )
    left = memory.headroom_bytes
    line.append(
        f"{gib(left)} GiB free" if fits else f"{gib(-left)} GiB too much", style="not bold default"
    )
    return line


def filled_in(provenance: Provenance) -> list[RenderableType]:
    """List what the job does not state: derived values with their origin, then defaults."""
    entries = [f"{key} = {value}" for key, value in provenance.derived.items()]
    derived = ", ".join(sorted(entries, key=len))
    sections: dict[str, list[str]] = {}
    for key, value in flatten(provenance.defaults).items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name}={plain(value)}")
    parts: list[RenderableType] = [Text("Filled in", style="bold")]
    text = Text(style=DIM)
    if derived:
        text.append("derived: ", style="italic").append(derived)
    for section, values in sections.items():
        text.append("\n" if text else "").append(f"{section} defaults: ", style="italic")
        text.append("  ".join(sorted(values, key=lambda entry: len(entry) > 40)))
    parts.append(Padding(text, (0, 0, 0, 2)))
    return parts
