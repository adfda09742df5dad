"""The benchmark job of a record beside the model: what its layers take of both."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from projector.arrays import Flags, Floats
from projector.config.job import Job
from projector.config.load import load_job
from projector.kernels.collective_algorithms import OPERATIONS, SEND_RECV
from projector.kernels.collectives import collective_time_columns
from projector.measure.record import MeasuredLayer, Record
from projector.measure.restore import Restoration
from projector.measure.task import LayerSpec
from projector.operations.cost import RowTimes, cost_rows, numbers_in_range, sum_workloads
from projector.operations.table import BACKWARD, FORWARD, WEIGHT
from projector.projection.evaluate import Evaluation, evaluate
from projector.projection.pipeline_costs import cost_runs
from projector.projection.replicas import cost_optimizer

GRADIENTS = [BACKWARD, WEIGHT]
"""Phases of a backward."""

SEND = OPERATIONS[SEND_RECV]
"""What records call a message from one device to another."""


def benchmark_of(job: Job, record: Record) -> Job:
    """Return the benchmark job of a record, on the devices of a job."""
    sections = dict(record.job)
    machines = {f"cluster.{name}": value for name, value in sections.pop("cluster", {}).items()}
    return Job.parse({**sections, "cluster": load_job(job, machines).cluster}, path="record.job")


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """What one microbatch takes in each workload of a job, without overlap with others."""

    device_s: Floats
    """float64[workloads, phases]: rows, without what of them is hidden."""
    host_s: Floats
    """float64[workloads, phases]: gaps between kernels and waits for the host."""


@dataclass(frozen=True, slots=True)
class WholeLayers:
    """Measured layers, NaN where there is none."""

    forward_s: Floats
    """float64[workloads]."""
    backward_s: Floats
    """float64[workloads]: both gradients."""
    weight_share: Floats
    """float64[workloads]: share of the gradient of the weights, where it was timed apart."""

    def by_phase(self, times: LayerTimes) -> Floats:
        """Return float64[workloads, phases], gradients not timed apart by their rows."""
        device_s, host_s = times.device_s[:, GRADIENTS], times.host_s[:, GRADIENTS]
        beside = _shares(np.where(host_s.sum(axis=1, keepdims=True) > 0.0, host_s, device_s))
        beyond_s = self.backward_s[:, None] - device_s.sum(axis=1, keepdims=True)
        together_s = device_s + beside * beyond_s
        apart = np.stack([1.0 - self.weight_share, self.weight_share], axis=1)
        is_apart = ~np.isnan(self.weight_share)[:, None]
        gradients_s = np.where(is_apart, apart * self.backward_s[:, None], together_s)
        return np.concatenate([self.forward_s[:, None], gradients_s], axis=1)


def _host_shares(beyond_s: Floats, host_s: Floats) -> Floats:
    shares = np.minimum(1.0, beyond_s / np.where(host_s > 0.0, host_s, 1.0))
    return np.where(host_s > 0.0, shares, 1.0)


def _shares(values: Floats) -> Floats:
    total = values.sum(axis=1, keepdims=True)
    return np.asarray(values / np.where(total > 0.0, total, 1.0))


class Benchmark:
    """The benchmark job of a record, lowered again beside what was measured of it."""

    def __init__(self, job: Job, record: Record) -> None:
        self.record = record
        self.job = benchmark_of(job, record)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The benchmark job as it is modelled."""
        return evaluate([self.job])

    def restoration(self, tp_rule: str = "ratio") -> Restoration:
        """Return what the record says of rows and layers of other jobs."""
        evaluation = self.evaluation
        times = {
            one.key: timing.median_s
            for one in self.record.operations
            if (timing := one.outcome.timing()) is not None
        }
        rows = Restoration.of_rows(
            evaluation.table, evaluation.workloads, evaluation.rows.time_s, times, tp_rule
        )
        shares = [
            seconds / self.send_s(key.bytes)
            for key, seconds in times.items()
            if key.operation == SEND and key.bytes > 0.0
        ]
        return replace(
            self._within_layers(rows),
            optimizer_share=self.optimizer_share,
            send_share=float(np.median(shares)) if shares else None,
        )

    def layer_times(self, measured: RowTimes | None = None) -> LayerTimes:
        """Return what layers take, modelled or measured."""
        table, workloads = self.evaluation.table, self.evaluation.workloads
        rows = self.evaluation.rows if measured is None else cost_rows(table, workloads, measured)
        runs = cost_runs(workloads, sum_workloads(table, rows, workloads), splits=False)
        _, first = np.unique(workloads.run_workload, return_index=True)
        return LayerTimes(runs.exposed_s[first].sum(axis=2), runs.launch_s[first])

    def _within_layers(self, rows: Restoration) -> Restoration:
        """Let measured layers say what their rows add up to, and what they take beside them."""
        layers, alone = self.whole_layers, self.layer_times(rows)
        stated_s = layers.by_phase(alone)
        whole = ~np.isnan(stated_s)
        if not whole.any():
            return rows
        shorter = replace(rows, factor=_factors(stated_s, alone, rows.has_rows), whole=whole)
        within = self.layer_times(shorter)
        beyond_s = np.where(whole, _beyond(layers.by_phase(within), within.device_s), within.host_s)
        host_s = within.host_s
        extra_s, host_share = np.maximum(0.0, beyond_s - host_s), _host_shares(beyond_s, host_s)
        # The record has one wait for both gradients, and a split backward two.
        both_s, host_s = (each[:, GRADIENTS].sum(axis=1) for each in (beyond_s, host_s))
        extra_s, host_share = np.stack([extra_s] * 2), np.stack([host_share] * 2)
        more_s = np.maximum(0.0, both_s - host_s)[:, None]
        extra_s[1, :, GRADIENTS] = (more_s * _shares(beyond_s[:, GRADIENTS])).T
        host_share[1, :, GRADIENTS] = _host_shares(both_s, host_s)
        return replace(shorter, extra_s=extra_s, host_share=host_share)

    @cached_property
    def whole_layers(self) -> WholeLayers:
        """What was measured of each workload of the benchmark job."""
        seconds = np.full((len(self.evaluation.workloads.rows), 3), np.nan)
        for layer in self.record.layers:
            measured, workload = _seconds(layer), self.workload_of(layer.layer)
            if measured is not None and workload is not None:
                seconds[workload] = measured
        return WholeLayers(*seconds.T)

    def workload_of(self, layer: LayerSpec) -> int | None:
        """Return the workload of the benchmark job that a measured layer is; None if it is none."""
        rows = self.evaluation.workloads.rows
        names = [name for name in layer.columns if name in (rows.dtype.names or ())]
        if "kind" not in names:
            return None
        for workload, row in enumerate(rows):
            if all(row[name] == layer.columns[name] for name in names):
                return workload
        return None

    def send_s(self, num_bytes: float) -> float:
        """Return the modelled seconds of a message to a device of the same domain."""
        fabric = self.evaluation.workloads.fabric[:1]
        size, two, flat = (np.array([value]) for value in (num_bytes, 2, 0))
        with numbers_in_range():
            seconds, _ = collective_time_columns(
                SEND_RECV, size, two, two, fabric, self.evaluation.workloads.fabrics, flat
            )
        return float(seconds[0])

    @cached_property
    def optimizer_share(self) -> float | None:
        """Measured time of an update over the modelled one; None if it was not measured."""
        step = self.record.step
        if step is None:
            return None
        timing = step.outcome.timing("optimizer")
        parameters = step.outcome.numbers.get("parameters", 0.0)
        if timing is None or parameters < 1.0:
            return None
        return timing.median_s / self.update_s(parameters)

    @property
    def step_share(self) -> float | None:
        """Forward and backward of the measured step over the sum of its layers, None without."""
        step = self.record.step
        if step is None or step.outcome.status != "ok":
            return None
        layers = [self.workload_of(layer) for layer in step.layers]
        whole = self.whole_layers
        sum_s = sum(
            float(whole.forward_s[row] + whole.backward_s[row]) for row in layers if row is not None
        )
        forward, backward = map(step.outcome.timing, ("forward", "backward"))
        if None in layers or not sum_s > 0.0 or forward is None or backward is None:
            return None
        return (forward.median_s + backward.median_s) / sum_s

    @property
    def spread(self) -> float | None:
        """Half the distance of the quartiles over the median, of the median operation."""
        timings = [one.outcome.timing() for one in self.record.operations]
        spreads = [
            (timing.high_s - timing.low_s) / (2.0 * timing.median_s)
            for timing in timings
            if timing is not None
        ]
        return float(np.median(spreads)) if spreads else None

    def update_s(self, parameters: float) -> float:
        """Return the modelled seconds in which one rank updates so many parameters of its own."""
        held = np.array([parameters])
        with numbers_in_range():
            return float(cost_optimizer(self.evaluation.inputs.replicas, held, held)[0])


