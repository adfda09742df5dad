"""Memory of one job as users see it: every stage, every term, a verdict, a measured peak."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.config.bands import Band
from projector.config.job import Job
from projector.envelope import Told, envelope, told
from projector.lower.stages import KINDS
from projector.operations.counts import ModelCounts
from projector.projection import provenance as origins
from projector.projection.bands import AT_RISK, COVERED, WORDS, band_text, memory_band
from projector.projection.evaluate import Evaluation
from projector.projection.results import MEMORY_SCALARS, Results, from_gib, json_object
from projector.projection.terms import MEMORY_TERMS, MemoryTerms
from projector.units import to_gib

if TYPE_CHECKING:
    from projector.projection.comparison import ComparedMemory


@dataclass(frozen=True, slots=True)
class MemoryAnchor:
    """What a measured step says of the memory of a job that it is a small part of."""

    analytic_bytes: float
    """Modelled peak of the fullest rank of the job."""
    live_bytes: float
    """What lived at the measured peak that the model does not know of."""
    idle_bytes: float
    """What the allocator had reserved beyond it."""
    measured_bytes: float
    """Allocated peak of the measured step."""
    margin: float
    """Share of what no measured step held that the upper bound adds."""

    @property
    def allocated_bytes(self) -> float:
        """Allocated peak of the job."""
        return self.analytic_bytes + self.live_bytes

    @property
    def peak_bytes(self) -> float:
        """Reserved peak of the job."""
        return self.allocated_bytes + self.idle_bytes

    @property
    def upper_bytes(self) -> float:
        """The same with the margin of what no measured step held."""
        return self.peak_bytes + self.margin * max(0.0, self.allocated_bytes - self.measured_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return ``memory.measured`` of ``--json``."""
        return {
            **told(self, "peak_gib upper_gib"),
            "terms_gib": {
                "analytic": to_gib(self.analytic_bytes),
                "live_excess": to_gib(self.live_bytes),
                "allocator": to_gib(self.idle_bytes),
            },
            "terms": {"analytic": "analytic", "live_excess": "scaled", "allocator": "measured"},
            "step_gib": to_gib(self.measured_bytes),
        }


