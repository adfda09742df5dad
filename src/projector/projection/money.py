"""Watts, energy and cost of the runs of an evaluation; see docs/cost.md.

A device runs at the highest clock that its power cap allows. Then a kernel of t seconds with F FLOP
and B bytes draws, by the device's power model (`config.device_kernels.Power`, docs/hardware.md),

    watts = min(held, idle + (joules of a FLOP * F + joules of a byte * B) / t)

and a device that waits draws ``idle``. What is counted of kernels is `operations.work`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.config.job import Job
from projector.config.listed import listed_price
from projector.config.prices import WORLD, load_prices, load_surrounding_power, of_family
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
from projector.runs import cost as costs
from projector.runs.cost import cost_usd, usd_per_mfu_point, usd_per_million_tokens
from projector.runs.time import RunTimes

_FP8 = MATRIX_TYPES.index("fp8")


def device_power(evaluation: Evaluation) -> costs.RunPower:
    """Return the power of the devices of each job of an evaluation.

    ``step_w`` follows the power model of the device, or is a share of its TDP where it has none.
    """
    power, money = _listed(evaluation), _stated(evaluation)
    pipeline_of_job = evaluation.workloads.pipeline.take(evaluation.families.of_job)
    dynamic_w = _microbatch_joules(evaluation)[pipeline_of_job]
    dynamic_w = dynamic_w * evaluation.microbatches / evaluation.jobs.pp
    dynamic_w = dynamic_w / evaluation.steps.iteration_s
    step_w = np.minimum(power.idle_w + dynamic_w, power.held_w)
    return costs.RunPower(
        step_w=np.where(np.isnan(power.held_w), power.flat_w, step_w),
        idle_w=power.idle_w,
        other_w=np.where(np.isnan(money.other_w), power.other_w, money.other_w),
        pue=money.pue,
    )


def _microbatch_joules(evaluation: Evaluation) -> Floats:
    """Return the joules of a microbatch beside idle power on one rank of every stage.

    float64[pipelines]; NaN without a power model.
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
            dynamic = dynamic + np.where(done[:, FLOP] > 0.0, per_flop, 0.0) * done[:, FLOP]
        most = np.inf if kind == OF_COMMUNICATION else room_w * done[:, SECONDS]
        joules += np.minimum(voltage * dynamic, most)
    count = workloads.run_count.astype(np.float64)
    return segment_sums(workloads.run_offset[workloads.stage_offset], joules * count)


KWH_PER_MWH = 1000.0
KG_PER_TONNE = 1000.0


@dataclass(frozen=True, slots=True)
class RunMoney:
    """Energy and cost of runs, one entry for each job."""

    power: costs.RunPower
    energy: costs.RunEnergy
    co2_kg: Floats
    usd_per_gpu_hour: Floats
    """Rent, or what an owned device costs, its power included; NaN without a price."""
    cost_usd: Floats
    """NaN without a price."""
    owned: costs.OwnedShares
    """What ownership comes to over the lifetime of a device, NaN without its capex."""
    owned_multiplier: Floats
    """The same in all; NaN where devices are rented."""


def run_money(evaluation: Evaluation, times: RunTimes) -> RunMoney:
    """Return energy and cost of the run of each job.

    Devices are busy while steps run, those that a failure undoes included. They wait while a
    checkpoint is written, during a restart, for spares and for stragglers.
    """
    batch, jobs = evaluation.batch, evaluation.jobs
    money, power = _stated(evaluation), device_power(evaluation)
    spare_nodes = np.nan_to_num(batch.run.spare_nodes)
    gpus = jobs.gpus.astype(np.float64)
    busy_s = times.compute_s + times.warm_up_s + times.evaluation_s + times.lost_work_s
    spare_gpus = spare_nodes * gpus / batch.cluster.nodes
    energy = costs.run_energy(power, gpus, spare_gpus, busy_s, times.total_s)
    owned = _ownership(evaluation, money)
    rent = _stated_or_listed(money.rent, _listed(evaluation).listed_rent, money)
    owners = costs.owned_usd_per_gpu_hour(owned, energy.average_w, money.usd_per_kwh)
    price = np.where(money.owns == 1, owners, rent)
    shares = costs.owned_shares(owned, energy.average_w, money.usd_per_kwh)
    return RunMoney(
        power=power,
        energy=energy,
        co2_kg=costs.emitted_kg(energy.energy_kwh, money.g_per_kwh),
        usd_per_gpu_hour=price,
        cost_usd=cost_usd(energy.gpu_hours, price),
        owned=shares,
        owned_multiplier=np.where(money.owns == 1, shares.multiplier, np.nan),
    )


def _listed(evaluation: Evaluation) -> PowerColumns:
    return PowerColumns(evaluation.batch.sections.cluster, evaluation.batch.index[3])


