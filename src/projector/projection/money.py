"""Energy and cost of the runs of an evaluation; see docs/cost.md."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats
from projector.lower.money import MoneyColumns, PowerColumns
from projector.projection.evaluate import Evaluation
from projector.projection.power import DevicePower, device_power
from projector.runs.cost import (
    OwnedShares,
    Ownership,
    cost_usd,
    owned_shares,
    owned_usd_per_gpu_hour,
)
from projector.runs.energy import RunEnergy, RunPower, emitted_kg, run_energy
from projector.runs.time import RunTimes


@dataclass(frozen=True, slots=True)
class RunMoney:
    """Energy and cost of runs, one entry for each job."""

    power: DevicePower
    energy: RunEnergy
    co2_kg: Floats
    usd_per_gpu_hour: Floats
    """Rent, or what an owned device costs, its power included; NaN without a price."""
    cost_usd: Floats
    """NaN without a price."""
    owned: OwnedShares
    """What ownership would come to over the lifetime of a device, NaN without its capex."""


def run_money(evaluation: Evaluation, times: RunTimes) -> RunMoney:
    """Return energy and cost of the run of each job.

    Devices are busy while steps run, those that a failure undoes included. They wait while a
    checkpoint is written, during a restart, for spares and for stragglers.
    """
    batch, jobs = evaluation.batch, evaluation.workloads.jobs
    money = MoneyColumns(batch.sections.run, batch.index[4])
    power = device_power(evaluation)
    spare_nodes = np.nan_to_num(batch.run.spare_nodes)
    gpus = jobs.gpus.astype(np.float64)
    busy_s = times.compute_s + times.warm_up_s + times.evaluation_s + times.lost_work_s
    energy = run_energy(
        RunPower(power.step_w, power.idle_w, power.other_w, money.pue),
        gpus,
        spare_nodes * gpus / batch.cluster.nodes,
        busy_s,
        times.total_s,
    )
    owned = _ownership(evaluation, money)
    rent = _stated_or_listed(money.rent, _listed(evaluation).listed_rent, money)
    owners = owned_usd_per_gpu_hour(owned, energy.average_w, money.usd_per_kwh)
    price = np.where(money.owns == 1, owners, rent)
    return RunMoney(
        power=power,
        energy=energy,
        co2_kg=emitted_kg(energy.energy_kwh, money.g_per_kwh),
        usd_per_gpu_hour=price,
        cost_usd=cost_usd(energy.gpu_hours, price),
        owned=owned_shares(owned, energy.average_w, money.usd_per_kwh),
    )


def _listed(evaluation: Evaluation) -> PowerColumns:
    return PowerColumns(evaluation.batch.sections.cluster, evaluation.batch.index[3])


def _stated_or_listed(stated: Floats, listed: Floats, money: MoneyColumns) -> Floats:
    """Return a stated price, or the listed one where the job asks for it and states none."""
    return np.where(np.isnan(stated) & (money.takes_listed == 1), listed, stated)


def _ownership(evaluation: Evaluation, money: MoneyColumns) -> Ownership:
    devices = _listed(evaluation)
    return Ownership(
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
