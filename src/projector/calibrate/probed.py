"""The fit of a probed device: small training jobs, by their operations, layers and steps at once.

Operations measured alone say what each kernel takes. Layers and steps say what autograd and the
framework add, and weigh as much as any operation. `projector.measure.probe` says what is measured.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import yaml

from projector.arrays import Floats
from projector.calibrate.fit import Field, Fit, changed, field_of, fit, on_device
from projector.config._base import merge, nested
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.envelope import told
from projector.kernels.device import MATRIX_TYPES
from projector.kernels.gemm import gemm_time_columns
from projector.lower.hardware import device_record
from projector.lower.workloads import Workloads
from projector.measure import task
from projector.measure.keys import OperationKey, keys_of
from projector.measure.probe import FITTED, SWEPT, Probe, number, read_off, seconds_of
from projector.measure.programs import layers_of
from projector.operations.cost import cost_rows
from projector.operations.table import MEMORY
from projector.projection.evaluate import evaluate
from projector.projection.pipeline_costs import cost_pipelines
from projector.units import TERA


class Sight(NamedTuple):
    """One measured time, and which number of the model it is."""

    what: str
    """``gemm``, ``attention`` or ``memory`` of a job, ``sweep``, ``layer`` or ``step``."""
    name: str
    part: str
    place: int
    """Row of the operation table, GEMM of the sweep, workload or job."""
    measured_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One measured time beside what the profile says of it."""

    what: str
    name: str
    measured_s: float
    projected_s: float

    @property
    def ratio(self) -> float:
        """Projected over measured."""
        return self.projected_s / self.measured_s


@dataclass(frozen=True, slots=True)
class FittedField:
    """One number that was fitted."""

    field: str
    start: float
    value: float
    standard_error: float | None
    """None at a bound."""


