"""From the rows of steps to their times: terms, gaps between kernels, waits for the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.operations.table import PP_COMM, OperationTable
from projector.serving.columns import has_prompts, scheduled
from projector.serving.deployment import Deployment
from projector.units import MICROSECOND

BREAKDOWN = ("gemm", "attention", "other", "tp_comm", "pp_comm", "ep_comm", "launch", "host")
"""Terms of a step, which add up to it: ``launch`` is the device's time between kernels, ``host``
what the device waits for the host beyond that."""

LAUNCH, HOST = 6, 7


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of steps."""

    breakdown_s: Floats
    """float64[steps, len(BREAKDOWN)]."""
    latency_s: Floats
    """float64[steps]: first stage to last, every stage idle while another works."""
    interval_s: Floats
    """float64[steps]: between two batches of the slowest stage, with a batch in each stage."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the rows of steps."""

    terms_s: Floats
    """float64[steps, LAUNCH]: terms that rows have."""
    launches: Floats
    """float64[steps]: kernels."""
    calls: Floats
    """float64[steps]: operators that launch nothing."""

    def __getitem__(self, rows: Ints) -> "Totals":
        """Return some of the steps."""
        return Totals(self.terms_s[rows], self.launches[rows], self.calls[rows])

    @classmethod
    def concatenate(cls, parts: Sequence["Totals"]) -> "Totals":
        """Return the sums of all steps of some parts."""
        return cls(
            np.concatenate([part.terms_s for part in parts]),
            np.concatenate([part.launches for part in parts]),
            np.concatenate([part.calls for part in parts]),
        )

    def __add__(self, other: "Totals") -> "Totals":
        """Return the sums over the rows of both."""
        return Totals(
            self.terms_s + other.terms_s,
            self.launches + other.launches,
            self.calls + other.calls,
        )


def totals_of(table: OperationTable, row_s: Floats, steps: int) -> Totals:
    """Add up the rows of each step; ``row_s`` has the seconds of one repeat of each."""
    slot = table.workload * LAUNCH + table.category
    terms_s = _sum(slot, row_s * table.repeats, steps * LAUNCH)
    return Totals(
        terms_s.reshape(steps, LAUNCH),
        _sum(table.workload, table.launches * table.repeats, steps),
        _sum(table.workload, table.calls * table.repeats, steps),
    )


def _sum(slot: Ints, values: Floats, slots: int) -> Floats:
    """Add up values by slot, in their order; none are float64 zeros."""
    return np.bincount(slot, values, slots).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Hosts:
    """What the host side of deployments costs, one entry a deployment."""

    prefill_graph: Flags
    decode_graph: Flags
    graph_gap_s: Floats
    """Between kernels of a graph."""
    queue_gap_s: Floats
    """Between kernels of a full queue."""
    launch_s: Floats
    """Of a kernel."""
    operator_s: Floats
    """Of an operator."""
    step_s: Floats
    """Between two steps, while the device waits."""
    sequence_s: Floats
    """The same for each sequence of the step."""
    groups: Ints
    """Attention groups, each with a scheduler of its own."""
    stages: Ints
    layers: Ints


def hosts_of(deployments: Sequence[Deployment]) -> Hosts:
    """Read the host side of deployments."""

    def seconds(values: list[float]) -> Floats:
        return np.array(values, np.float64) * MICROSECOND

    runs = [each.runs for each in deployments]
    devices = [each.cluster.device for each in deployments]
    software = [each.cluster.software for each in deployments]
    return Hosts(
        prefill_graph=np.array([each.prefill_graph for each in runs], np.bool_),
        decode_graph=np.array([each.decode_graph for each in runs], np.bool_),
        graph_gap_s=seconds([each.kernel_start_graph_us for each in devices]),
        queue_gap_s=seconds([each.kernel_start_us for each in devices]),
        launch_s=seconds([each.launch_us for each in software]),
        operator_s=seconds([each.operator_us for each in software]),
        step_s=seconds([each.step_us for each in runs]),
        sequence_s=seconds([each.sequence_us for each in runs]),
        groups=np.array([each.attention_dp for each in deployments], np.int64),
        stages=np.array([each.pp for each in deployments], np.int64),
        layers=np.array([each.model.num_layers for each in deployments], np.int64),
    )


def finished(
    totals: Totals, hosts: Hosts, deployment: Ints, counts: Mapping[str, Ints]
) -> StepTimes:
    """Return the times of steps, each of a ``deployment`` (a row in ``hosts``) and some `COUNTS`.

    A step with prompts is of no fixed size, so that it is captured where a prefill is.
    """
    prefill, decode = hosts.prefill_graph[deployment], hosts.decode_graph[deployment]
    captured = np.where(has_prompts(counts), prefill, decode)
    gap_s = np.where(captured, hosts.graph_gap_s[deployment], hosts.queue_gap_s[deployment])
    breakdown = np.empty((len(deployment), len(BREAKDOWN)))
    breakdown[:, :LAUNCH] = totals.terms_s
    breakdown[:, LAUNCH] = totals.launches * gap_s
    busy_s = _total_s(breakdown[:, :HOST])
    operators = totals.launches + totals.calls
    host_s = totals.launches * hosts.launch_s[deployment]
    host_s = host_s + operators * hosts.operator_s[deployment]
    waiting_s = np.where(captured, 0.0, np.maximum(0.0, host_s - busy_s))
    own_s = hosts.sequence_s[deployment] * scheduled(counts, hosts.groups[deployment])
    breakdown[:, HOST] = waiting_s + (hosts.step_s[deployment] + own_s)
    latency_s = _total_s(breakdown)
    send_s = breakdown[:, PP_COMM]
    stages, layers = hosts.stages[deployment], hosts.layers[deployment]
    share = -(-layers // stages) / layers
    interval_s = np.where(
        stages > 1, (latency_s - send_s) * share + send_s / np.maximum(1, stages - 1), latency_s
    )
    return StepTimes(breakdown, latency_s, interval_s)


def _total_s(breakdown: Floats) -> Floats:
    """Add terms up one after the other, so that a term of 0 changes no bit."""
    total_s = np.zeros(len(breakdown))
    for term_s in breakdown.T:
        total_s += term_s
    return total_s
