"""What a device takes from the one that it extends, scaled to its own rates."""

import math
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np

from projector.config._base import is_mapping, merge, nested
from projector.config.resources import hardware_table

MATRIX, CLOCK = "matrix_flop_per_clk_per_cu", "peak_clock_mhz"

LARGE_TILE_FLOP = 2.0 * 128 * 256
"""FLOP of one element of K of the largest tile of a unit, on which floors were fitted."""

FLOOR = 0.4
"""Share of the voltage at clock 0 (docs/hardware.md); idle power is a share of the cap."""

WATTS = 2.0 / 3.0
"""Exponent of what a unit takes at a clock over its matrix rate. Joules of a BF16 FLOP became 0.68,
1.11, 0.81 and 0.69 times as many where H100, B200, MI300X and MI355X doubled the rate. A type that
rises alone takes the same watts: on those four, FP8 takes 0.76 to 1.29 times those of BF16."""

CLOCKS = np.linspace(0.0, 1.0, 1001)


def scaled(
    data: Mapping[str, Any], own: Mapping[str, Any], base: Mapping[str, Any], *, scales: bool
) -> dict[str, Any]:
    """Return a device's data with what it does not state itself scaled from ``base``.

    Unless it ``scales``, and where no ratio moves, it has what ``base`` has.
    """
    result = dict(data)
    for pattern, rule in hardware_table("scaling.yaml")["rules"].items():
        for path in _paths(base, tuple(pattern.split("."))):
            names = rule["with"].split()
            ratio = {name: _ratio_of_any(data, base, name.lstrip("/"), path[-1]) for name in names}
            power = _ratio(data, base, "tdp_w", "") / _ratio(data, base, "compute_units", "")
            rates = (_ratio(data, base, MATRIX, path[-1]), _ratio(data, base, f"{MATRIX}.bf16", ""))
            watts = math.pow(sorted((1.0, *rates))[1], WATTS)
            power /= watts
            anew = rule.get("how") == "share" and data["architecture"] != base["architecture"]
            moved = set(ratio.values()) != {1.0} or (rule.get("how") == "power" and power != 1.0)
            value, entry = _number(base, path), _at(data, path)
            if not value or entry is None or _at(own, path) is not None:
                continue
            if anew or not (moved and scales):
                if _number(data, path) != value:
                    result = merge(result, nested(path, _at(base, path)))
                continue
            factor = math.prod(r ** (-1 if n[0] == "/" else 1) for n, r in ratio.items())
            factor *= watts if rule.get("how") == "energy" else 1.0
            rate = _number(base, (MATRIX, path[-1])) or LARGE_TILE_FLOP
            highest = _number(base, (CLOCK,)) or value
            pipe = LARGE_TILE_FLOP / rate
            new = _scaled(value, rule, factor, power, pipe if MATRIX in ratio else highest)
            # The sources of families and of the other device are written out by now.
            entry = entry if is_mapping(entry) else {"source": "unsourced"}
            note = f"{entry.get('note') or ''}; scaled x {new / value:.3g} with {rule['with']}"
            leaf = {**entry, "value": new, "note": note.removeprefix("; ")}
            result = merge(result, nested(path, leaf))
    return result


def _scaled(value: float, rule: Mapping[str, Any], factor: float, power: float, of: float) -> float:
    """Return a number scaled by a rule; ``of`` has the pipe's clocks or the highest clock."""
    how = rule.get("how")
    if how == "share":
        return value / (value + (1.0 - value) * factor)
    if how == "floor":
        return value - min(value, of) * (1.0 - 1.0 / factor)
    if how == "power":
        return factor * of * _clock_share(value / of, power / factor)
    # What a unit takes in at most rises where fewer share a cache, and does not fall.
    return max(value, min(value * factor, rule["most"])) if "most" in rule else value * factor


def _clock_share(share: float, power: float) -> float:
    """Return the share of the highest clock that so much more power a unit sustains."""
    # What meets no cap still meets none where a unit has more power; how much it left is unknown.
    allowed = power * _watts(share)
    return 1.0 if share >= 1.0 else float(np.interp(allowed, _watts(CLOCKS), CLOCKS))


def _watts(clock: Any) -> Any:
    return clock * (FLOOR + (1.0 - FLOOR) * clock) ** 2


def _ratio(data: Mapping[str, Any], base: Mapping[str, Any], name: str, kind: str) -> float:
    path = (name, kind) if name == MATRIX else tuple(name.split("."))
    new, old = _number(data, path), _number(base, path)
    return new / old if new and old and new > 0.0 and old > 0.0 else 1.0


def _ratio_of_any(data: Mapping[str, Any], base: Mapping[str, Any], names: str, kind: str) -> float:
    """Return the ratio of the first name; where that falls, of one that falls less."""
    first, *others = (_ratio(data, base, name, kind) for name in names.split("|"))
    return max([first, *(min(other, 1.0) for other in others)])


def _paths(data: Any, pattern: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths that a pattern means; ``*`` stands for every name."""
    if not pattern:
        yield ()
    elif is_mapping(data):
        for name in data if pattern[0] == "*" else (pattern[0],):
            if name in data:
                yield from ((name, *rest) for rest in _paths(data[name], pattern[1:]))


def _at(data: Any, path: tuple[str, ...]) -> Any:
    return reduce(lambda at, name: at.get(name) if is_mapping(at) else None, path, data)


def _number(data: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    found = _at(data, path)
    found = found.get("value") if is_mapping(found) else found
    return float(found) if isinstance(found, int | float) else None
