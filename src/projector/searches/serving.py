"""Searching for what serves a load best within targets: deployments as columns, all at once.

Splits, batches, limits of a step's tokens, speculation, types and devices are tried in full; of
prefill and decode apart, the best few sides of each number of devices are paired.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.bands import LATENCY, serving_band
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.model import ModelConfig
from projector.config.prices import load_prices
from projector.envelope import told
from projector.errors import ConfigError, one_of
from projector.frames import Frame
from projector.lower.hardware import native_type
from projector.projection.bands import ratio_band
from projector.runs.cost import cost_usd, usd_per_million_tokens
from projector.searches.limits import Watch, check_seconds, check_top
from projector.searches.ranking import noise_groups, pair_noise
from projector.serving.api import LOAD, ServingCase, on_devices, project_case, read_case
from projector.serving.capacity import Targets
from projector.serving.deployment import DEGREES, Deployment, DisaggregatedConfig
from projector.serving.load import PROMISES, Scheduler, Traffic
from projector.serving.projection import ServingProjection
from projector.serving.rates import (
    LARGEST_BATCH,
    LoadGrid,
    Rates,
    largest_batches,
    legal_deployments,
    load_columns,
    load_rates,
)
from projector.units import HOUR, MILLISECOND, to_ms

OBJECTIVES = THROUGHPUT, COST, GPUS = "throughput", "cost", "gpus"
"""Generated tokens of a device and second; rent of a million of them; devices for a rate."""

STEP_TOKENS = (2048, 4096, 8192, 16384)
"""New tokens of the largest step that are tried: longer prompts go through in chunks of so many."""

BATCHES = np.unique((np.geomspace(1.0, LARGEST_BATCH, 65) + 0.5).astype(np.int64))
"""Batches that are tried: four between two powers of two."""

MOST_REPLICAS = 8
"""Replicas of either side in a ratio of prefill to decode."""

MOST_TIMES = 8
"""Devices are doubled up to this many times those asked for, to find what would do."""

MOST_GPUS = 1 << 12
"""Devices of the largest search."""

LISTED = "listed"
"""Instead of a price: the dated ones of ``hardware/prices.yaml``."""


@dataclass(frozen=True, slots=True)
class ServingChoice:
    """One way to serve the load. Times are seconds."""

    deployment: Deployment
    traffic: Traffic
    """The requests, with the batch and the chunks of their prompts."""
    count: int
    """Devices that were asked for, or that the rate needs."""
    units: int
    """Copies of a replica, or of replicas that prefill and decode together."""
    prefill_replicas: int
    """Of a unit; 0 where one replica does both."""
    decode_replicas: int
    ttft_s: float
    tpot_s: float
    """Between two tokens of a user, the prompts of others included."""
    tokens_per_s_per_gpu: float
    """Idle devices included."""
    value: float
    """Of the objective, less is better; seconds of a device for a token where it is throughput."""

    @property
    def unit_gpus(self) -> int:
        """Devices of a unit."""
        beside = self.prefill_replicas * self.deployment.prefill_side.gpus
        return self.decode_replicas * self.deployment.gpus + beside

    @property
    def gpus(self) -> int:
        """Devices that are used."""
        return self.units * self.unit_gpus

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens of all devices."""
        return self.tokens_per_s_per_gpu * self.count

    @property
    def case(self) -> ServingCase:
        """What `projector serve` projects; requests of sides that lie apart are not simulated."""
        traffic, batch = self.traffic, -(-(self.traffic.batch or 1) // self.deployment.attention_dp)
        if self.prefill_replicas or traffic.rate_per_s is None:
            traffic = traffic.model_copy(update={"rate_per_s": None, **dict.fromkeys(PROMISES)})
        limit = self.deployment.max_step_tokens
        scheduler = Scheduler(max_num_seqs=batch, max_num_batched_tokens=limit)
        return ServingCase(self.deployment, traffic, scheduler=scheduler)

    @property
    def overrides(self) -> dict[str, Any]:
        """Fields that were chosen, as `projector serve` takes them."""
        chosen = self.deployment
        found: dict[str, Any] = {name: getattr(chosen, name) for name in DEGREES}
        found = {name: value for name, value in found.items() if name == "tp" or value > 1}
        found |= {"dtype": chosen.dtype, "max_step_tokens": chosen.max_step_tokens}
        if chosen.speculative is not None:
            found["speculative.tokens"] = chosen.speculative.tokens
        if chosen.disaggregated is not None:
            side = chosen.disaggregated.prefill.items()
            found |= {f"disaggregated.prefill.{name}": value for name, value in side}
        if self.traffic.chunk_tokens:
            found["load.chunk_tokens"] = self.traffic.chunk_tokens
        return {**found, "load.batch": self.traffic.batch}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "device": self.deployment.cluster.device.name,
            **told(self, "count units gpus unit_gpus prefill_replicas decode_replicas"),
            **told(self, "ttft_ms tpot_ms tokens_per_s tokens_per_s_per_gpu value overrides"),
        }