@dataclass(frozen=True, eq=False)
class Probed:
    """A device as a probe found it."""

    probe: Probe
    data: dict[str, Any]
    """The profile, as it is written."""
    device: Device
    fields: tuple[FittedField, ...]
    rows: tuple[Seen, ...]
    missing: dict[str, str]
    """What could not be measured, and why."""
    unsettled: int
    """Programs whose times never agreed."""

    def errors(self) -> dict[str, tuple[int, float, float]]:
        """Return rows, median of |ratio - 1| and geometric mean of the ratio, by what was seen."""
        found = {}
        for what in dict.fromkeys(row.what for row in self.rows):
            ratio = np.array([row.ratio for row in self.rows if row.what == what])
            found[what] = (
                len(ratio),
                float(np.median(np.abs(ratio - 1.0))),
                float(np.exp(np.mean(np.log(ratio)))),
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as ``--json`` has it."""
        return {
            "environment": self.probe.environment.model_dump(mode="json"),
            "device": self.device.name,
            **told(self.probe, "base"),
            **told(self, "fields"),
            "errors": {
                what: {"rows": rows, "median_ape": median, "geomean_ratio": mean}
                for what, (rows, median, mean) in self.errors().items()
            },
            "rows": [told(row, "what name measured_us projected_us") for row in self.rows],
            **told(self, "missing unsettled"),
            "profile": self.data,
        }

    def text(self) -> str:
        """Return the profile as the text of a device file."""
        environment = self.probe.environment
        lines = [
            f"{environment.device}, as `projector probe` found it.",
            "Every number says where it comes from; docs/probe.md has what each means on a CPU.",
        ]
        lines += [
            f"{what}: {rows} times, median error {median:.1%}, projected over measured {mean:.2f}."
            for what, (rows, median, mean) in self.errors().items()
        ]
        known = ["extends", *(name for name in Device.model_fields if name != "sources")]
        ordered = {name: self.data[name] for name in known if name in self.data}
        # Through JSON, as YAML would refer from one number to an equal one.
        plain = json.loads(json.dumps({**ordered, "sources": self.data["sources"]}))
        body = yaml.safe_dump(plain, sort_keys=False, width=100, allow_unicode=True)
        return "".join(f"# {line}\n" for line in lines) + body


def fit_probe(probe: Probe, answer: task.Answer) -> Probed:
    """Return the profile that what was measured asks for."""
    data = read_off(probe, answer)
    device = load_device(data)
    model = ProbeModel(probe, device)
    missing = {
        _name(program): outcome.message or outcome.status
        for program, outcome in zip(probe.task.programs, answer.outcomes, strict=True)
        if outcome.status != "ok"
    }
    sights = list(model.sights(answer.outcomes))
    measured_s = np.array([sight.measured_s for sight in sights])
    alone_s = model.alone_s(device, sights)
    fields = [field_of(device, path) for path in probe.settings.fields if _has(device, path)]
    which = _weighed(sights, probe.settings.left_out)
    solution = fit(
        fields,
        lambda points: list(
            model.times_s([changed(device, each) for each in points], sights, alone_s)[:, which]
        ),
        measured_s[which],
        probe.settings.evaluations,
    )
    found = tuple(_fitted(fields, solution, math.sqrt(len(which) / len(set(which)))))
    for each in found:
        data = merge(data, _entry(each))
    if probe.base is None:
        note = "as kernel_start_us: a CPU has no graphs"
        data = {**data, "kernel_start_graph_us": {**data["kernel_start_us"], "note": note}}
    fitted = load_device(data)
    (projected_s,) = model.times_s([fitted], sights, alone_s)
    rows = tuple(
        Seen(sight.what, f"{sight.name} {sight.part}", sight.measured_s, float(time_s))
        for sight, time_s in zip(sights, projected_s, strict=True)
    )
    unsettled = sum(
        not all(timing.settled for timing in outcome.times.values()) for outcome in answer.outcomes
    )
    return Probed(probe, data, fitted, found, rows, missing, unsettled)


class ProbeModel:
    """What the models say of everything that a probe measures."""

    def __init__(self, probe: Probe, device: Device) -> None:
        self._probe = probe
        evaluation = evaluate([on_device(job, device) for job in probe.jobs])
        table = evaluation.table
        keys = keys_of(table, range(len(table)))
        # Equal rows of two workloads are measured once.
        self._row_of: dict[OperationKey, int] = {}
        for row, key in enumerate(keys):
            self._row_of.setdefault(key, row)
        self._layers = layers_of(evaluation.workloads)
        self._launches, self._bytes, self._workload = table.launches, table.bytes, table.workload
        order = np.argsort(table.workload, kind="stable")
        first = np.searchsorted(table.workload, table.workload, sorter=order)
        self._rank = np.argsort(order) - first
        """Which row of its workload each row is."""
        self._first_run = np.unique(evaluation.workloads.run_workload, return_index=True)[1]
        self._swept = [
            program.key
            for program in probe.task.programs
            if isinstance(program, task.OperationProgram) and program.key.label == SWEPT
        ]

    def sights(self, outcomes: Sequence[task.Outcome]) -> Iterator[Sight]:
        """Yield every time that was measured and that the model has a number for."""
        jobs = iter(range(len(self._probe.jobs)))
        for program, outcome in zip(self._probe.task.programs, outcomes, strict=True):
            match program:
                case task.OperationProgram(key=key):
                    found = [self._operation(key, outcome)]
                case task.LayerProgram(layer=layer):
                    name = f"{layer.kind} {layer.columns['hidden']}"
                    about = ("layer", name, self._layers.index(layer))
                    found = _parts(about, outcome, "forward", "backward")
                case task.StepProgram():
                    job = next(jobs)
                    about = ("step", self._probe.jobs[job].model.name, job)
                    found = _parts(about, outcome, "optimizer", "total")
                case _:
                    found = []
            yield from (sight for sight in found if sight.measured_s > 0.0)

    def alone_s(self, device: Device, sights: Sequence[Sight]) -> float:
        """Return what a memory-bound kernel costs beyond its bytes, the least of any."""
        peak = device.hbm_peak_tb_per_s * TERA
        found = (
            (sight.measured_s - self._bytes[sight.place] / peak) / self._launches[sight.place]
            for sight in sights
            if sight.what == "memory" and self._launches[sight.place] > 0.0
        )
        return max(0.0, float(min(found, default=0.0)))

    def times_s(self, devices: Sequence[Device], sights: Sequence[Sight], alone_s: float) -> Floats:
        """Return what the models say of some times on each device, float64[devices, sights].

        All devices are evaluated at once, as 40 take little longer than one.
        """
        evaluation = evaluate(
            [on_device(job, each) for each in devices for job in self._probe.jobs]
        )
        workloads, table = evaluation.workloads, evaluation.table
        pipeline = workloads.pipeline[evaluation.families.of_job].reshape(len(devices), -1)
        # Devices of one record may still differ in what their kernels take alone.
        records = workloads.device[pipeline[:, 0]].tolist()
        turns = [records[:place].count(record) for place, record in enumerate(records)]
        more_s = np.where(table.kind == MEMORY, table.launches * alone_s, 0.0)
        row_s = []
        for turn in range(max(turns) + 1):
            chosen = {records[i]: devices[i] for i, each in enumerate(turns) if each == turn}
            time_s = cost_rows(table, _alone(workloads, chosen)).time_s
            row_s.append(time_s / table.repeats + more_s)
        costs = cost_pipelines(workloads, evaluation.costs)
        replicas = evaluation.inputs.replicas
        rank = replicas.rank_offset[replicas.of_job].reshape(pipeline.shape)
        order = np.argsort(table.workload, kind="stable")
        starts = np.searchsorted(table.workload, np.arange(len(workloads.rows)), sorter=order)
        found, first = [], workloads.stage_offset
        for place, device in enumerate(devices):
            # Runs of each device's jobs are those of the first one's; workloads may be shared.
            ends = [workloads.run_offset[first[each : each + 2]] for each in pipeline[place]]
            run = np.concatenate([np.arange(*each) for each in ends])[self._first_run]
            row = order[starts[workloads.run_workload[run]][self._workload] + self._rank]
            of_rows = row_s[turns[place]][row]
            others = {
                ("sweep", ""): _gemm_times(self._swept, device),
                ("layer", "forward"): costs.forward_s[run],
                ("layer", "backward"): costs.backward_s[run],
                ("step", "total"): evaluation.steps.iteration_s.reshape(pipeline.shape)[place],
                ("step", "optimizer"): evaluation.inputs.optimizer_s[rank[place]],
            }
            times = [others.get((each.what, each.part), of_rows)[each.place] for each in sights]
            found.append(times)
        return np.array(found)

    def _operation(self, key: OperationKey, outcome: task.Outcome) -> Sight:
        measured_s = seconds_of(outcome)
        if key.label == SWEPT:
            name = f"{key.dtype} {key.m}x{key.n}x{key.k}"
            return Sight("sweep", name, "", self._swept.index(key), measured_s)
        name = f"{key.label} {_extents(key)}"
        return Sight(key.kind, name, key.phase, self._row_of[key], measured_s)


def _parts(about: tuple[str, str, int], outcome: task.Outcome, *parts: str) -> list[Sight]:
    what, name, place = about
    return [Sight(what, name, part, place, seconds_of(outcome, part)) for part in parts]


def _alone(workloads: Workloads, device_of: Mapping[int, Device]) -> Workloads:
    """Return workloads whose devices, by record, run every kernel alone, as none of a step is."""
    devices = workloads.devices.copy()
    for record, device in device_of.items():
        for name in ("attention_flop_per_s", "attention_exp_per_s", "attention_vector_per_s"):
            devices[name][record] /= device.training_attention_share
        devices["elementwise_bytes_per_s"][record] /= device.training_memory_share
    return replace(workloads, devices=devices, gemm_shares=np.ones_like(workloads.gemm_shares))


def _gemm_times(keys: Sequence[OperationKey], device: Device) -> Floats:
    if not keys:
        return np.zeros(0)
    time_s, _, _ = gemm_time_columns(
        np.array([[key.m, key.n, key.k, key.batch] for key in keys], np.int64),
        np.array([MATRIX_TYPES.index(key.dtype) for key in keys], np.int64),
        np.array([key.out_bytes for key in keys]),
        np.ones(len(keys)),
        np.zeros(len(keys), np.int64),
        device_record(device),
    )
    return time_s


def _weighed(sights: Sequence[Sight], left_out: Iterable[str]) -> list[int]:
    """Return the times that are fitted, those of rare kinds repeated, so that a few steps count."""
    kinds: dict[str, list[int]] = {}
    for place, sight in enumerate(sights):
        if not sight.name.startswith(tuple(left_out)):
            kinds.setdefault(sight.what, []).append(place)
    most = max(map(len, kinds.values()), default=0)
    return [place for places in kinds.values() for place in places * round(most / len(places))]


def _fitted(fields: Sequence[Field], solution: Fit, wider: float) -> Iterator[FittedField]:
    """Yield what was fitted; errors grow by what times that count more than once hide."""
    for field, x, error, seen in zip(
        fields, solution.coordinates, solution.errors, solution.seen, strict=True
    ):
        if seen:
            spread = wider * float(error) * field.slope(float(x))
            yield FittedField(
                field.path,
                field.prior,
                field.rounded(float(x)),
                spread if np.isfinite(spread) else None,
            )


def _entry(fitted: FittedField) -> dict[str, Any]:
    error = fitted.standard_error
    note = "at a bound" if error is None else f"standard error {error:.2g}"
    return nested(fitted.field.split("."), number(fitted.value, FITTED, note))


def _has(device: Device, path: str) -> bool:
    value: Any = device
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return value is not None


def _extents(key: OperationKey) -> str:
    if key.kind == "memory":
        return f"{key.bytes:.3g} B"
    many = f" x{key.batch}" if key.batch > 1 else ""
    return f"{key.m}x{key.n}x{key.k}{many}"


def _name(program: Any) -> str:
    match program:
        case task.OperationProgram(key=key):
            return f"{key.label} {key.phase} {_extents(key)}"
        case task.LayerProgram(layer=layer):
            return f"layer {layer.kind} {layer.columns.get('hidden', 0)}"
        case _:
            return str(program.program)
