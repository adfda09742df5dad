"""Throughput against speed: every legal split and batch, and those that no other beats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.serving.deployment import Deployment
from projector.serving.load import MAX_BATCH, Traffic
from projector.serving.rates import LoadGrid, Rates, load_rates
from projector.units import to_ms

LARGEST_BATCH = 1 << 16
"""Sequences of the largest batch that a front tries."""


@dataclass(frozen=True, slots=True)
class ServingFront:
    """Points of a front, those with the most tokens a second and device first."""

    grid: LoadGrid
    """Every point that was evaluated."""
    rates: Rates
    """Of these."""
    rows: Ints
    """int64[front]: those that no other beats in throughput and speed."""
    knee: int
    """Place in ``rows`` of the point that is named; -1 where the front is empty."""
    fitting: int
    """Points that fit."""

    def deployment(self, row: int) -> Deployment:
        """Return the deployment of a point."""
        return self.grid.deployments[int(self.grid.deployment[row])]

    def overrides(self, row: int) -> dict[str, int]:
        """Return the split and the batch of a point."""
        deployment = self.deployment(row)
        names = [name for name in _DEGREES if name in {"tp", "pp"} or getattr(deployment, name) > 1]
        split = {name: int(getattr(deployment, name)) for name in names}
        return {**split, "load.batch": int(self.grid.batch[row])}

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints, without the envelope."""
        return {
            "evaluated": len(self.grid),
            "fitting": self.fitting,
            "knee": self.knee if self.knee >= 0 else None,
            "points": [self.point(row) for row in self.rows.tolist()],
        }

    def point(self, row: int) -> dict[str, Any]:
        """Return one point as plain values."""
        rates = self.rates
        deployment = self.deployment(row)
        return {
            **{name: int(getattr(deployment, name)) for name in _DEGREES},
            "gpus": deployment.gpus,
            "batch": int(self.grid.batch[row]),
            "max_batch": int(rates.max_batch[row]),
            "ttft_ms": to_ms(float(rates.ttft_s[row])),
            "tpot_ms": to_ms(float(rates.tpot_s[row])),
            "tokens_per_s_per_user": float(rates.tokens_per_s_per_user[row]),
            "tokens_per_s_per_gpu": float(rates.tokens_per_s_per_gpu[row]),
            "overrides": self.overrides(row),
        }


_DEGREES = ("tp", "pp", "ep", "attention_dp")


def serving_front(deployments: Sequence[Deployment], traffic: Traffic) -> ServingFront:
    """Project every deployment with batches up to the largest that fits, and return the front.

    The knee is the point whose product of throughput and speed is largest: beyond it one percent
    of throughput costs more than one percent of speed.
    """
    grid = _grid(deployments, traffic)
    rates = load_rates(grid)
    fits = np.flatnonzero(rates.fits)
    rows = fits[_unbeaten(rates.tokens_per_s_per_gpu[fits], rates.tokens_per_s_per_user[fits])]
    rows = rows[np.argsort(-rates.tokens_per_s_per_gpu[rows], kind="stable")]
    product = rates.tokens_per_s_per_gpu[rows] * rates.tokens_per_s_per_user[rows]
    knee = int(np.argmax(product)) if len(rows) else -1
    return ServingFront(grid, rates, rows, knee, len(fits))


def batches_up_to(most: int) -> Ints:
    """Return the powers of two, the middles between them, and the largest batch."""
    powers = 1 << np.arange(max(1, int(most)).bit_length())
    both = np.union1d(powers, powers[1:] + powers[1:] // 2)
    return np.union1d(both[both <= most], [max(1, most)]).astype(np.int64)


def load_point(deployment: Deployment, traffic: Traffic, batch: int) -> LoadGrid:
    """Return one deployment with one batch."""
    return LoadGrid.of([deployment], batch=batch, **_columns(traffic))


def _columns(traffic: Traffic) -> dict[str, int]:
    return {
        "context": traffic.context,
        "output": traffic.output or 0,
        "prompts": traffic.prompts or 0,
    }


def _grid(deployments: Sequence[Deployment], traffic: Traffic) -> LoadGrid:
    """Return each deployment with its batches; one of 1 where nothing fits."""
    owners = np.arange(len(deployments))
    load = _columns(traffic)
    largest = load_rates(LoadGrid.of(deployments, deployment=owners, **load)).max_batch
    if traffic.batch is not None:
        return LoadGrid.of(deployments, deployment=owners, batch=traffic.batch, **load)
    batches = [batches_up_to(min(int(most), LARGEST_BATCH)) for most in largest]
    return LoadGrid.of(
        deployments,
        deployment=np.repeat(owners, [len(each) for each in batches]),
        batch=np.concatenate(batches) if batches else np.zeros(0, np.int64),
        **load,
    )


def _unbeaten(first: Floats, second: Floats) -> Flags:
    """Return which points no other beats in one and equals in the other; of equal ones one."""
    order = np.lexsort((np.arange(len(first)), -second, -first))
    best = np.maximum.accumulate(np.concatenate([[-np.inf], second[order]]))[:-1]
    kept = np.zeros(len(first), np.bool_)
    kept[order] = second[order] > best
    return kept


def legal_deployments(base: Deployment, gpus: int) -> list[Deployment]:
    """Return every way to serve a model with replicas on at most ``gpus`` devices.

    Tensor and pipeline degrees are those that divide heads and stay within the layers. Models with
    routed experts are also split over ``ep`` and ``attention_dp`` of the devices of a stage.
    Replicas of other sizes than a power of two are left out.
    """
    if gpus < 1:
        msg = f"gpus must be at least 1, got {gpus}"
        raise ConfigError(msg, key="gpus", value=gpus, allowed=">= 1")
    sizes = [1 << power for power in range(gpus.bit_length()) if 1 << power <= gpus]
    groups = sizes if base.model.moe is not None else [1]
    found = []
    for tp in sizes:
        for pp in sizes:
            for attention_dp in groups:
                if tp * pp * attention_dp <= gpus:
                    found += _split(base, tp, pp, attention_dp)
    return found


def _split(base: Deployment, tp: int, pp: int, attention_dp: int) -> list[Deployment]:
    """Return the legal deployments of some degrees: experts whole on a device, or divided."""
    stage = tp * attention_dp
    fields = {name: getattr(base, name) for name in base.model_fields_set}
    legal = []
    for ep in dict.fromkeys((1, stage)) if base.model.moe is not None else (1,):
        degrees = {"tp": tp, "pp": pp, "attention_dp": attention_dp, "ep": ep}
        try:
            legal.append(Deployment.parse({**fields, **degrees}))
        except ConfigError:
            continue
    return legal


assert LARGEST_BATCH <= MAX_BATCH