def _stated(evaluation: Evaluation) -> MoneyColumns:
    return MoneyColumns(evaluation.batch.sections.run, evaluation.batch.index[4])


def _stated_or_listed(stated: Floats, listed: Floats, money: MoneyColumns) -> Floats:
    """Return a stated price, or the listed one where the job asks for it and states none."""
    return np.where(np.isnan(stated) & (money.takes_listed == 1), listed, stated)


def _ownership(evaluation: Evaluation, money: MoneyColumns) -> costs.Ownership:
    devices = _listed(evaluation)
    return costs.Ownership(
        capex_usd=_stated_or_listed(money.capex, devices.listed_capex, money),
        system_share=money.system_share,
        lifetime_years=money.lifetime_years,
        utilisation=money.utilisation,
        tdp_w=devices.tdp_w,
        cooling_usd_per_w=money.cooling_usd_per_w,
        real_estate_usd_per_w=money.real_estate_usd_per_w,
        facility_once=money.facility_once == 1,
        staff_share=money.staff_share,
    )


@dataclass(frozen=True, slots=True)
class RunBill:
    """What energy and cost of one run come to, beside its scalars."""

    usd_per_gpu_hour: float | None
    """Rent, or what an owned device costs, its power included; None without a price, as everything
    else in USD."""
    usd_per_million_tokens: float | None
    usd_per_mfu_point: float | None
    """Cost over MFU in per cent."""
    watts_per_gpu: float
    """Of a device, averaged over a step."""
    average_w_per_gpu: float
    """Of a reserved device with its share of node and building, over the whole run."""
    owned_multiplier: float | None
    """Cost of ownership over capex, for a lifetime of such runs; None where devices are rented."""


def known(value: Any) -> float | None:
    """Return a number as ``--json`` has it: NaN is not known."""
    return None if np.isnan(value) else float(value)


def bill_of(money: RunMoney, row: int, mfu: Floats, tokens: Floats) -> RunBill:
    """Return what energy and cost of one run come to, by MFU and tokens of all, float64[runs]."""
    return RunBill(
        usd_per_gpu_hour=known(money.usd_per_gpu_hour[row]),
        usd_per_million_tokens=known(usd_per_million_tokens(money.cost_usd, tokens)[row]),
        usd_per_mfu_point=known(usd_per_mfu_point(money.cost_usd, mfu)[row]),
        watts_per_gpu=float(money.power.step_w[row]),
        average_w_per_gpu=float(money.energy.average_w[row]),
        owned_multiplier=known(money.owned_multiplier[row]),
    )


def power_assumptions(job: Job) -> list[str]:
    """Return what energy takes for granted that a job does not state, a sentence each."""
    energy, device = job.run.energy, job.cluster.device
    around, prices = load_surrounding_power(), load_prices()
    lines = []
    if device.power is None:
        share = of_family(around.busy_share, device.architecture)
        source = around.sources[share.source]
        lines.append(
            f"a device draws {share.value:.0%} of its TDP, having no power model: {source}"
        )
    if energy.node_overhead_w_per_gpu is None:
        other = of_family(around.other_w_per_gpu, device.architecture)
        watts = other.value + around.network_w_per_gpu.value
        lines.append(
            f"run.energy.node_overhead_w_per_gpu {watts:g}: {around.sources[other.source]}"
        )
    if energy.pue is None:
        pue = prices.owned.pue
        lines.append(f"run.energy.pue {pue.value:g}: {prices.sources[pue.source]}")
    grid = WORLD if energy.grid is None else energy.grid
    if isinstance(grid, str):
        entry = prices.grid_g_co2_per_kwh[grid]
        source = prices.sources[entry.source]
        lines.append(f"grid of {grid}, {entry.value:g} g of CO2 for a kWh: {source}")
    return lines


def price_assumptions(job: Job) -> list[str]:
    """Return what cost takes for granted, likewise."""
    cost, prices = job.run.cost, load_prices()
    lines = []
    listed = listed_price(job)
    stated = cost.owned.capex_usd_per_gpu if cost.owned.enabled else cost.usd_per_gpu_hour
    if listed is not None:
        lines.append(
            f"{listed.what} {listed.value:g} {listed.unit} on {listed.day}: {listed.source}"
        )
    elif cost.is_stated and stated is None:
        lines.append(f"no listed price of {job.cluster.device.name}: no money is projected")
    if cost.owned.enabled:
        given = {**dict(cost.owned), "usd_per_kwh": job.run.energy.usd_per_kwh}
        for field in type(prices.owned).model_fields:
            if field != "pue" and given[field] is None:
                number = getattr(prices.owned, field)
                lines.append(f"owned, {field} {number.value:g}: {prices.sources[number.source]}")
    return lines