@dataclass(frozen=True, slots=True)
class StageMemoryProjection(MemoryTerms[float, float]):
    """Peak memory of one pipeline rank, in bytes."""

    stage: int
    parameters: int
    """Parameters of the rank's layers before any sharding over data parallelism."""
    in_flight_microbatches: int
    """Microbatches, times chunks, whose activations the schedule holds at the peak."""

    def to_dict(self) -> dict[str, Any]:
        """Return the stage as ``--json`` prints it, in GiB."""
        return {
            **told(self, "stage parameters"),
            **{term.key: to_gib(term.of(self)) for term in MEMORY_TERMS},
            **told(self, "peak_gib in_flight_microbatches"),
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
        return told(self, "name parameters activation_gib children")


@dataclass(frozen=True, slots=True, repr=False)
class MemoryProjection:
    """Whether a job fits, and where its memory goes."""

    job: Job
    counts: ModelCounts
    stages: tuple[StageMemoryProjection, ...]
    components: tuple[Component, ...]
    provenance: origins.Provenance
    scalars: Mapping[str, Any] = field(repr=False)
    """Every scalar of `SCALARS`, under the name of its column."""
    sharding_excess_bytes: float = 0.0
    """What the weights that the fullest rank shards take more than whole ones under ZeRO 2, as they
    lie whole beside their shards while they are used; 0 or less where sharding saves."""
    anchor: MemoryAnchor | None = None
    """What the peak of a measured step says, where there is one."""
    comparison: "ComparedMemory | None" = None
    """Peaks measured beside simulated, where both were asked for."""

    schedule = Told(str)

    @property
    def documented(self) -> origins.DocumentedMemory:
        """The closed forms that Primus documents, kept for comparison."""
        totals = json_object(self.scalars, MEMORY_SCALARS)["documented"]
        return origins.DocumentedMemory(
            **totals, components=origins.documented_components(self.job)
        )

    device_memory_bytes = Told(from_gib, "device_memory_gib")
    """Memory of the device as its driver reports it."""
    peak_stage = Told(int)
    """Pipeline rank with the highest peak."""
    peak_bytes = Told(from_gib, "peak_gib")
    """Allocated peak of the fullest rank."""
    usable_bytes = Told(from_gib, "usable_gib")
    """Device memory less the reserve and what the allocator loses to fragmentation."""
    reserve_bytes = Told(from_gib, "reserve_gib")
    """Driver context and communicators, which lie outside the allocator."""
    allocator_bytes = Told(from_gib, "allocator_gib")
    """What the allocator of the fullest rank holds in idle blocks at the peak."""
    headroom_bytes = Told(from_gib, "headroom_gib")
    """What is left at the peak; negative where the job does not fit."""
    peak_low_bytes = Told(from_gib, "peak_gib_low")
    """Lower end of the band of the peak."""
    peak_high_bytes = Told(from_gib, "peak_gib_high")
    """Upper end of the band of the peak."""

    @property
    def peak_band(self) -> str:
        """Both ends of the band of the peak in GiB, as reports write them."""
        return f"{COVERED} %: " + band_text(self.peak_low_bytes, self.peak_high_bytes)

    fits = Told(bool)
    """Whether the peak stays below the usable memory."""
    verdict = Told(str)
    """``fits``, ``at_risk`` or ``does_not_fit``, by the band of the peak."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may not be as it was meant, and that memory is at risk."""
        found = self.provenance.warnings
        if self.sharding_excess_bytes > 0.0:
            less = to_gib(self.sharding_excess_bytes)
            excess = (
                f"ZeRO 2 would need {less:.2f} GiB less than ZeRO 3 or FSDP: a rank has so few "
                "layers that its gathered weights lie nearly whole beside its shards"
            )
            found = (*found, excess)
        if self.verdict != AT_RISK:
            return found
        peak = band_text(self.peak_low_bytes, self.peak_high_bytes)
        risk = f"memory is at risk: {COVERED} % of comparable runs peak at {peak} GiB, and "
        return (*found, f"{risk}{to_gib(self.usable_bytes):,.1f} are usable")

    @property
    def band(self) -> Band:
        """Band of the peak, from published measurements of memory."""
        return memory_band(self.job)

    @property
    def uncertainty(self) -> dict[str, Any]:
        """The band as the JSON object has it."""
        return self.band.to_dict()

    @property
    def measured(self) -> dict[str, Any]:
        """What ``memory`` of ``--json`` says besides, where a step was measured."""
        return {} if self.anchor is None else {"measured": self.anchor.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector memory --json`` prints."""
        scalars = json_object(self.scalars, MEMORY_SCALARS)
        del scalars["documented"]
        times, found = self.provenance.times, {}
        if times is not None:
            found["provenance"] = {"record": times.record}
        if self.comparison is not None:
            found |= told(self, "comparison")
        return {
            **envelope(self.warnings, self.uncertainty),
            "ignored_settings": list(self.job.ignored),
            **scalars,
            **told(self, "schedule stages components documented"),
            **self.measured,
            **found,
        }

    def __repr__(self) -> str:
        return (
            f"MemoryProjection({self.job.model.name} on {self.job.cluster.gpus} x "
            f"{self.job.cluster.device.name}: {WORDS[self.verdict]}, peak "
            f"{to_gib(self.peak_bytes):.2f} GiB ({self.peak_band}) on stage {self.peak_stage}, "
            f"headroom {to_gib(self.headroom_bytes):.2f} GiB)"
        )

    def _repr_html_(self) -> str:
        from projector.frames import html_table

        return html_table(repr(self), [stage.to_dict() for stage in self.stages])


def memory_projection(results: Results, row: int) -> MemoryProjection:
    """Read one job's memory out of an evaluated batch."""
    evaluation = results.evaluation
    job, memory = evaluation.job(row), evaluation.memory(row)
    terms = memory.values(MEMORY_TERMS)
    stages = tuple(
        StageMemoryProjection(
            **{name: float(values[rank]) for name, values in terms.items()},
            stage=rank,
            parameters=round(float(memory.parameters[rank])),
            in_flight_microbatches=int(memory.in_flight[rank]),
        )
        for rank in range(job.parallelism.pp)
    )
    return MemoryProjection(
        job=job,
        counts=results.counts.of(evaluation.family(row)),
        stages=stages,
        components=_components(evaluation, row),
        provenance=origins.provenance_of(job),
        scalars=results.row(row),
        sharding_excess_bytes=evaluation.sharding_excess_bytes(row),
    )


def _components(evaluation: Evaluation, row: int) -> tuple[Component, ...]:
    workloads, table = evaluation.workloads, evaluation.table
    family = evaluation.family(row)
    stages = range(workloads.num_stages(family))
    runs = [run for stage in stages for run in workloads.runs(family, stage)]
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
        name = KINDS[int(workloads.columns.kind[workload])].shown
        names[name] = names.get(name, 0) + 1
        components.append(_tree(name if names[name] == 1 else f"{name}_{names[name]}", leaves))
    return tuple(components)


def _tree(name: str, leaves: dict[str, list[float]]) -> Component:
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
