"""Days and money of a run, in closed form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.config.first_order_device import FirstOrderDevice
from projector.config.first_order_job import AnyJob
from projector.config.prices import Price, load_prices
from projector.errors import ConfigError
from projector.first_order.columns import device_of
from projector.first_order.throughput import time_to_train_s
from projector.runs.cost import Ownership, owned_shares, owned_usd_per_gpu_hour
from projector.units import DAY, HOUR

WATTS_PER_MW = 1e6

LISTED = "listed"
"""Where a job lets the dated prices of ``hardware/prices.yaml`` stand in for its own."""


@dataclass(frozen=True, slots=True)
class FirstOrderRun:
    """A whole run: its steps alone, without warm-up, failures, checkpoints and stragglers."""

    tokens: float
    days: float
    gpu_hours: float
    cost_usd: float | None
    """None without a price."""
    owned_multiplier: float | None
    """Cost of ownership over capex; None where the fleet is not owned."""

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of a run that exist at this fidelity."""
        found: dict[str, Any] = {
            "tokens": self.tokens,
            "days": self.days,
            "gpu_hours": self.gpu_hours,
            "cost_usd": self.cost_usd,
        }
        if self.owned_multiplier is not None:
            found["owned_multiplier"] = self.owned_multiplier
        return found


def run_of_steps(job: AnyJob, step_s: float) -> FirstOrderRun:
    """Project the run that a job states, from the seconds of a step."""
    tokens, device = _tokens(job), device_of(job)
    tokens_per_step = job.training.global_batch_size * job.training.seq_length
    seconds = float(time_to_train_s(tokens, tokens_per_step, step_s))
    gpu_hours = seconds / HOUR * job.cluster.gpus
    price, multiplier = _rent(job, device), None
    if job.run.cost.owned.enabled:
        price, multiplier = _ownership(job, device)
    return FirstOrderRun(
        tokens=tokens,
        days=seconds / DAY,
        gpu_hours=gpu_hours,
        cost_usd=None if price is None else gpu_hours * price,
        owned_multiplier=multiplier,
    )


def _tokens(job: AnyJob) -> float:
    run, training = job.run, job.training
    if run.tokens is not None:
        return run.tokens
    samples = run.samples
    if run.steps is not None:
        samples = float(run.steps * training.global_batch_size)
    if samples is None:
        msg = "run.tokens: a run needs the tokens to train"
        raise ConfigError(msg, key="run.tokens", allowed="a number above 0")
    return samples * training.seq_length


def _rent(job: AnyJob, device: FirstOrderDevice) -> float | None:
    """Return USD of an hour: stated, or the dated one where the job asks for it."""
    cost = job.run.cost
    if cost.usd_per_gpu_hour is not None or cost.prices != LISTED:
        return cost.usd_per_gpu_hour
    return _listed(load_prices().rental_usd_per_gpu_hour, device)


def _listed(prices: Mapping[str, Price], device: FirstOrderDevice) -> float | None:
    return prices[device.name].value if device.name in prices else None


def _ownership(job: AnyJob, device: FirstOrderDevice) -> tuple[float | None, float | None]:
    """Return USD of an hour and the multiplier of the capex; power is the TDP times PUE.

    Source: the Roofline methodology, section 5; the formula itself is `projector.runs.cost`.
    """
    owned, listed = job.run.cost.owned, load_prices().owned
    capex = owned.capex_usd_per_gpu or device.capex_usd
    if capex is None and job.run.cost.prices == LISTED:
        capex = _listed(load_prices().capex_usd_per_gpu, device)
    if capex is None or device.tdp_w is None:
        return None, None

    def either(stated: float | None, default: float) -> Any:
        return np.array([default if stated is None else stated])

    energy = job.run.energy
    megawatt = either(owned.real_estate_usd_per_mw, listed.real_estate_usd_per_mw.value)
    fleet = Ownership(
        capex_usd=np.array([capex]),
        system_share=either(owned.system_share, listed.system_share.value),
        lifetime_years=either(owned.lifetime_years, listed.lifetime_years.value),
        utilisation=either(owned.utilisation, listed.utilisation.value),
        tdp_w=np.array([device.tdp_w]),
        cooling_usd_per_w=either(owned.cooling_usd_per_w, listed.cooling_usd_per_w.value),
        real_estate_usd_per_w=megawatt / WATTS_PER_MW,
        facility_once=np.array([owned.facility == "once"]),
        staff_share=either(owned.staff_share_per_year, listed.staff_share_per_year.value),
    )
    average_w = device.tdp_w * either(energy.pue, listed.pue.value)
    usd_per_kwh = either(energy.usd_per_kwh, listed.usd_per_kwh.value)
    hour = owned_usd_per_gpu_hour(fleet, average_w, usd_per_kwh)
    shares = owned_shares(fleet, average_w, usd_per_kwh)
    return float(hour[0]), float(shares.multiplier[0])
