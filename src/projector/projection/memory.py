"""Memory of one job as users see it: every stage, every term, a verdict."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.config.job import Job
from projector.lower.sections import usable_bytes
from projector.lower.workload_columns import DENSE, EMBEDDING, HEAD, MOE, MTP
from projector.operations.counts import ModelCounts, count_model
from projector.projection.documented import DocumentedMemory, documented_memory
from projector.projection.evaluate import Evaluation
from projector.projection.provenance import Provenance, envelope, provenance_of, uncertainty
from projector.units import to_gib

KIND_NAMES = {
    DENSE: "dense_layer",
    MOE: "moe_layer",
    EMBEDDING: "embedding",
    HEAD: "head",
    MTP: "mtp_projection",
}


@dataclass(frozen=True, slots=True)
class StageMemoryProjection:
    """Peak memory of one pipeline rank, in bytes."""

    stage: int
    parameters: int
    """Parameters of the rank's layers before any sharding over data parallelism."""
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    transient_bytes: float
    buffers_bytes: float
    in_flight_microbatches: int
    """Microbatches, times chunks, whose activations the schedule holds at the peak."""

    @property
    def peak_bytes(self) -> float:
        """Allocated peak: the sum of all terms."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.transient_bytes
            + self.buffers_bytes
            + self.activations_bytes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the stage as ``--json`` prints it, in GiB."""
        return {
            "stage": self.stage,
            "parameters": self.parameters,
            "weights_gib": to_gib(self.weights_bytes),
            "gradients_gib": to_gib(self.gradients_bytes),
            "optimizer_gib": to_gib(self.optimizer_bytes),
            "activations_gib": to_gib(self.activations_bytes),
            "transient_gib": to_gib(self.transient_bytes),
            "buffers_gib": to_gib(self.buffers_bytes),
            "peak_gib": to_gib(self.peak_bytes),
            "in_flight_microbatches": self.in_flight_microbatches,
        }


@dataclass(frozen=True, slots=True)
class Component:
    """A module of one layer on one rank, with what it is made of."""

    name: str
    parameters: int
    activation_bytes: float
    """Bytes one microbatch keeps for the backward, before recomputation drops any."""
    children: tuple["Component", ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as ``--json`` prints it."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "activation_gib": to_gib(self.activation_bytes),
            "children": [child.to_dict() for child in self.children],
        }


@dataclass(frozen=True, slots=True, repr=False)
class MemoryProjection:
    """Whether a job fits, and where its memory goes."""

    job: Job
    counts: ModelCounts
    stages: tuple[StageMemoryProjection, ...]
    components: tuple[Component, ...]
    documented: DocumentedMemory
    schedule: str
    provenance: Provenance

    @property
    def device_memory_bytes(self) -> float:
        """Memory of the device as its driver reports it."""
        return self.job.cluster.device.hbm_gib * 2**30

    @property
    def peak_stage(self) -> int:
        """Pipeline rank with the highest peak."""
        return int(np.argmax([stage.peak_bytes for stage in self.stages]))

    @property
    def peak_bytes(self) -> float:
        """Allocated peak of the fullest rank."""
        return self.stages[self.peak_stage].peak_bytes

    @property
    def usable_bytes(self) -> float:
        """Device memory less the reserve and what the allocator loses to fragmentation."""
        return usable_bytes(self.job.cluster)

    @property
    def headroom_bytes(self) -> float:
        """What is left at the peak; negative where the job does not fit."""
        return self.usable_bytes - self.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak stays below the usable memory."""
        return self.headroom_bytes >= 0.0

    @property
    def uncertainty(self) -> dict[str, Any]:
        """Band of the peak, from published measurements of memory."""
        return uncertainty(self.job, "memory")

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector memory --json`` prints."""
        return {
            **envelope(self.provenance, self.uncertainty),
            "parameters_total": self.counts.parameters_total,
            "parameters_active": self.counts.parameters_active,
            "device_memory_gib": to_gib(self.device_memory_bytes),
            "usable_gib": to_gib(self.usable_bytes),
            "peak_gib": to_gib(self.peak_bytes),
            "headroom_gib": to_gib(self.headroom_bytes),
            "fits": self.fits,
            "peak_stage": self.peak_stage,
            "schedule": self.schedule,
            "stages": [stage.to_dict() for stage in self.stages],
            "components": [component.to_dict() for component in self.components],
            "documented": self.documented.to_dict(),
        }

    def __repr__(self) -> str:
        """Say whether it fits, in one line."""
        verdict = "fits" if self.fits else "does not fit"
        return (
            f"MemoryProjection({self.job.model.name} on {self.job.cluster.gpus} x "
            f"{self.job.cluster.device.name}: {verdict}, peak {to_gib(self.peak_bytes):.2f} GiB on "
            f"stage {self.peak_stage}, headroom {to_gib(self.headroom_bytes):.2f} GiB)"
        )

    def _repr_html_(self) -> str:
        from projector.projection.html import html_table

        rows = [stage.to_dict() for stage in self.stages]
        return html_table(repr(self), rows)


