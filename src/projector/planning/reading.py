"""Numbers, dates, prices and clusters as people write them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from projector.config.amounts import read_amount
from projector.errors import ConfigError, shown
from projector.units import unwrapped

_TOKENS = "a number above 0, such as 1e12, 300B or 15.6T"


def read_tokens(value: Any) -> float:
    """Return tokens from a number or a text such as ``1e12``, ``300B`` or ``15.6T``."""
    value = unwrapped(value)
    read = read_amount(value)
    is_number = isinstance(read, int | float) and not isinstance(read, bool)
    number = float(read) if is_number else math.nan
    if not math.isfinite(number) or number <= 0.0:
        msg = f"tokens is {_TOKENS}, got {shown(value)}"
        raise ConfigError(msg, key="tokens", value=value, allowed=_TOKENS)
    return number


def days_until(deadline: Any, today: date) -> float:
    """Return the days from today to a date, given as such or as ``2027-03-01``."""
    try:
        day = deadline if isinstance(deadline, date) else date.fromisoformat(str(deadline).strip())
    except ValueError:
        msg = f"deadline is a date such as 2027-03-01, got {shown(deadline)}"
        raise ConfigError(msg, key="deadline", value=deadline, allowed="YYYY-MM-DD") from None
    days = (day - today).days
    if days <= 0:
        msg = (
            f"deadline {day} does not lie ahead: today is {today}. A run that starts today needs a "
            "later date"
        )
        raise ConfigError(msg, key="deadline", value=str(day), allowed=f"after {today}")
    return float(days)


def positive(value: Any, key: str) -> float | None:
    """Return a number above 0, or None where none is given."""
    value = unwrapped(value)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0.0:
        msg = f"{key} is a number above 0, got {shown(value)}"
        raise ConfigError(msg, key=key, value=value, allowed="above 0")
    return float(value)


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """One kind of cluster: a device and, where it is not the usual one, a network."""

    device: Any
    """A name, a file, a mapping or a `Device`."""
    network: str | None = None
    label: str = ""
    """What reports and prices call it."""

    @property
    def overrides(self) -> dict[str, Any]:
        """Dotted fields of a job on it."""
        chosen = {"cluster.device": self.device}
        return chosen if self.network is None else {**chosen, "cluster.network": self.network}


def read_kinds(devices: Any) -> tuple[ClusterKind, ...]:
    """Return the kinds of clusters that ``NAME`` or ``NAME@NETWORK`` stand for, each once."""
    given = [devices] if isinstance(devices, str | Mapping) else devices
    if not isinstance(given, Iterable) or not (listed := list(given)):
        msg = f"devices are names such as h100 or h100@p5_efa, at least one; got {shown(devices)}"
        raise ConfigError(msg, key="devices", value=devices, allowed="one or more names")
    kinds = []
    for each in listed:
        name, at, network = each.partition("@") if isinstance(each, str) else (each, "", "")
        if at and Path(each).exists():
            name, at, network = each, "", ""
        if at and not (name and network):
            msg = f"devices: {each!r} should be NAME, or NAME@NETWORK such as h100@p5_efa"
            raise ConfigError(msg, key="devices", value=each, allowed="NAME or NAME@NETWORK")
        label = str(each) if isinstance(each, str) else str(getattr(each, "name", "own device"))
        kinds.append(ClusterKind(name, network or None, label))
    labels = [kind.label for kind in kinds]
    for label in labels:
        if labels.count(label) > 1:
            msg = f"devices: {label!r} is given twice"
            raise ConfigError(msg, key="devices", value=label, allowed="each once")
    return tuple(kinds)


def read_gpus(gpus: Any) -> tuple[int, ...]:
    """Return the sizes to choose from in GPUs, rising; none where the plan chooses them."""
    gpus = unwrapped(gpus)
    if gpus is None:
        return ()
    given: Sequence[Any] = list(map(unwrapped, gpus if isinstance(gpus, list | tuple) else [gpus]))
    for each in given:
        if isinstance(each, bool) or not isinstance(each, int) or each < 1:
            msg = f"gpus is a whole number above 0, got {shown(each)}"
            raise ConfigError(msg, key="gpus", value=each, allowed=">= 1")
    return tuple(sorted(set(given)))


def read_prices(value: Any, kinds: Sequence[ClusterKind]) -> dict[str, float]:
    """Return USD for an hour of a GPU by label: one price for all, or a mapping."""
    key = "usd_per_gpu_hour"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        price = positive(value, key)
        assert price is not None
        return {kind.label: price for kind in kinds}
    labels = [kind.label for kind in kinds]
    prices = {}
    for label, number in value.items():
        if label not in labels:
            msg = f"{key}: {label!r} is no device of this plan; its devices: {', '.join(labels)}"
            raise ConfigError(msg, key=key, value=label, allowed=labels)
        price = positive(number, key)
        if price is None:
            msg = f"{key}: {label} has no price"
            raise ConfigError(msg, key=key, value=None, allowed="above 0")
        prices[label] = price
    return prices
