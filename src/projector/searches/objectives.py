"""What a search makes small: the time of a step, or cost, energy or emissions of the run."""

import numpy as np

from projector.arrays import Floats
from projector.config.job import Job
from projector.config.listed import listed_price
from projector.errors import ConfigError
from projector.projection.results import Results
from projector.projection.run import project_runs

OBJECTIVES = TIME, COST, ENERGY, CO2 = "time", "cost", "energy", "co2"

NAMES = {TIME: "speed", COST: "cost", ENERGY: "energy", CO2: "CO2"}
"""What reports call them."""

UNITS = {COST: "USD", ENERGY: "MWh", CO2: "t CO2"}
"""Of the values of the objectives, time apart."""

KEYS = {COST: "cost_usd", ENERGY: "energy_mwh", CO2: "co2_t"}
"""Keys of the same in ``--json``."""

_PRICE = (
    "run.cost.usd_per_gpu_hour=X, run.cost.prices=listed for dated prices, or "
    "run.cost.owned.capex_usd_per_gpu=X for a fleet of one's own"
)


def check_objective(job: Job, objective: str) -> None:
    """Raise what a job lacks for an objective."""
    if objective not in OBJECTIVES:
        msg = f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}"
        raise ConfigError(msg, key="objective", value=objective, allowed=list(OBJECTIVES))
    if objective == TIME:
        return
    if not job.run.is_stated:
        msg = f"objective {objective} is of a whole run: state its tokens, as run.tokens=1e12"
        raise ConfigError(msg, key="run.tokens", allowed="tokens of the run")
    if objective == COST and not _has_price(job):
        name = job.cluster.device.name
        why = f"none is listed for {name}" if job.run.cost.is_stated else "the job has none"
        msg = f"objective cost needs a price, and {why}; give {_PRICE}"
        raise ConfigError(msg, key="run.cost.usd_per_gpu_hour", allowed="a price")


def _has_price(job: Job) -> bool:
    cost = job.run.cost
    stated = cost.owned.capex_usd_per_gpu if cost.owned.enabled else cost.usd_per_gpu_hour
    return stated is not None or listed_price(job) is not None


def objective_values(results: Results, objective: str) -> Floats:
    """Return what each job of a batch has of an objective: less is better, float64[jobs].

    A run that never ends has infinitely much.
    """
    if objective == TIME:
        return results.steps.iteration_s
    runs = project_runs(results)
    values: Floats = getattr(runs, KEYS[objective])
    return np.where(np.isnan(values), np.inf, values)