def _seconds(layer: MeasuredLayer) -> tuple[float, float, float] | None:
    """Return forward and backward of a layer, and what of the backward is gradients of weights."""
    forward, backward = map(layer.outcome.timing, ("forward", "backward"))
    if forward is None or backward is None:
        return None
    times, share = layer.outcome.times, np.nan
    if {"input_gradient", "weight_gradient"} <= times.keys():
        # Both were timed apart; what counts is the backward as it runs.
        input_s, weight_s = times["input_gradient"].median_s, times["weight_gradient"].median_s
        # A gradient that took no time was lost in the noise of the other.
        share = weight_s / (input_s + weight_s) if min(input_s, weight_s) > 0.0 else np.nan
    return forward.median_s, backward.median_s, share


def _factors(stated_s: Floats, alone: LayerTimes, has_rows: Flags) -> Floats:
    """Return by which rows of a layer are longer within it than alone, float64[workloads, phases].

    Rows that were measured apart never add up to more than their layer; if they add up to less,
    they stay as they are. Where no row was measured, the layer is divided as the model divides it,
    the host included.
    """
    factors = np.ones(stated_s.shape)
    for phases in ([FORWARD], GRADIENTS):
        stated = stated_s[:, phases].sum(axis=1)
        device = alone.device_s[:, phases].sum(axis=1)
        layer = device + alone.host_s[:, phases].sum(axis=1)
        of_rows = np.minimum(1.0, stated / np.where(device > 0.0, device, 1.0))
        of_layer = stated / np.where(layer > 0.0, layer, 1.0)
        factor = np.where(has_rows[:, phases].any(axis=1), of_rows, of_layer)
        factors[:, phases] = np.where(np.isnan(stated) | (device <= 0.0), 1.0, factor)[:, None]
    return factors


def _beyond(stated_s: Floats, device_s: Floats) -> Floats:
    """Return what of each phase is not its rows; of both gradients together it is never more."""
    beyond_s = np.maximum(0.0, stated_s - device_s)
    for phases in ([FORWARD], GRADIENTS):
        total = np.maximum(0.0, (stated_s - device_s)[:, phases].sum(axis=1))
        found = beyond_s[:, phases].sum(axis=1)
        beyond_s[:, phases] *= (total / np.where(found > 0.0, found, 1.0))[:, None]
    return beyond_s
