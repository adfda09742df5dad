"""Parts of every report of a job: title, configuration, verdict, filled-in values."""

from itertools import chain
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.job import Job
from projector.config.resources import hardware_table
from projector.config.space import Expression
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
    idle = _idle(job)
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


def setting(job: Job, name: str) -> Any:
    """Return what a job has in a dotted field or property, None where a part of it is missing."""
    found: Any = job
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _idle(job: Job) -> tuple[str, ...]:
    """Return how the names of defaults begin that change nothing in a job."""
    idle = hardware_table("report_words.yaml")["idle_defaults"]
    rules = [(Expression(each["when"], "idle_defaults"), each["fields"]) for each in idle]
    found = (
        fields for when, fields in rules if when({name: setting(job, name) for name in when.names})
    )
    return tuple(chain.from_iterable(found))
