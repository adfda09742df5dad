"""Watts of a device, averaged over the step of a job; see docs/cost.md.

A device runs at the highest clock that its power cap allows. Then a kernel of t seconds with F FLOP
and B bytes draws, by the power model of the device (`config.gemm.Power`, docs/hardware.md),

    watts = min(held, idle + (joules of a FLOP * F + joules of a byte * B) / t)

and a device that waits draws ``idle``. What is counted of kernels is `operations.work`.
"""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Floats
from projector.kernels.device import MATRIX_TYPES
from projector.kernels.grouping import segment_sums
from projector.lower.money import MoneyColumns, PowerColumns
from projector.operations.work import (
    BYTES,
    FLOP,
    KINDS,
    LINEAR,
    OF_ATTENTION,
    OF_COMMUNICATION,
    SECONDS,
    WIDE,
)
from projector.projection.evaluate import Evaluation

_FP8 = MATRIX_TYPES.index("fp8")


@dataclass(frozen=True, slots=True)
class DevicePower:
    """Power of jobs, one entry for each, in watts for each device."""

    step_w: Floats
    """Of a device, averaged over a step."""
    idle_w: Floats
    """Of a device that waits."""
    other_w: Floats
    """Of the rest of a node and of the network."""
    modelled: Flags
    """Whether ``step_w`` follows the power model of the device; otherwise a share of its TDP."""


def device_power(evaluation: Evaluation) -> DevicePower:
    """Return the power of the devices of each job of an evaluation."""
    batch = evaluation.batch
    power = PowerColumns(batch.sections.cluster, batch.index[3])
    stated = MoneyColumns(batch.sections.run, batch.index[4]).other_w
    modelled = ~np.isnan(power.held_w)
    dynamic_w = _microbatch_joules(evaluation)[evaluation.pipeline_of_job]
    dynamic_w = dynamic_w * evaluation.microbatches / evaluation.jobs.pp
    dynamic_w = dynamic_w / evaluation.steps.iteration_s
    step_w = np.minimum(power.idle_w + dynamic_w, power.held_w)
    return DevicePower(
        step_w=np.where(modelled, step_w, power.flat_w),
        idle_w=power.idle_w,
        other_w=np.where(np.isnan(stated), power.other_w, stated),
        modelled=modelled,
    )


def _microbatch_joules(evaluation: Evaluation) -> Floats:
    """Return what a microbatch takes beside idle power on one rank of every stage.

    Returns
    -------
    float64[pipelines]
        Joules; NaN without a power model.
    """
    workloads = evaluation.workloads
    first = workloads.first_jobs()
    power = PowerColumns(first.sections.cluster, first.index[3])
    pipeline, workload = workloads.pipeline_of_run, workloads.run_workload
    joules = np.zeros(len(workload))
    room_w = (power.held_w - power.idle_w)[pipeline]
    voltage, per_byte = power.voltage_squared[pipeline], power.joule_per_byte[pipeline]
    columns, work = workloads.columns, evaluation.costs.work
    narrow = np.where(columns.fp8_attention == 1, _FP8, columns.wide_dtype)
    types = {LINEAR: columns.dtype, WIDE: columns.wide_dtype, OF_ATTENTION: narrow}
    for kind in range(len(KINDS)):
        done = work[workload, kind]
        dynamic = per_byte * done[:, BYTES]
        if kind in types:
            per_flop = power.joule_per_flop[pipeline, types[kind][workload]]
            # A type without an energy runs at its sustained clock, which is the one at the cap.
            per_flop = np.where(np.isnan(per_flop), np.inf, per_flop)
            has_work = done[:, FLOP] > 0.0
            dynamic = dynamic + np.where(has_work, per_flop, 0.0) * done[:, FLOP]
        most = np.inf if kind == OF_COMMUNICATION else room_w * done[:, SECONDS]
        joules += np.minimum(voltage * dynamic, most)
    count = workloads.run_count.astype(np.float64)
    return segment_sums(workloads.run_offset[workloads.stage_offset], joules * count)
