"""Memory anchored on the peak of a measured step."""

from collections.abc import Sequence
from dataclasses import replace

from projector.config import resources
from projector.config._base import Config, NotNegative
from projector.config.yaml_file import read_yaml
from projector.measure.task import LayerSpec
from projector.projection.bands import verdict_of
from projector.projection.benchmark import Benchmark
from projector.projection.memory import MemoryAnchor, MemoryProjection
from projector.projection.results import DOES_NOT_FIT, OK
from projector.units import GIB

FILE = "measured.yaml"


class RestoredMemory(Config):
    """How far memory that was restored from a record may be off."""

    margin: NotNegative
    """Share of what no measured step held that the upper bound adds."""


def restored_memory() -> RestoredMemory:
    """Return what is assumed of restored memory."""
    table = read_yaml(resources.data_dir("hardware") / FILE, key=FILE)["memory"]
    values = {name: entry["value"] for name, entry in table.items()}
    return RestoredMemory.parse(values, path=f"{FILE}: memory")


def step_bytes(
    benchmark: Benchmark, layers: Sequence[LayerSpec], states_bytes: float | None = None
) -> float:
    """Return the modelled peak of a step of some layers on one rank that shares nothing.

    Weights, gradients and states of all of them, what they keep for the backward, the largest
    working set and the workspaces of libraries. ``states_bytes`` are weights, gradients and states
    as the step really holds them; without, those of the job's training.
    """
    costs, evaluation = benchmark.evaluation.costs, benchmark.evaluation
    found = (benchmark.workload_of(layer) for layer in layers)
    rows = [row for row in found if row is not None]
    parameters = float((costs.dense_parameters + costs.expert_parameters)[rows].sum())
    training = evaluation.batch.training
    of_parameter = training.held_weight_bytes + training.gradient_bytes + training.state_bytes
    if states_bytes is None:
        states_bytes = parameters * float(of_parameter[0])
    kept = float(costs.saved_bytes[rows].sum())
    transient = float(costs.transient_bytes[rows].max(initial=0.0))
    return (
        states_bytes + kept + transient + 2.0 * float(evaluation.batch.cluster.workspace_bytes[0])
    )


def anchor_of(benchmark: Benchmark, analytic_bytes: float) -> MemoryAnchor | None:
    """Return what the measured step says of a job with some modelled peak; None without one.

    What the step holds beyond the model counts as alive; if it holds less, the model stands, since
    a step of few layers does not meet every peak.
    """
    step = benchmark.record.step
    if step is None or step.outcome.status != "ok":
        return None
    if not step.layers or None in map(benchmark.workload_of, step.layers):
        return None  # What of the peak the model knows cannot be told.
    numbers = step.outcome.numbers
    allocated = numbers.get("peak_allocated_bytes", 0.0)
    if allocated <= 0.0:
        return None
    reserved = numbers.get("peak_reserved_bytes", allocated)
    communicators = max(0.0, numbers.get("communicator_bytes", 0.0))
    modelled = step_bytes(benchmark, step.layers, numbers.get("states_bytes"))
    return MemoryAnchor(
        analytic_bytes=analytic_bytes,
        live_bytes=max(0.0, allocated - modelled),
        idle_bytes=max(0.0, reserved - allocated - communicators),
        measured_bytes=allocated,
        margin=restored_memory().margin,
    )


def anchored(memory: MemoryProjection, benchmark: Benchmark) -> MemoryProjection:
    """Return a memory projection with what the measured step held beyond the model.

    It lives on every rank beside its working set. What the allocator had idle replaces what the
    model expects of it; whether the job fits depends, as before, on what cannot be given back.
    """
    anchor = anchor_of(benchmark, memory.peak_bytes)
    if anchor is None:
        return memory
    peak, usable = anchor.allocated_bytes, memory.usable_bytes
    band = verdict_of(memory.job, peak, usable)
    stages = tuple(
        replace(stage, transient_bytes=stage.transient_bytes + anchor.live_bytes)
        for stage in memory.stages
    )
    scalars = {
        **memory.scalars,
        "peak_gib": peak / GIB,
        "peak_gib_low": band.low_bytes / GIB,
        "peak_gib_high": max(band.high_bytes, anchor.upper_bytes) / GIB,
        "headroom_gib": (usable - peak) / GIB,
        "allocator_gib": anchor.idle_bytes / GIB,
        "fits": peak <= usable,
        "verdict": band.verdict,
        "status": OK if peak <= usable else DOES_NOT_FIT,
    }
    return replace(memory, stages=stages, scalars=scalars, anchor=anchor)
