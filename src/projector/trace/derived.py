"""Metrics of kernels from hardware counters: utilisation, cycles, FLOP, bytes.

The equations are data, in ``hardware/trace_counters.yaml``, each with its source.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints
from projector.config import resources
from projector.config._base import Config
from projector.config.device import Device
from projector.errors import ConfigError
from projector.trace.events import NONE

NS_PS = 1_000

_SIGNS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide,
}  # fmt: skip


class Way(Config):
    """One way to get a metric."""

    of: str
    """Equation."""
    source: str
    note: str = ""


class Metric(Config):
    """A metric and the ways to get it, the best first."""

    unit: str
    about: str
    ways: list[Way]


class Metrics(Config):
    """``hardware/trace_counters.yaml``."""

    metrics: dict[str, Metric]
    collect: dict[str, list[list[str]]]
    """Vendor -> sets of counters, each collected in one run."""
    sources: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A metric of some kernels."""

    unit: str
    values: Floats
    """float64[kernels], NaN where its counters were not collected."""
    ways: tuple[str, ...]
    """Equations that were used."""
    sources: tuple[str, ...]
    """Where they come from, as `ways`."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints: no values, but what they rest on."""
        return {
            "unit": self.unit, "kernels": int(np.isfinite(self.values).sum()),
            "ways": list(self.ways), "sources": list(self.sources), "notes": list(self.notes),
        }  # fmt: skip


@cache
def load_metrics() -> Metrics:
    """Return the shipped metrics."""
    return resources.shipped_table(Metrics, "trace_counters.yaml")


def derive(
    values: Mapping[str, Floats],
    *,
    device: Device | None = None,
    duration_ps: Ints | None = None,
) -> dict[str, Derived]:
    """Return all metrics that follow from some counters.

    Parameters
    ----------
    values : mapping of float64[kernels]
        Counters by name, NaN where one was not collected: of `Counters`, or of
        ``counter_join.JoinedCounters``.
    device : Device, optional
        Gives compute units and dies; equations that need them are left out without it.
    duration_ps : int64[kernels], optional
        Of the serialised kernels, -1 where it is not known.

    Returns
    -------
    dict
        By name of the metric; those without any value are left out.
    """
    known: dict[str, Any] = dict(values)
    if device is not None:
        known |= {
            "compute_units": device.compute_units, "dies": device.dies,
            "peak_clock_mhz": device.peak_clock_mhz,
        }  # fmt: skip
    if duration_ps is not None:
        known["duration_ns"] = np.where(duration_ps == NONE, np.nan, duration_ps / NS_PS)
    found = {}
    for name, metric in load_metrics().metrics.items():
        derived = _derived(metric, known)
        if derived is not None:
            found[name] = derived
    return found


def counters_of(metric: str) -> tuple[str, ...]:
    """Return the counters that the ways of a metric name, for the one who collects them."""
    names: dict[str, None] = {}
    for way in load_metrics().metrics[metric].ways:
        for node in ast.walk(ast.parse(way.of.strip(), mode="eval")):
            if isinstance(node, ast.Name) and node.id not in (*_DEVICE, *_CALLS):
                names[node.id] = None
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names[node.value] = None
    return tuple(names)


_DEVICE = ("compute_units", "dies", "peak_clock_mhz", "duration_ns")
_CALLS = ("some", "all_of")


def _derived(metric: Metric, known: Mapping[str, Any]) -> Derived | None:
    values: Floats | None = None
    used: list[Way] = []
    for way in metric.ways:
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                column = np.asarray(_value(ast.parse(way.of.strip(), mode="eval").body, known))
        except _MissingError:
            continue
        column = np.where(np.isfinite(column), column, np.nan)
        if values is None:
            values = np.full_like(column, np.nan)
        gaps = np.isnan(values) & ~np.isnan(column)
        if gaps.any():
            values = np.where(gaps, column, values)
            used.append(way)
    if values is None or not used:
        return None
    sources = load_metrics().sources
    return Derived(
        unit=metric.unit, values=values, ways=tuple(" ".join(way.of.split()) for way in used),
        sources=tuple(sources[way.source] for way in used),
        notes=tuple(way.note for way in used if way.note),
    )  # fmt: skip


class _MissingError(Exception):
    """A counter or a number of the device that is not there."""


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return what an equation gives; `_MissingError` without one of its counters."""
    match node:
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(left, known), _value(right, known))
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) | ast.Constant(value=str() as name):
            if name not in known:
                raise _MissingError(name)
            return known[name]
        case ast.Call(func=ast.Name(id="some"), args=parts):
            return _sum([_named(part) for part in parts], known)
        case ast.Call(func=ast.Name(id="all_of"), args=[first, last]):
            begin, end = _named(first), _named(last)
            return _sum([n for n in known if n.startswith(begin) and n.endswith(end)], known)
    msg = f"trace_counters.yaml: {ast.unparse(node)!r} is no part of an equation"
    raise ConfigError(msg, key="of", value=ast.unparse(node), allowed="counters, + - * /, some")


def _named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else str(getattr(node, "value", ""))


def _sum(names: list[str], known: Mapping[str, Any]) -> Floats:
    """Return the sum of the counters that were collected, NaN for kernels without any."""
    columns = [np.asarray(known[name], np.float64) for name in names if name in known]
    if not columns:
        raise _MissingError(", ".join(names))
    stacked = np.stack(columns)
    nothing = np.isnan(stacked).all(axis=0)
    return np.where(nothing, np.nan, np.nansum(stacked, axis=0))
