"""Spaces of deployments under loads: axes over a serving file, and the rows of their points.

The columns of `serving/rates.py` have every point; loads with a rate are also simulated, one by
one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import PrivateAttr

from projector.arrays import Floats, Ints
from projector.config.space import OtherSpace
from projector.errors import ConfigError, ProjectorError
from projector.projection.results import BOOL, FLOAT, INT, OK, STATUS, TEXT, Coded, Column
from projector.runs.cost import cost_usd, usd_per_million_tokens
from projector.serving import api
from projector.serving.api import LOAD, SCHEDULER, ServingCase
from projector.serving.capacity import CapacityResult
from projector.serving.deployment import DEGREES, Deployment
from projector.serving.load import PROMISES, Scheduler, Traffic
from projector.serving.projection import DOES_NOT_FIT, FITS
from projector.serving.rates import LoadGrid, Rates, load_columns, load_rates, settled
from projector.serving.simulation import PERCENTILES, LoadResult, Replica, replica_of
from projector.serving.step import LIMITS
from projector.sweeps.lookups import MOST_VALUES
from projector.sweeps.points import SLO, PointBatch, PointReader
from projector.units import GIB, HOUR, MILLISECOND

T = TypeVar("T")

SPLIT, BOUNDS = ("gpus", *DEGREES), ("bound_prefill", "bound_decode")


class ServingDocument(Deployment):
    """What a serving file says: a deployment, its requests, and how they are scheduled."""

    load: Traffic = Traffic()
    scheduler: Scheduler = Scheduler()

    own_notes: ClassVar[tuple[str, ...]] = ()
    _given: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def read(cls, source: Any, overrides: Mapping[str, Any] | None = None) -> "ServingDocument":
        """Read a serving file or mapping."""
        given = api.serving_data(source, overrides)
        case = api.read_case(given)
        data = api.deployment_data(case.deployment)
        document = cls.parse({**data, LOAD: case.traffic, SCHEDULER: case.scheduler})
        document._given = given  # noqa: SLF001  # of our own class
        return document

    def data(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the file states, with overrides."""
        return api.serving_data(self._given, overrides)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of the model."""
        return self.model.notes


class ServingSpace(OtherSpace):
    """A space whose base is a `ServingDocument`."""

    derived_from: ClassVar = {"gpus": ("tp", "pp", "attention_dp")}

    def __init__(self, *read: Any) -> None:
        """Put together what `load_space` has read; an open split is known to no expression."""
        super().__init__(*read)
        for each in (*self.derived.values(), *self.constraints):
            if not self._states_split and {"tp", "gpus"}.intersection(self.reads(each)):
                msg = f"{each.text!r} reads the split, and tp is left open; state it, or its axis"
                raise ConfigError(msg, key=each.key, value=each.text, allowed="a stated tp")

    @staticmethod
    def read_base(given: Any) -> ServingDocument:
        """Read a serving file, or a mapping with its layout."""
        return ServingDocument.read(given)

    def variant(self, overrides: Mapping[str, Any]) -> ServingDocument:
        """Return the base with dotted fields replaced."""
        return ServingDocument.read(self.base.data(overrides))

    @staticmethod
    def derived_number(name: str, given: Mapping[str, Any]) -> Any:
        """Return the devices of a replica: ``name`` is nothing else."""
        del name
        return given["tp"] * given["pp"] * given["attention_dp"]

    def to_dict(self) -> dict[str, Any]:
        """Return the whole content as plain values; what is not stated may be chosen."""
        stated = self.base.model_dump(mode="json", exclude_unset=True)
        return {**super().to_dict(), "base": stated}

    def points(self) -> "ServingPoints":
        """Return what projects points."""
        return ServingPoints(self)

    def states(self, *names: str) -> bool:
        """Whether the load of some point has one of these fields."""
        traffic = self.base.load
        return LOAD in self.fields or any(
            getattr(traffic, name) is not None or f"{LOAD}.{name}" in self.fields for name in names
        )

    @cached_property
    def most_points(self) -> int | None:  # type: ignore[override]  # it follows from the fields
        """Points of a chunk, where each takes long: simulated ones, and those with open batches."""
        if self.states("rate_per_s"):
            return 128
        batches = self.base.load.batch is not None or f"{LOAD}.batch" in self.fields
        return None if self._states_split and batches else 1024

    @property
    def _states_split(self) -> bool:
        return "tp" in self.fields or "tp" in self.base.model_fields_set

    @property
    def results(self) -> dict[str, str]:
        """Every column of results with its kind."""
        of_rate = {**dict.fromkeys(OF_RATE, FLOAT), "replicas": INT}
        return {
            **dict.fromkeys(("ttft_s", "tpot_s", "prompts_s"), FLOAT),
            **dict.fromkeys(("tokens_per_s_per_user", "tokens_per_s_per_gpu"), FLOAT),
            **({"usd_per_million_tokens": FLOAT} if self.states("usd_per_gpu_hour") else {}),
            **dict.fromkeys((*SPLIT, f"{LOAD}.batch", "max_batch"), INT),
            **dict.fromkeys(("peak_gib", "usable_gib"), FLOAT),
            **dict.fromkeys(BOUNDS, TEXT),
            **(of_rate if self.states("rate_per_s") else {}),
            "fits": BOOL,
            "verdict": TEXT,
            **({SLO: BOOL} if self.states("rate_per_s", *PROMISES) else {}),
            STATUS: TEXT,
        }


PERCENTILE_COLUMNS = {
    f"{name}_p{percentile}_s": (name, percentile)
    for name in ("ttft", "tpot", "e2e")
    for percentile in PERCENTILES
}

OF_RATE = (
    *PERCENTILE_COLUMNS, "served_tokens_per_s_per_gpu", "utilisation", "replica_rate_per_s",
)  # fmt: skip
"""Columns of loads that are simulated."""


class ServingPoints:
    """Projects points of a space of deployments under loads."""

    def __init__(self, space: ServingSpace) -> None:
        """Begin with nothing known."""
        self._base: ServingDocument = space.base
        self._kinds = space.results
        self._known: dict[tuple[Any, ...], Any] = {}
        self._replicas: dict[tuple[Any, ...], tuple[Deployment, Replica]] = {}
        readers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            LOAD: lambda overrides: api.read_traffic(self._base.data(overrides)),
            SCHEDULER: lambda overrides: api.read_scheduler(self._base.data(overrides)),
            "": self._deployments,
        }
        of_section: dict[str, list[str]] = {name: [] for name in readers}
        for field in space.fields:
            section = _section(field)
            of_section[section if section in readers else ""].append(field)
        sections = [(of_section[name], read) for name, read in readers.items()]
        self.reader = PointReader(space, sections)

    def _deployments(self, overrides: Mapping[str, Any]) -> list[Deployment]:
        """Return a deployment with each split that is open; all share equal models and clusters."""
        found = api.read_deployment(self._base.data(overrides), {})
        shared = {}
        if len(self._known) > MOST_VALUES:
            self._known.clear()
        for name, more in (("model", 0), ("cluster", found.cluster.nodes)):
            own = ((key, repr(each)) for key, each in overrides.items() if _section(key) == name)
            shared[name] = self._known.setdefault((name, more, *own), getattr(found, name))
        return api.splits_of(found.model_copy(update=shared))

    def evaluated(
        self, batch: PointBatch, refuse: Callable[[ProjectorError, int], None], _group: Ints | None
    ) -> Iterator[tuple[Ints, "ServingRows"]]:
        """Yield rows of a batch with their results; what cannot be projected is refused."""
        waiting = [np.arange(len(batch.rows))]
        while waiting:
            rows = waiting.pop(0)
            try:
                found, errors = self._projected(batch.numbers[:, rows])
            except ProjectorError as error:
                if len(rows) == 1:
                    refuse(error, 1)
                else:
                    waiting[:0] = np.array_split(rows, 2)
                continue
            for each in errors.values():
                refuse(each, 1)
            kept = np.delete(np.arange(len(rows)), [*errors])
            if len(kept):
                yield rows[kept], found.take(kept) if errors else found

    def _projected(self, numbers: Ints) -> tuple["ServingRows", dict[int, ProjectorError]]:
        """Return the rows of points, and the errors of those that cannot be simulated."""
        (traffics, load), (schedulers, scheduler), (options, option) = (
            _used(lookup.values, row)
            for lookup, row in zip(self.reader.sections, numbers, strict=True)
        )
        count = np.array([len(each) for each in options])
        first = np.cumsum(count) - count
        stated = [{"batch": each.batch or 0, **load_columns(each)} for each in traffics]
        columns = {name: np.array([each[name] for each in stated])[load] for name in stated[0]}
        every = [each for some in options for each in some]
        grid = settled(LoadGrid.of(every, deployment=first[option], **columns), count[option])
        chosen, deployment = _used(every, grid.deployment)
        grid = replace(grid, deployments=tuple(chosen), deployment=deployment)
        rates = load_rates(grid)
        found = _columns(grid, rates, traffics, load)
        errors: dict[int, ProjectorError] = {}
        if "replicas" in self._kinds:
            served: list[dict[str, Any]] = []
            for row, of_load in enumerate(load.tolist()):
                traffic = traffics[of_load].model_copy(update={"batch": int(grid.batch[row])})
                case = ServingCase(
                    chosen[deployment[row]], traffic, scheduler=schedulers[scheduler[row]]
                )
                served.append(dict.fromkeys(OF_RATE, np.nan) | {"replicas": 0, SLO: False})
                try:
                    if traffic.rate_per_s is None:
                        served[-1] |= {"replicas": 1, SLO: found[SLO][row]}
                    elif rates.max_batch[row]:
                        served[-1] |= _served(*api.serve_case(case, self._replica))
                except ProjectorError as error:
                    errors[row] = error
            found |= {name: np.array([each[name] for each in served]) for name in served[0]}
        return ServingRows({name: found[name] for name in self._kinds}), errors

    def _replica(self, deployment: Deployment, scheduler: Scheduler, longest: int) -> Replica:
        """Return what `replica_of` does; it times thousands of steps, so that a few are kept."""
        key = id(deployment), repr(scheduler), longest
        if key not in self._replicas:
            if len(self._replicas) >= KEPT_REPLICAS:
                self._replicas.clear()
            # Deployments are kept: their identity must not pass to others.
            self._replicas[key] = deployment, replica_of(deployment, scheduler, longest)
        return self._replicas[key][1]


KEPT_REPLICAS = 32


def _section(field: str) -> str:
    return field.partition(".")[0]


def _used(values: Sequence[T], numbers: Ints) -> tuple[list[T], Ints]:
    """Return those of some values that rows have, and which of them each has."""
    used, index = np.unique(numbers, return_inverse=True)
    return [values[number] for number in used.tolist()], index


def _columns(
    grid: LoadGrid, rates: Rates, traffics: Sequence[Traffic], load: Ints
) -> dict[str, Any]:
    """Return the columns of loads that nobody simulates."""
    splits, own = grid.deployments, grid.deployment
    columns: dict[str, Column] = {each.name: getattr(rates, each.name) for each in fields(rates)}
    columns |= {name: np.array([getattr(each, name) for each in splits])[own] for name in SPLIT}
    columns |= {"peak_gib": rates.peak_bytes / GIB, "usable_gib": rates.usable_bytes / GIB}
    columns[f"{LOAD}.batch"] = grid.batch
    columns |= {name: Coded(getattr(rates, name), [*LIMITS]) for name in BOUNDS}

    def of_loads(name: str, missing: float) -> Floats:
        values = [getattr(each, name) for each in traffics]
        return np.array([missing if each is None else each for each in values])[load]

    price, tokens = of_loads("usd_per_gpu_hour", np.nan), HOUR * rates.tokens_per_s_per_gpu
    columns["usd_per_million_tokens"] = usd_per_million_tokens(
        cost_usd(np.ones(len(grid)), price), tokens
    )
    ttft_s, tpot_s = (MILLISECOND * of_loads(name, np.inf) for name in PROMISES)
    kept = (rates.ttft_s <= ttft_s) & (1.0 / rates.tokens_per_s_per_user <= tpot_s)
    columns[SLO] = rates.fits & kept
    code = (~rates.fits).astype(np.int64)
    columns["verdict"] = Coded(code, [FITS, DOES_NOT_FIT])
    columns[STATUS] = Coded(code, [OK, DOES_NOT_FIT])
    return columns


def _served(result: LoadResult, found: CapacityResult | None) -> dict[str, Any]:
    """Return the columns of a load that was simulated."""
    columns: dict[str, Any] = {
        name: result.percentile_s(*which) for name, which in PERCENTILE_COLUMNS.items()
    }
    columns |= {"served_tokens_per_s_per_gpu": result.tokens_per_s_per_gpu}
    columns |= {"utilisation": result.utilisation, SLO: not result.saturated}
    if found is None:
        return columns | {"replicas": 1}
    replicas = found.replicas or 0
    return columns | {
        "replicas": replicas, "replica_rate_per_s": found.replica_rate_per_s, SLO: replicas > 0,
    }  # fmt: skip


class ServingRows:
    """Results of deployments under loads, and what decides which of them is the best."""

    def __init__(self, columns: dict[str, Column]) -> None:
        self._columns = columns

    def take(self, rows: Ints) -> "ServingRows":
        """Return some of the rows."""
        return ServingRows(
            {
                name: Coded(each.code[rows], each.values) if isinstance(each, Coded) else each[rows]
                for name, each in self._columns.items()
            }
        )

    def columns(self) -> Mapping[str, Column]:
        """Return every column of results."""
        return self._columns

    def merits(self) -> tuple[Any, Any, Any, Any]:
        """Return the columns of `Merits` behind the first: what keeps its promises is safe."""
        own = self._columns
        fits = own["fits"]
        return fits, own.get(SLO, fits), own["tokens_per_s_per_gpu"], own["peak_gib"]