@dataclass(frozen=True, slots=True)
class ServingPoints:
    """What was evaluated on one device, as columns; all have prefill apart, or none has."""

    grid: LoadGrid
    rates: Rates
    plan: Ints
    """int64[4, points]: devices asked for, units, replicas of a unit that prefill, and decode."""
    per_gpu: Floats
    """Generated tokens a second and device, idle ones included."""
    value: Floats
    possible: Flags
    """What fits in memory and on the devices, and serves the rate."""
    drawn: Flags
    """What of it keeps the target of the first token."""
    within: Flags
    """What of that keeps all targets."""

    @property
    def device(self) -> Device:
        """Where it runs."""
        return self.grid.deployments[0].cluster.device

    @property
    def best(self) -> Ints:
        """The best batch and limit within the targets of each split, type and draft, ranked."""
        rows = np.flatnonzero(self.within)
        order = rows[np.lexsort((-self.per_gpu[rows], self.value[rows]))]
        number: dict[Any, int] = {}
        for each in self.grid.deployments:
            number.setdefault(_kind(each), len(number))
        kinds = np.array([number[_kind(each)] for each in self.grid.deployments], np.int64)
        return order[np.sort(np.unique(kinds[self.grid.deployment[order]], return_index=True)[1])]

    def choice(self, row: int, traffic: Traffic) -> ServingChoice:
        """Return one point."""
        grid = self.grid
        chosen = {"batch": int(grid.batch[row]), "chunk_tokens": int(grid.chunk[row]) or None}
        count, units, prefill, decode = self.plan[:, row].tolist()
        return ServingChoice(
            deployment=grid.deployments[int(grid.deployment[row])],
            traffic=traffic.model_copy(update=chosen),
            count=count,
            units=units,
            prefill_replicas=prefill,
            decode_replicas=decode,
            ttft_s=float(self.rates.ttft_s[row]),
            tpot_s=1.0 / float(self.rates.tokens_per_s_per_user[row]),
            tokens_per_s_per_gpu=float(self.per_gpu[row]),
            value=float(self.value[row]),
        )


def _kind(deployment: Deployment) -> tuple[Any, ...]:
    drafts = deployment.speculative and deployment.speculative.tokens
    return (*(getattr(deployment, name) for name in DEGREES), deployment.dtype, drafts)


