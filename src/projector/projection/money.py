"""Energy and cost of the runs of an evaluation; see docs/cost.md."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats
from projector.config.job import Job
from projector.config.listed import listed_price
from projector.config.prices import WORLD, load_prices, load_surrounding_power, of_family
from projector.lower.money import MoneyColumns, PowerColumns
from projector.projection.evaluate import Evaluation
from projector.projection.power import DevicePower, device_power
from projector.runs.cost import (
    OwnedShares,
    Ownership,
    cost_usd,
    owned_shares,
    owned_usd_per_gpu_hour,
    usd_per_mfu_point,
    usd_per_million_tokens,
)
from projector.runs.energy import RunEnergy, RunPower, emitted_kg, run_energy
from projector.runs.time import RunTimes

KWH_PER_MWH = 1000.0
KG_PER_TONNE = 1000.0


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
    """What ownership comes to over the lifetime of a device, NaN without its capex."""
    owned_multiplier: Floats
    """The same in all; NaN where devices are rented."""


def run_money(evaluation: Evaluation, times: RunTimes) -> RunMoney:
    """Return energy and cost of the run of each job.

    Devices are busy while steps run, those that a failure undoes included. They wait while a
    checkpoint is written, during a restart, for spares and for stragglers.
    """
    batch, jobs = evaluation.batch, evaluation.jobs
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
    shares = owned_shares(owned, energy.average_w, money.usd_per_kwh)
    return RunMoney(
        power=power,
        energy=energy,
        co2_kg=emitted_kg(energy.energy_kwh, money.g_per_kwh),
        usd_per_gpu_hour=price,
        cost_usd=cost_usd(energy.gpu_hours, price),
        owned=shares,
        owned_multiplier=np.where(money.owns == 1, shares.multiplier, np.nan),
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


@dataclass(frozen=True, slots=True)
class RunBill:
    """Energy and cost of one run."""

    gpu_hours: float
    """Of all reserved devices."""
    energy_mwh: float
    co2_t: float
    cost_usd: float | None
    """None without a price, as everything else in USD."""
    usd_per_gpu_hour: float | None
    """Rent, or what an owned device costs, its power included."""
    usd_per_million_tokens: float | None
    usd_per_mfu_point: float | None
    """Cost over MFU in per cent."""
    watts_per_gpu: float
    """Of a device, averaged over a step."""
    average_w_per_gpu: float
    """Of a reserved device with its share of node and building, over the whole run."""
    owned_multiplier: float | None
    """Cost of ownership over capex, for a lifetime of such runs; None where devices are rented."""

    def further(self) -> dict[str, float | None]:
        """Return what ``--json`` has beside the common keys of a run."""
        names = (
            "usd_per_gpu_hour", "usd_per_million_tokens", "usd_per_mfu_point", "watts_per_gpu",
            "average_w_per_gpu", "owned_multiplier",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def bill_of(money: RunMoney, row: int, mfu: Floats, tokens: Floats) -> RunBill:
    """Return energy and cost of one run.

    Parameters
    ----------
    mfu, tokens : float64[runs]
        Of all runs of the batch.
    """

    def known(column: Floats) -> float | None:
        value = float(column[row])
        return None if np.isnan(value) else value

    return RunBill(
        gpu_hours=float(money.energy.gpu_hours[row]),
        energy_mwh=float(money.energy.energy_kwh[row] / KWH_PER_MWH),
        co2_t=float(money.co2_kg[row] / KG_PER_TONNE),
        cost_usd=known(money.cost_usd),
        usd_per_gpu_hour=known(money.usd_per_gpu_hour),
        usd_per_million_tokens=known(usd_per_million_tokens(money.cost_usd, tokens)),
        usd_per_mfu_point=known(usd_per_mfu_point(money.cost_usd, mfu)),
        watts_per_gpu=float(money.power.step_w[row]),
        average_w_per_gpu=float(money.energy.average_w[row]),
        owned_multiplier=known(money.owned_multiplier),
    )


def money_assumptions(job: Job) -> list[str]:
    """Return what energy and cost take for granted that a job does not state, a sentence each."""
    return [*_power_assumptions(job), *_price_assumptions(job)]


def _power_assumptions(job: Job) -> list[str]:
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


def _price_assumptions(job: Job) -> list[str]:
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
