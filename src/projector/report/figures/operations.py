"""The operations of a job: FLOP, traffic, time, and the roofs of its device."""

from dataclasses import dataclass

import numpy as np

from projector.config.job import Job
from projector.kernels.device import MATRIX_TYPES
from projector.lower.hardware import native_type
from projector.lower.workloads import Workloads
from projector.operations.table import (
    FORWARD,
    MEMORY,
    TP_COMM,
    OperationTable,
)
from projector.operations.work import repeated_rows
from projector.projection.evaluate import evaluate
from projector.report.figures.traffic import row_bytes, row_flop
from projector.report.terminal.job import short_title

PHASES = ("forward", "input gradient", "weight gradient")
BOTH_GRADIENTS = "backward"
"""Name of the second phase of an operation without a separate weight gradient."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a job in one phase, over all layers and microbatches of a step."""

    name: str
    phase: str
    category: int
    """One of the compute categories of the operation table."""
    dtype: str
    """Type of the operands of its matrix instructions; empty where it has none."""
    flop: float
    bytes: float
    """Compulsory traffic, see `projector.report.figures.traffic`."""
    time_s: float
    """Together on all pipeline ranks."""
    share: float
    """Of the time of a step that a device spends with it, in the mean over pipeline ranks."""
    roof: float
    """FLOP/s that its intensity allows."""

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.bytes

    @property
    def rate(self) -> float:
        """FLOP/s that it reaches."""
        return self.flop / self.time_s


@dataclass(frozen=True, slots=True)
class Roofline:
    """Contents of the figure."""

    title: str
    operations: tuple[Operation, ...]
    """The longest first."""
    roofs: dict[str, float]
    """Matrix type that the device has -> FLOP/s at its sustained clock."""
    bytes_per_s: float
    """Achievable rate of the device's memory."""


def read_roofline(job: Job) -> Roofline:
    """Return FLOP, traffic and time of every operation of one training step."""
    evaluation = evaluate([job])
    table, workloads = evaluation.table, evaluation.workloads
    step_s = float(evaluation.steps.iteration_s[0]) * job.parallelism.pp
    weight = _weights(table, workloads, int(evaluation.microbatches[0]))
    flop, traffic = row_flop(table), row_bytes(table)
    keep = (table.category < TP_COMM) & (flop > 0.0) & (traffic > 0.0) & (weight > 0.0)
    sums: dict[tuple[int, ...], np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for row in np.flatnonzero(keep & (evaluation.rows.time_s > 0.0)).tolist():
        names = (table.label, table.phase, table.category, table.dtype, table.kind)
        key = tuple(int(column[row]) for column in names)
        amounts = weight[row] * np.array([flop[row], traffic[row], evaluation.rows.time_s[row]])
        sums[key] = sums.get(key, np.zeros(3)) + amounts
    device = workloads.devices[workloads.device[0]]
    memory = float(device["hbm_bytes_per_s"])
    split_backward = {key[0] for key in sums if key[1] > 1}
    operations = []
    for (label, phase, category, dtype, kind), (flops, moved, seconds) in sums.items():
        matrix = np.inf if kind == MEMORY else float(device["matrix_flop_per_s"][dtype])
        operations.append(
            Operation(
                name=table.labels[label],
                phase=PHASES[phase]
                if phase == FORWARD or label in split_backward
                else BOTH_GRADIENTS,
                category=category,
                dtype="" if kind == MEMORY else MATRIX_TYPES[dtype],
                flop=float(flops),
                bytes=float(moved),
                time_s=float(seconds),
                share=float(seconds) / step_s,
                roof=min(matrix, memory * float(flops / moved)),
            )
        )
    operations.sort(key=lambda operation: (-operation.time_s, operation.name, operation.phase))
    profile = job.cluster.device
    roofs = {
        name: float(device["matrix_flop_per_s"][code])
        for code, name in enumerate(MATRIX_TYPES)
        if native_type(profile, name) == name
    }
    return Roofline(short_title(job), tuple(operations), roofs, memory)


def _weights(
    table: OperationTable, workloads: Workloads, microbatches: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return how often each row runs in a step, on all pipeline ranks together."""
    layers = np.bincount(workloads.run_workload, workloads.run_count, len(workloads.rows))
    times = layers[table.workload] * float(microbatches)
    repeated = repeated_rows(table, workloads)
    return np.asarray(np.where(repeated, 2.0, 1.0) * times, np.float64)