@dataclass(frozen=True, slots=True)
class ServingGoal:
    """What is asked for."""

    traffic: Traffic
    targets: Targets
    objective: str
    counts: tuple[int, ...]
    """Devices, the fewest first."""
    prices: Mapping[str, float]
    """USD an hour of each device, NaN where none is known."""

    def limit_s(self, name: str) -> float:
        """Return a target in seconds; infinite without one."""
        return self.targets.limits_ms.get(name, np.inf) * MILLISECOND

    def usd_per_million_tokens(self, device: Device, per_gpu: Floats) -> Floats:
        """Return the rent of a device over what it generates; NaN without a price."""
        price = np.array([self.prices[device.name]])
        return usd_per_million_tokens(cost_usd(np.ones(1), price), HOUR * per_gpu)

    def evaluated(self, bases: Sequence[Deployment], trial: "_Trial") -> list[ServingPoints]:
        """Evaluate what one device offers, a base for each type: alone, and with prefill apart."""
        parts = trial.of(each for base in bases for each in _offered(base, self.counts[-1]))
        if parts and bases[0].disaggregated is None and (self.traffic.output or 1) > 1:
            parts += trial.of(each for base in bases for each in self._apart(base.dtype, parts))
        return [self.placed(*part) for part in parts]

    def _apart(self, dtype: str, parts: Sequence[tuple[LoadGrid, Rates]]) -> Iterable[Deployment]:
        """Yield pairs of a side that prefills and one that decodes.

        Of each number of devices the fastest, the one with most throughput, and the one with the
        best product of both are paired, whatever the targets and however many devices there are.
        """
        every = [each for grid, _ in parts for each in grid.deployments]
        first = np.cumsum([0, *(len(grid.deployments) for grid, _ in parts)])
        points = [grid.deployment + begin for (grid, _), begin in zip(parts, first, strict=False)]
        deployment, batch = np.concatenate(points), _joined(grid.batch for grid, _ in parts)
        fits, ttft_s, tpot_s, prompts_s = (
            _joined(getattr(rates, name) for _, rates in parts)
            for name in ("fits", "ttft_s", "tpot_s", "prompts_s")
        )
        of_type = np.array([each.dtype == dtype for each in every])
        right = np.flatnonzero(fits & of_type[deployment])
        owner = deployment[right]
        gpus = np.array([each.gpus for each in every])[owner]
        prompt_s = prompts_s * (self.traffic.output or 1) / batch
        sides = []
        for speed, work in ((ttft_s, prompt_s), (tpot_s, tpot_s / batch)):
            found: dict[int, None] = {}
            for key in (speed, work, speed * work):
                order = np.lexsort((key[right], gpus))
                best = np.unique(gpus[order], return_index=True)[1]
                found |= dict.fromkeys(owner[order[best]].tolist())
            sides.append([every[row] for row in found])
        for one in sides[0]:
            fields = {name: getattr(one, name) for name in (*DEGREES, "max_step_tokens")}
            prefill = DisaggregatedConfig(prefill=fields)
            for other in sides[1]:
                if one.gpus + other.gpus <= self.counts[-1]:
                    yield other.model_copy(update={"disaggregated": prefill})

    def placed(self, grid: LoadGrid, rates: Rates) -> ServingPoints:
        """Place replicas on the devices: as many units as fit, in the best ratio and number."""
        every, size = grid.deployments, len(grid)
        gpus = np.array([each.gpus for each in every])[grid.deployment]
        rate = grid.batch * rates.tokens_per_s_per_user
        prefill, decode, beside = np.zeros((1, 1)), np.ones((1, 1)), np.zeros(size)
        kept = decode
        if every[0].disaggregated is not None:
            prefill, decode = np.indices((MOST_REPLICAS, MOST_REPLICAS)).reshape(2, -1, 1) + 1.0
            beside = np.array([each.prefill_side.gpus for each in every])[grid.deployment]
            # Prefill replicas that keep up with one that decodes, parts of one included.
            share = (rate / rates.tokens_per_s_per_gpu - gpus) / beside
            kept = np.minimum(decode, prefill / share)
        unit, tokens = decode * gpus + prefill * beside, kept * rate
        count = np.array(self.counts, np.float64)[:, None, None]
        units = count // unit
        needed = np.ceil((self.traffic.rate_per_s or 0.0) * (self.traffic.output or 1) / tokens)
        enough = (units > 0) & (needed <= units)
        with np.errstate(divide="ignore"):
            per_gpu = units * tokens / count
            value = 1.0 / per_gpu
            if self.objective == COST:
                value = self.usd_per_million_tokens(every[0].cluster.device, per_gpu)
        if self.objective == GPUS:
            units, per_gpu, value = needed, tokens / unit, needed * unit
            count = value
        key = np.where(enough, value, np.inf).reshape(-1, size)
        chosen = np.argmax(key <= key.min(axis=0) * (1.0 + 1e-9), axis=0), np.arange(size)
        shape = (len(self.counts), *unit.shape)
        *plan, per_gpu, value, enough = (
            np.broadcast_to(each, shape).reshape(-1, size)[chosen]
            for each in (count, units, prefill, decode, per_gpu, value, enough)
        )
        possible = rates.fits & enough
        drawn = possible & (rates.ttft_s <= self.limit_s("ttft"))
        within = drawn & (1.0 / rates.tokens_per_s_per_user <= self.limit_s("tpot"))
        numbers = np.array(plan, np.int64)
        return ServingPoints(grid, rates, numbers, per_gpu, value, possible, drawn, within)

    def first(self, points: Iterable[ServingPoints]) -> ServingChoice | None:
        """Return the best of some points; None where none is within the targets."""
        best = [each.choice(row, self.traffic) for each in points for row in each.best[:1].tolist()]
        return min(best, key=lambda each: each.value, default=None)