def memory_projection(evaluation: Evaluation, row: int) -> MemoryProjection:
    """Read one job's memory out of an evaluated batch."""
    job, memory = evaluation.job(row), evaluation.memory(row)
    stages = tuple(
        StageMemoryProjection(
            stage=rank,
            parameters=round(float(memory.parameters[rank])),
            weights_bytes=float(memory.weights_bytes[rank]),
            gradients_bytes=float(memory.gradients_bytes[rank]),
            optimizer_bytes=float(memory.optimizer_bytes[rank]),
            activations_bytes=float(memory.activations_bytes[rank]),
            transient_bytes=float(memory.transient_bytes[rank]),
            buffers_bytes=float(memory.buffers_bytes[rank]),
            in_flight_microbatches=int(memory.in_flight[rank]),
        )
        for rank in range(job.parallelism.pp)
    )
    return MemoryProjection(
        job=job,
        counts=count_model(job),
        stages=stages,
        components=_components(evaluation, row),
        documented=documented_memory(job),
        schedule=evaluation.schedule(row),
        provenance=provenance_of(job),
    )


def _components(evaluation: Evaluation, row: int) -> tuple[Component, ...]:
    """Build the module tree of each distinct workload of one job, in model order."""
    workloads, table = evaluation.workloads, evaluation.table
    stages = range(workloads.num_stages(row))
    runs = [run for stage in stages for run in workloads.runs(row, stage)]
    components = []
    names: dict[str, int] = {}
    for workload in dict.fromkeys(workloads.run_workload[runs].tolist()):
        rows = np.flatnonzero(table.workload == workload)
        leaves: dict[str, list[float]] = {}
        for index in rows:
            parameters, saved = table.parameters[index], table.saved_bytes[index]
            if parameters or saved:
                leaf = leaves.setdefault(table.labels[table.label[index]], [0.0, 0.0])
                leaf[0] += float(parameters)
                leaf[1] += float(saved)
        name = KIND_NAMES[int(workloads.columns.kind[workload])]
        names[name] = names.get(name, 0) + 1
        shown = name if names[name] == 1 else f"{name}_{names[name]}"
        components.append(_tree(shown, leaves))
    return tuple(components)


def _tree(name: str, leaves: dict[str, list[float]]) -> Component:
    """Turn dotted labels into a tree whose nodes add up."""
    groups: dict[str, dict[str, list[float]]] = {}
    for label, values in leaves.items():
        head, _, rest = label.partition(".")
        groups.setdefault(head, {})[rest] = values
    children = tuple(
        Component(head, round(group[""][0]), group[""][1])
        if set(group) == {""}
        else _tree(head, {rest or head: values for rest, values in group.items()})
        for head, group in groups.items()
    )
    if len(children) == 1 and children[0].name == name:
        return Component(
            name, children[0].parameters, children[0].activation_bytes, children[0].children
        )
    return Component(
        name,
        sum(child.parameters for child in children),
        sum(child.activation_bytes for child in children),
        children,
    )
