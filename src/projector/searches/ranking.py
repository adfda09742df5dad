"""What a search makes small, which configurations it ranks, and which it cannot tell apart."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, overload

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints, Ints32
from projector.config.job import Job
from projector.config.listed import listed_price
from projector.errors import ConfigError, one_of
from projector.projection.bands import FITS, VERDICTS, ratio_band, settings_of
from projector.projection.results import Results
from projector.projection.run import project_runs
from projector.searches.limits import Limits
from projector.units import GIB

OBJECTIVES = TIME, COST, ENERGY, CO2 = "time", "cost", "energy", "co2"

NAMES = {TIME: "speed", COST: "cost", ENERGY: "energy", CO2: "CO2"}

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
    one_of("objective", objective, OBJECTIVES)
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
    """Return the objective of each job, float64[jobs], less is better; endless runs have inf."""
    if objective == TIME:
        return results.steps.iteration_s
    values = project_runs(results).column(KEYS[objective])
    return np.where(np.isnan(values), np.inf, values)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration that was evaluated."""

    overrides: Mapping[str, Any]
    """Dotted fields that differ from the job, and their values."""
    iteration_time_s: float
    peak_bytes: float
    headroom_bytes: float
    peak_low_bytes: float
    """Lower end of the band of the peak."""
    peak_high_bytes: float
    verdict: str
    """``fits``, ``at_risk`` or ``does_not_fit``, by the band of the peak."""
    value: float
    """Of the objective: seconds of a step, or USD, MWh or tonnes of CO2 of the run."""

    @property
    def fits(self) -> bool:
        """Whether the device has room for its projected peak, limits of the search aside."""
        return self.headroom_bytes >= 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Coverage:
    """How much of what was proposed a search looked at."""

    planned: int = 0
    """Configurations whose orders were planned."""
    ruled_out: int = 0
    """Configurations that are legal, and proven to be neither among the best nor on the front;
    their orders were not planned."""
    left_out: int = 0
    """Configurations that may be legal and among the best, as the search was stopped."""
    left_out_s: float | None = None
    """No step of those left out is shorter; None where nothing is known of some."""
    stopped: str = ""
    """Why the search was stopped, ``out of time`` or ``interrupted``; empty where it was not."""


class Goal(NamedTuple):
    """What a search has to find."""

    limits: Limits
    objective: str
    top: int


@dataclass(frozen=True, eq=False)
class Evaluated(Sequence[Configuration]):
    """Configurations as columns of n; each is made when it is asked for."""

    overrides: Callable[[int], Mapping[str, Any]]
    """Returns those of a row."""
    row: Ints
    iteration_time_s: Floats
    peak_bytes: Floats
    headroom_bytes: Floats
    peak_low_bytes: Floats
    peak_high_bytes: Floats
    verdict: Ints32
    """Positions in `VERDICTS`."""
    value: Floats

    @property
    def columns(self) -> tuple[Array, ...]:
        """All columns."""
        return tuple(getattr(self, each.name) for each in fields(self)[1:])

    @classmethod
    def none(cls, overrides: Callable[[int], Mapping[str, Any]]) -> "Evaluated":
        """Return no configurations."""
        of = {"row": np.int64, "verdict": np.int32}
        names = [each.name for each in fields(cls)[1:]]
        columns: dict[str, Any] = {name: np.empty(0, of.get(name, np.float64)) for name in names}
        return cls(overrides, **columns)

    @classmethod
    def joined(cls, parts: Sequence["Evaluated"]) -> "Evaluated":
        """Return the configurations of at least one part, by their rows."""
        columns = zip(*(each.columns for each in parts), strict=True)
        found = cls(parts[0].overrides, *map(np.concatenate, columns))
        return found.take(np.argsort(found.row))

    def take(self, index: Ints | Flags) -> "Evaluated":
        """Return some of them."""
        return Evaluated(self.overrides, *(column[index] for column in self.columns))

    def __len__(self) -> int:
        """Return their number."""
        return len(self.row)

    def __iter__(self) -> Iterator[Configuration]:
        """Make one after another."""
        row, *numbers, verdict, value = (column.tolist() for column in self.columns)
        verdicts = (VERDICTS[code] for code in verdict)
        return map(Configuration, map(self.overrides, row), *numbers, verdicts, value)

    @overload
    def __getitem__(self, index: int) -> Configuration: ...
    @overload
    def __getitem__(self, index: slice) -> list[Configuration]: ...
    def __getitem__(self, index: int | slice) -> Configuration | list[Configuration]:
        """Make one of them, or some."""
        chosen = np.arange(len(self))[index]
        made = list(self.take(np.atleast_1d(chosen)))
        return made if isinstance(index, slice) else made[0]


def roomy(evaluated: Evaluated, limits: Limits) -> Evaluated:
    """Return the configurations that leave enough memory by their projected peaks."""
    return evaluated.take(evaluated.headroom_bytes >= limits.headroom_gib * GIB)


def fitting(evaluated: Evaluated) -> Evaluated:
    """Return the configurations that fit with the band of their peaks."""
    return evaluated.take(evaluated.verdict == VERDICTS.index(FITS))


