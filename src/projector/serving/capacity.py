"""How many replicas a load needs, and what a deployment trades between latency and throughput."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from projector.arrays import Floats
from projector.config._base import Config, Positive
from projector.envelope import told
from projector.errors import ConfigError
from projector.serving.deployment import Deployment
from projector.serving.load import Load, Scheduler
from projector.serving.simulation import LoadResult, Replica, longest_of, replica_of, serve_all
from projector.units import MILLISECOND

TOLERANCE = 0.005
"""Relative width at which the search for the largest rate stops."""

AT_A_TIME = 4
"""Rates that one round of the search tries; fixed, so that no result depends on the machine."""

SLOWEST = 1e-3
"""Least rate that is tried, as a share of the throughput with all requests there at once."""


class Targets(Config):
    """What the users of a deployment are promised."""

    ttft_ms: Positive | None = None
    """Time to the first token."""
    tpot_ms: Positive | None = None
    """Time of a token after the first, the mean over a request."""
    e2e_ms: Positive | None = None
    """Time to the last token."""
    percentile: float = Field(default=99.0, gt=0, le=100)
    """Share of the requests, in percent, that each target holds for."""

    def met_by(self, result: LoadResult) -> bool:
        """Whether all targets hold, and the queue does not grow."""
        return not result.saturated and not any(
            result.percentile_s(name, self.percentile) > limit * MILLISECOND
            for name, limit in self.limits_ms.items()
        )

    @property
    def limits_ms(self) -> dict[str, float]:
        """The targets that are set, by name."""
        pairs = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2e": self.e2e_ms}
        return {name: limit for name, limit in pairs.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """Replicas for a load."""

    deployment: Deployment
    targets: Targets
    load: Load
    replica_rate_per_s: float
    """Largest rate of one replica that meets the targets; 0 where none does."""
    replicas: int | None
    """None where not even one request at a time meets the targets."""
    result: LoadResult
    """A replica's share of the load; where nothing meets the targets, the smallest rate tried."""

    @property
    def gpus(self) -> int | None:
        """Devices of all replicas."""
        return None if self.replicas is None else self.replicas * self.deployment.gpus

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            **told(self, "replicas gpus replica_rate_per_s"),
            "rate_per_s": self.load.rate_per_s,
            "targets": self.targets.model_dump(),
            "replica": self.result.to_dict(),
        }


def capacity(
    deployment: Deployment,
    load: Load,
    targets: Targets | None = None,
    scheduler: Scheduler | None = None,
    replicas: Callable[..., Replica] = replica_of,
) -> CapacityResult:
    """Find how many replicas serve a load within the targets.

    The largest rate of one replica is searched for with the same random numbers at every rate,
    so that a larger rate only moves the same requests together. Requests are dealt to replicas at
    random, which leaves Poisson arrivals Poisson; ``replicas = ceil(rate / largest rate)``.
    ``replicas`` returns that of a deployment, a scheduler, and a longest sequence.
    """
    targets = targets or Targets()
    if load.rate_per_s is None:
        msg = f"a capacity is asked for at a rate; {load.arrival} arrivals have none"
        raise ConfigError(msg, key="arrival", value=load.arrival, allowed=["poisson", "gamma"])
    replica = replicas(deployment, scheduler or Scheduler(), longest_of(load.draw()))
    largest, slowest = _largest_rate(replica, load, targets)
    if largest == 0.0:
        return CapacityResult(deployment, targets, load, 0.0, None, slowest)
    count = max(1, math.ceil(load.rate_per_s / largest))
    share = load.at_rate(load.rate_per_s / count)
    result = serve_all([(replica, share, share.draw())])[0]
    return CapacityResult(deployment, targets, load, largest, count, result)


def _largest_rate(replica: Replica, load: Load, targets: Targets) -> tuple[float, LoadResult]:
    """Return the largest rate that meets the targets, and the result at the smallest tried."""
    load = load.model_copy(update={"duration_s": None})
    everything = load.model_copy(update={"arrival": "offline", "rate_per_s": None})
    bound = serve_all([(replica, everything, everything.draw())])[0]
    high = bound.requests_per_s * (1.0 + 2.0 * TOLERANCE)
    low = high * SLOWEST
    (slowest,) = _at_rates(replica, load, [low])
    if not targets.met_by(slowest):
        return 0.0, slowest
    while high > low * (1.0 + TOLERANCE):
        rates = np.geomspace(low, high, AT_A_TIME + 2)[1:]
        met = [targets.met_by(result) for result in _at_rates(replica, load, rates)]
        if all(met):
            return float(rates[-1]), slowest
        # The first that fails bounds the rest: a rate above it is not promised.
        failed = met.index(False)
        high, low = float(rates[failed]), float(rates[failed - 1]) if failed else low
    return float(low), slowest


def _at_rates(replica: Replica, load: Load, rates: Sequence[float] | Floats) -> list[LoadResult]:
    loads = [load.at_rate(float(rate)) for rate in rates]
    return serve_all([(replica, item, item.draw()) for item in loads])