KINDS = 32
"""Splits, types and drafts that are evaluated at once; between them the time is looked at."""


@dataclass
class _Trial:
    """Evaluates deployments until the time is over, the first few whatever it says."""

    traffic: Traffic
    watch: Watch
    progress: Callable[[int, int, int], None] | None = None
    done: int = 0
    total: int = 0
    points: int = 0

    def of(self, deployments: Iterable[Deployment]) -> list[tuple[LoadGrid, Rates]]:
        """Return deployments with their points, those of one kind together."""
        kinds: dict[tuple[Any, ...], list[Deployment]] = {}
        for each in deployments:
            kinds.setdefault(_kind(each), []).append(each)
        every, found = [*kinds.values()], []
        self.total += sum(map(len, every))
        for begin in range(0, len(every), KINDS):
            if self.done and self.watch.is_over:
                break
            some = [each for kind in every[begin : begin + KINDS] for each in kind]
            found.append(_evaluated(some, self.traffic))
            self.done, self.points = self.done + len(some), self.points + len(found[-1][0])
            if self.progress is not None:
                self.progress(self.done, self.total, self.points)
        return found


def _joined(columns: Iterable[Any]) -> Any:
    return np.concatenate([*columns])


def _offered(base: Deployment, most: int) -> Iterable[Deployment]:
    """Yield every split of a base with every limit of tokens and number of drafted tokens."""
    clusters: dict[int, ClusterConfig] = {}
    stated = "max_step_tokens" in base.model_fields_set
    changes: list[dict[str, Any]] = [
        {"max_step_tokens": limit, "speculative": None}
        for limit in ((base.max_step_tokens,) if stated else STEP_TOKENS)
    ]
    if (drafting := base.speculative) is not None:
        powers = {1 << power for power in range(drafting.tokens.bit_length())}
        drafts = [
            drafting.model_copy(update={"tokens": number})
            for number in sorted(powers | {drafting.tokens})
        ]
        changes += [{**each, "speculative": draft} for each in changes for draft in drafts]
    for split in legal_deployments(on_devices(base, most), most):
        cluster = base.cluster
        if "nodes" not in cluster.model_fields_set:
            nodes = -(-split.gpus // cluster.gpus_per_node)
            cluster = clusters.setdefault(nodes, cluster.model_copy(update={"nodes": nodes}))
        for each in changes:
            yield split.model_copy(update={**each, "cluster": cluster})


def _evaluated(deployments: Sequence[Deployment], traffic: Traffic) -> tuple[LoadGrid, Rates]:
    """Project deployments with every batch up to the largest that fits."""
    owners, load = np.arange(len(deployments)), load_columns(traffic)
    chunks = np.full(len(deployments), load.pop("chunk"))
    if traffic.chunk_tokens is None:
        limits = np.array([each.prefill_side.max_step_tokens for each in deployments])
        chunks = np.where(traffic.context > limits, limits, 0)
    if traffic.batch is None:
        largest = largest_batches(LoadGrid.of(deployments, deployment=owners, **load))
        counts = np.maximum(1, np.searchsorted(BATCHES, largest, "right"))
        batches = np.concatenate([BATCHES[:count] for count in counts])
        owners = np.repeat(owners, counts)
    else:
        batches = np.full(len(owners), traffic.batch)
    columns = {"deployment": owners, "batch": batches, "chunk": chunks[owners]}
    grid = LoadGrid.of(deployments, **columns, **load)
    return grid, load_rates(grid)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ServingSearch(Frame):
    """What serves a load within targets, the best by the objective first."""

    goal: ServingGoal
    model: str
    points: tuple[ServingPoints, ...]
    configurations: tuple[ServingChoice, ...]
    """The best of each split, type and kind, ranked."""
    best: ServingProjection | None
    """The first, projected in full; with a rate its requests are simulated."""
    relaxed: tuple[Mapping[str, float], ...]
    """Where nothing is within the targets: what would do, each by itself."""
    least: ServingChoice | None
    """The same: what needs the fewest devices, of those tried."""
    top: int
    seconds: float
    left_out: int
    """Deployments that were not tried, as the time was over."""

    @property
    def evaluated(self) -> int:
        """Points that were projected."""
        return sum(len(each.grid) for each in self.points)

    @property
    def fitting(self) -> int:
        """Points that fit in memory."""
        return sum(int(each.rates.fits.sum()) for each in self.points)

    @property
    def within(self) -> int:
        """Points that keep the targets, on the devices."""
        return sum(int(each.within.sum()) for each in self.points)

    @property
    def uncertainty(self) -> dict[str, Any]:
        """Band of the first; of the first device where nothing does."""
        if self.best is None:
            return serving_band(self.points[0].device, LATENCY).to_dict()
        return self.best.uncertainty

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Group of each configuration, 1 the best: those of one cannot be told apart."""
        every = self.configurations
        settings = [
            {f"parallelism.{name}": getattr(each.deployment, name) for name in DEGREES}
            | {"machine": (each.deployment.cluster.device.name, each.deployment.dtype)}
            | {"more": (each.traffic.batch, each.prefill_replicas, each.decode_replicas)}
            for each in every
        ]

        def noise(names: Collection[str]) -> float:
            if "machine" in names:
                band = serving_band(every[0].deployment.cluster.device, LATENCY)
                return (ratio_band(None, band, band).high_68 or 1.0) - 1.0
            return pair_noise(SEVERAL if "more" in names else names)

        return tuple(noise_groups(np.array([e.value for e in every]), settings, noise).tolist())

    @cached_property
    def by_device(self) -> dict[str, list[ServingPoints]]:
        """The points of each device, by its name."""
        found: dict[str, list[ServingPoints]] = {}
        for each in self.points:
            found.setdefault(each.device.name, []).append(each)
        return found

    def usd_per_million_tokens(self, each: ServingChoice) -> float | None:
        """Return the rent over what is generated; None without a price."""
        device, rate = each.deployment.cluster.device, np.array([each.tokens_per_s_per_gpu])
        price = float(self.goal.usd_per_million_tokens(device, rate)[0])
        return None if np.isnan(price) else price

    @property
    def records(self) -> list[dict[str, Any]]:
        """All that is ranked, with its group."""
        return [
            {"rank": place + 1, "group": self.groups[place], **each.to_dict()}
            | {"usd_per_million_tokens": self.usd_per_million_tokens(each)}
            for place, each in enumerate(self.configurations)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector serve --search --json`` prints, without envelope."""
        return {
            **told(self, "model evaluated fitting within left_out seconds"),
            "objective": self.goal.objective,
            "targets": self.goal.targets.model_dump(),
            "load": self.goal.traffic.model_dump(mode="json"),
            "within_noise": self.groups.count(1),
            "best": self.records[: self.top],
            **told(self, "relaxed least"),
            "projection": None if self.best is None else self.best.to_dict(),
        }

    def __repr__(self) -> str:
        best = self.configurations[0].overrides if self.configurations else None
        return f"ServingSearch({self.within:,} of {self.evaluated:,} points do; the best: {best})"


SEVERAL = ("parallelism.tp", "parallelism.pp")
"""Fields whose noise stands for that of ways to serve that differ in more than the split."""


def search_serving(
    model: str | Path | Mapping[str, Any] | ModelConfig | None = None,
    device: str | Sequence[str] | None = None,
    *,
    deployment: Mapping[str, Any] | str | Path | None = None,
    gpus: int | Sequence[int] | None = None,
    dtype: str | Sequence[str] | None = None,
    objective: str = THROUGHPUT,
    usd_per_gpu_hour: float | str | None = None,
    top: int = 20,
    most_seconds: float | None = None,
    progress: Callable[[int, int, int], None] | None = None,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ServingSearch:
    """Rank the ways to serve a load within targets.

    Words are those of `project_serving`, fields of the load such as ``ttft_ms`` included; what they
    state is kept and not searched. ``device``, ``dtype`` and ``gpus`` may be several, all of which
    are tried; a type that a device has no units for is left out. ``objective`` is one of
    `OBJECTIVES`, ``usd_per_gpu_hour`` a number or ``listed``; ``top`` are told. No deployment is
    begun after ``most_seconds``; ``progress`` is called with the deployments that are done, those
    that are known, and the points of the former.

    Raises:
        ProjectorError: If no deployment of the kind can exist, or the words contradict each other.
    """
    check_top(top)
    watch = Watch(check_seconds(most_seconds))
    changes = {
        f"{LOAD}.{name}" if name in Traffic.model_fields else name: value
        for name, value in {"model": model, **settings}.items()
        if value is not None
    }
    if usd_per_gpu_hour not in (None, LISTED):
        changes[f"{LOAD}.usd_per_gpu_hour"] = usd_per_gpu_hour
    changes |= dict(overrides or {})
    cases = [
        [read_case(deployment, {**one, **changes, **other}) for other in _each("dtype", dtype)]
        for one in _each("device", device)
    ]
    first = cases[0][0]
    devices = [each[0].deployment.cluster.device.name for each in cases]
    goal = _goal(first, objective, gpus, _prices(first.traffic, devices, usd_per_gpu_hour))
    bases = [_with_units([case.deployment for case in each]) for each in cases]
    trial = _Trial(goal.traffic, watch, progress)
    found = [points for each in bases for points in goal.evaluated(each, trial)]
    left_out = trial.total - trial.done
    if not found:
        stated = [name for name in DEGREES if name in first.deployment.model_fields_set]
        kept = f" with the stated {', '.join(stated)}" if stated else ""
        msg = f"no split of up to {goal.counts[-1]} devices is legal{kept}"
        raise ConfigError(msg, key=stated[0] if stated else "gpus", allowed="another one")
    ranked = sorted(
        (each.choice(row, goal.traffic) for each in found for row in each.best.tolist()),
        key=lambda each: (each.value, -each.tokens_per_s_per_gpu),
    )
    return ServingSearch(
        goal=goal,
        model=first.deployment.model.name,
        points=tuple(found),
        configurations=tuple(ranked),
        best=project_case(ranked[0].case) if ranked else None,
        relaxed=() if ranked else _relaxed(goal, found),
        least=None if ranked or left_out else _least(goal, found, bases),
        top=top,
        seconds=watch.seconds,
        left_out=left_out,
    )


def _each(name: str, values: str | Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the overrides for each value; one without any where none is given."""
    several = [*values] if isinstance(values, list | tuple) else [values]
    return [{} if value is None else {name: value} for value in dict.fromkeys(several)]


def _goal(
    case: ServingCase, objective: str, gpus: int | Sequence[int] | None, prices: Mapping[str, float]
) -> ServingGoal:
    """Check the words against each other."""
    traffic = case.traffic
    counts: list[Any] = [case.deployment.cluster.gpus]
    if gpus is not None:
        counts = [*gpus] if isinstance(gpus, list | tuple) else [gpus]
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_GPUS:
            msg = f"gpus must be whole numbers from 1 to {MOST_GPUS}, got {count!r}"
            raise ConfigError(msg, key="gpus", value=count, allowed=f"1 to {MOST_GPUS}")
    one_of("objective", objective, OBJECTIVES)
    if objective == GPUS and traffic.rate_per_s is None:
        msg = "objective gpus counts the devices for a rate; give rate_per_s (--rate)"
        raise ConfigError(msg, key="objective", value=objective, allowed=[THROUGHPUT, COST])
    for name in prices if objective == COST else ():
        if np.isnan(prices[name]):
            msg = (
                f"objective cost needs a price of {name}; give usd_per_gpu_hour, a number or listed"
            )
            raise ConfigError(msg, key=f"{LOAD}.usd_per_gpu_hour", allowed="USD an hour")
    targets = Targets.parse({name: getattr(traffic, name) for name in (*PROMISES, "percentile")})
    return ServingGoal(traffic, targets, objective, tuple(sorted(set(counts))), prices)


def _prices(
    traffic: Traffic, devices: Sequence[str], asked: float | str | None
) -> dict[str, float]:
    """Return the rent of each device, NaN where none is known."""
    if asked != LISTED:
        stated = traffic.usd_per_gpu_hour
        return dict.fromkeys(devices, np.nan if stated is None else stated)
    listed = load_prices().rental_usd_per_gpu_hour
    return {name: listed[name].value if name in listed else np.nan for name in devices}


def _with_units(bases: list[Deployment]) -> list[Deployment]:
    """Leave out types that the device has no units for, where there are others."""
    own = [each for each in bases if native_type(each.cluster.device, each.dtype) == each.dtype]
    return own or bases[:1]


def _relaxed(goal: ServingGoal, found: Sequence[ServingPoints]) -> tuple[dict[str, float], ...]:
    """Return the targets that would do: one, with the other kept; where neither, both together."""
    asked = goal.targets.limits_ms
    every = {
        "ttft": [each.rates.ttft_s[each.possible] for each in found],
        "tpot": [1.0 / each.rates.tokens_per_s_per_user[each.possible] for each in found],
    }
    reached = {name: to_ms(np.concatenate(every[name])) for name in asked}
    over = {name: reached[name] / limit for name, limit in asked.items()}
    if not asked or not len(reached[next(iter(asked))]):
        return ()
    relaxed = []
    for name in asked:
        others = [over[other] <= 1.0 for other in asked if other != name]
        values = reached[name][np.logical_and.reduce(others)] if others else reached[name]
        relaxed += [{f"{name}_ms": float(values.min())}] if len(values) else []
    row = int(np.argmin(np.max([*over.values()], axis=0)))
    return tuple(relaxed or [{f"{name}_ms": float(reached[name][row]) for name in asked}])


def _least(
    goal: ServingGoal, found: Sequence[ServingPoints], bases: Sequence[Sequence[Deployment]]
) -> ServingChoice | None:
    """Return what needs the fewest devices: copies of what was found, where the rate is too high.

    Otherwise devices are doubled until something does.
    """
    if goal.traffic.rate_per_s is not None:
        most = replace(goal, objective=GPUS, counts=(MOST_GPUS,))
        copies = most.first([most.placed(each.grid, each.rates) for each in found])
        if copies is not None:
            return copies
    times = 1
    while (times := 2 * times) <= MOST_TIMES:
        more, points = replace(goal, counts=(goal.counts[-1] * times,)), []
        for each in bases:
            with suppress(ConfigError):
                points += more.evaluated(each, _Trial(goal.traffic, Watch()))
        if (choice := more.first(points)) is not None:
            return choice
    return None