def ranked(evaluated: Evaluated, limits: Limits) -> Evaluated:
    """Return the configurations within the limits, the best first."""
    chosen = roomy(evaluated, limits)
    chosen = chosen if limits.allow_risk else fitting(chosen)
    # Runs that never end come into no ranking, unless none ends: then the first says why.
    ends = np.isfinite(chosen.value)
    chosen = chosen.take(ends) if ends.any() else chosen
    # Equally good ones are sorted by memory, then by the order in which they were tried.
    return chosen.take(np.lexsort((chosen.peak_bytes, chosen.value)))


def front(best_first: Iterable[Configuration]) -> list[Configuration]:
    """Return configurations that no better one beats in memory."""
    chosen, least_bytes = [], float("inf")
    for configuration in best_first:
        if configuration.peak_bytes < least_bytes:
            least_bytes = configuration.peak_bytes
            chosen.append(configuration)
    return chosen


class Standing:
    """The best of what was found so far."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._best = np.empty(0)
        """Values of the best that fit, rising."""
        # A value that is better than any, for which no memory is too little.
        self._values, self._peaks = np.array([-np.inf]), np.array([np.inf])
        """Of the front, its values rising."""
        self.is_empty = True
        """Whether nothing is within the limits."""
        self.least_high_bytes = np.inf
        """Where the lowest band of a peak ends."""

    def add(self, evaluated: Evaluated) -> None:
        """Take more configurations into account."""
        self.least_high_bytes = min(self.least_high_bytes, *evaluated.peak_high_bytes.tolist())
        chosen = ranked(evaluated, self._goal.limits)
        self.is_empty = self.is_empty and not len(chosen)
        chosen = chosen.take(np.isfinite(chosen.value))
        values = np.append(self._values, chosen.value)
        peaks = np.append(self._peaks, chosen.peak_bytes)
        order = np.lexsort((peaks, values))
        least = np.minimum.accumulate(peaks[order])
        order = order[np.append(True, least[1:] < least[:-1])]
        self._values, self._peaks = values[order], peaks[order]
        # Whoever ranks what is at risk may look for the first that is not.
        best = np.sort(np.append(self._best, fitting(chosen).value))
        self._best = best[: self._goal.top]

    def may_matter(self, value: Floats, peak_bytes: Floats) -> Flags:
        """Return which of n bounds leave room to be among the best, or on the front, bool[n].

        A configuration is beaten where one that was found is better than its bound and needs no
        more memory than it does at the least.
        """
        return np.asarray((value <= self.last) | (peak_bytes < self.least_bytes(value)))

    @property
    def last(self) -> float:
        """The value of the last of the best, infinite while there are too few."""
        return float(self._best[-1]) if len(self._best) == self._goal.top else np.inf

    def least_bytes(self, value: Floats) -> Floats:
        """Return the least memory of all that is better than each of n values, float64[n]."""
        # The front falls in memory: of all that are better, the last one needs least.
        last = np.searchsorted(self._values, value, side="left") - 1
        least: Floats = self._peaks[np.maximum(last, 0)]
        return least


Noise = Callable[[Collection[str]], float]
"""Returns by how much the ratio of two steps may be off where these fields differ."""


def pair_noise(fields: Collection[str]) -> float:
    """Return by how much a step may be longer than another one and be as fast in truth.

    It is the upper side of the 68 % band of pairs of runs that differ in these dotted fields.
    """
    return (ratio_band(settings_of(fields)).high_68 or 1.0) - 1.0


def noise_groups(times_s: Floats, settings: Sequence[Mapping[str, Any]], noise: Noise) -> Ints:
    """Return the number of each configuration's group, from 1; step times rise.

    The fastest configuration leads the first group. A configuration is in it where its step is
    longer by no more than the noise of the fields in which it differs from the leader. Of what is
    left the fastest leads the next group. Groups may therefore overlap in time: many changed
    settings are noisier than one. ``noise`` is called once for each set of fields.
    """
    group = np.zeros(len(times_s), np.int64)
    if not len(times_s):
        return group
    fields = list(settings[0])
    codes = np.column_stack([_codes([each[field] for each in settings]) for field in fields])
    weight = 1 << np.arange(len(fields))
    known: dict[int, float] = {}
    rest, number = np.arange(len(times_s)), 0
    while len(rest):
        number += 1
        leader = rest[0]
        distinct, of_row = np.unique((codes[rest] != codes[leader]) @ weight, return_inverse=True)
        for bits in distinct.tolist():
            if bits not in known:
                known[bits] = noise([name for k, name in enumerate(fields) if bits >> k & 1])
        most = times_s[leader] * (1.0 + np.array([known[bits] for bits in distinct.tolist()]))
        within = times_s[rest] <= most[of_row]
        # The leader differs in nothing.
        within[0] = True
        group[rest[within]] = number
        rest = rest[~within]
    return group


def _codes(values: Sequence[Any]) -> Ints:
    """Return equal numbers for equal values."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(repr(value), len(known)) for value in values], np.int64)
