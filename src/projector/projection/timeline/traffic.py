"""Data parallelism beside the layers of a stage, event by event.

`kernels.stage_times.run_layers` and `first_forwards` say how long a stage takes; here the same
recurrences say which layer waits for which gather, and when each collective runs.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.operations.table import BACKWARD, FORWARD, WEIGHT
from projector.projection.data_parallel import PassFlags, pass_flags, slowdowns
from projector.projection.evaluate import Evaluation
from projector.projection.timeline.columns import NONE

GATHER, REDUCE = "dp.param_all_gather", "dp.grad_reduce"


class Event(NamedTuple):
    """One collective of data parallelism."""

    layer: int
    """Place of the layer among those of the block, in the order in which they run."""
    label: str
    phase: int
    begin_s: float
    """On the clock of the recurrence, on which collectives take as long as beside compute."""
    end_s: float
    alone_s: float
    bytes: float


class Left(NamedTuple):
    """Gradient traffic of a layer that is left when the last backward of its chunk has ended."""

    label: str
    seconds: float
    bytes: float
    """Of the whole collective, which has begun before if there is less of it left."""


@dataclass(slots=True)
class BlockTraffic:
    """What data parallelism does in one block; seconds of each layer, in order."""

    waits_s: Floats
    before_s: Floats
    """Copies of weights before the layer."""
    slows_s: Floats
    """What the layer takes longer."""
    after_s: Floats
    """Copies of gradients behind the layer."""
    knots_s: Floats
    """float64[2 * layers + 2]: clock of the recurrence when each layer begins to wait and when it
    begins to compute, at the end of the last one, and when what follows has been sent."""
    events: list[Event] = field(default_factory=list)
    waits_for: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[layers]: event that each layer waits for."""
    slowed_by: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[layers]: event that runs beside it the longest."""
    tail_s: list[tuple[int, float]] = field(default_factory=list)
    """Events that the next operation waits for, each with the seconds left of it."""
    left: list[Left] = field(default_factory=list)
    """What is left when the block has ended, and nothing waits for."""
    ahead: bool = False
    """Whether the events run from the start of the step on, whenever the block begins."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing is sent or copied."""
        return not self.events and not (self.before_s.any() or self.after_s.any())


class _Stage(NamedTuple):
    """Layers of one kind of stage in one direction; float64[layers] in the order they run."""

    compute_s: Floats
    gather_s: Floats
    reduce_s: Floats
    before_s: Floats
    after_s: Floats
    gather_bytes: Floats
    reduce_bytes: Floats


class Traffic:
    """Data parallelism of one replica."""

    def __init__(self, evaluation: Evaluation, replica: int) -> None:
        self.evaluation, self.replica = evaluation, replica
        replicas = evaluation.inputs.replicas
        self.replicas, self.parallel = replicas, evaluation.parallel
        self.flags = PassFlags(*(flags[replica] for flags in pass_flags(replicas)))
        beside = slowdowns(replicas)
        self.longer = float(beside.collectives[replica])
        self.slowdown = float(beside.compute[replica])
        parallelism = replicas.jobs.parallelism
        self.forward_ahead = int(parallelism.forward_ahead[replica])
        self.backward_ahead = int(parallelism.backward_ahead[replica])
        self._firsts: dict[int, BlockTraffic] | None = None

    def forward(self, stage: int, *, first: bool) -> BlockTraffic:
        """Return the traffic beside a forward of a stage of the model."""
        flags = self.flags
        if first and flags.ahead:
            if self._firsts is None:
                self._firsts = self._run_ahead()
            return self._firsts[stage]
        layers = self._layers(stage, FORWARD)
        silent = np.zeros(len(layers.compute_s))
        gather_s = layers.gather_s if flags.every_gather else silent
        layers = layers._replace(gather_s=gather_s, reduce_s=silent, after_s=silent)
        return self._pass(layers, self.forward_ahead, FORWARD, waits=False)

    def backward(self, stage: int, kind: int, *, last: bool) -> BlockTraffic:
        """Return the traffic beside a B, or a W, of a stage of the model."""
        flags, layers = self.flags, self._layers(stage, kind)
        silent = np.zeros(len(layers.compute_s))
        regathers = flags.regathers and kind == BACKWARD
        sends = kind == (WEIGHT if flags.splits else BACKWARD)
        reduces = sends and (flags.every_reduce or (last and flags.overlaps_reduce))
        layers = layers._replace(
            gather_s=layers.gather_s if flags.every_gather and regathers else silent,
            reduce_s=layers.reduce_s if reduces else silent,
            before_s=layers.before_s if regathers else silent,
            after_s=layers.after_s if sends else silent,
        )
        waits = bool(sends and flags.every_reduce)
        return self._pass(layers, self.backward_ahead, kind, waits=waits)

    def after(self, stage: int, *, gathers: bool) -> list[Left]:
        """Return the collectives of a stage that nothing overlaps, in order."""
        layers, flags = self._layers(stage, FORWARD if gathers else BACKWARD), self.flags
        if gathers:
            columns = (layers.gather_s, layers.gather_bytes, not flags.overlaps_gather, GATHER)
        else:
            overlaps = flags.overlaps_reduce or flags.every_reduce
            columns = (layers.reduce_s, layers.reduce_bytes, not overlaps, REDUCE)
        seconds, num_bytes, stands, label = columns
        if not stands:
            return []
        pairs = zip(seconds.tolist(), num_bytes.tolist(), strict=True)
        return [Left(label, each, moved) for each, moved in pairs if each > 0.0]

    def _layers(self, stage: int, phase: int) -> _Stage:
        replicas, costs = self.replicas, self.evaluation.inputs.costs
        kind = int(replicas.stage_kind[replicas.stage_offset[self.replica] + stage])
        runs = np.arange(replicas.run_offset[kind], replicas.run_offset[kind + 1])
        layer = np.repeat(runs, replicas.workloads.run_count[replicas.run[runs]])
        layer = layer if phase == FORWARD else layer[::-1]
        of_pipeline = replicas.run[layer]
        parallel = self.parallel
        sent, layer = parallel.sent, parallel.of_run[layer]
        before_s, after_s = sent.gather_copy_s[layer], sent.reduce_copy_s[layer]
        gradient_s = costs.input_s if self.flags.splits else costs.backward_s
        compute_s = (costs.forward_s, gradient_s, costs.weight_s)[phase][of_pipeline]
        return _Stage(
            compute_s, sent.gather_s[layer], sent.reduce_s[layer], before_s, after_s,
            parallel.gather_bytes[layer], parallel.reduce_bytes[layer],
        )  # fmt: skip

    def _pass(self, layers: _Stage, ahead: int, phase: int, *, waits: bool) -> BlockTraffic:
        """Run compute and the channel through a stage, as `run_layers` does."""
        compute_s = layers.compute_s + layers.before_s + layers.after_s
        channel = _Channel(layers, self.longer, phase)
        count, computed = len(compute_s), 0.0
        knots_s, ready_s = [], np.zeros(count)
        waits_s = np.zeros(count)
        for layer in range(count):
            channel.ask(min(count, max(1, ahead)), 0.0)
            started = max(computed, channel.gathered_s[layer])
            knots_s += [computed, started]
            waits_s[layer] = started - computed
            if ahead > 0:
                channel.ask(min(count, channel.asked + 1), started)
            computed = started + compute_s[layer]
            ready_s[layer] = computed
            if ahead == 0:
                channel.ask(min(count, channel.asked + 1), computed)
            channel.reduce(layer, computed)
        tail_s = max(0.0, channel.until_s - computed) / self.longer
        knots_s += [computed, computed + max(0.0, channel.until_s - computed)]
        sent_s = float(layers.gather_s.sum() + layers.reduce_s.sum())
        exposed_s = float(waits_s.sum()) / self.longer
        hidden_s = max(0.0, sent_s - exposed_s - tail_s) * self.longer
        traffic = BlockTraffic(
            waits_s / self.longer, layers.before_s, np.zeros(count), layers.after_s,
            np.array(knots_s, np.float64), channel.events,
        )  # fmt: skip
        _slow(traffic, self.slowdown * hidden_s, layers.compute_s > 0.0)
        self._end(traffic, computed, waits=waits)
        return traffic

    def _end(self, traffic: BlockTraffic, computed: float, *, waits: bool) -> None:
        for place, event in enumerate(traffic.events):
            seconds = (event.end_s - max(computed, event.begin_s)) / self.longer
            if seconds <= 0.0:
                continue
            if waits:
                traffic.tail_s.append((place, seconds))
            else:
                traffic.left.append(Left(event.label, seconds, event.bytes))
        if not waits:
            # What is left runs when the last operation of the chunk has ended.
            traffic.events = [
                event._replace(end_s=min(event.end_s, computed))
                if event.begin_s < computed
                else event._replace(begin_s=computed, end_s=computed)
                for event in traffic.events
            ]

    def _run_ahead(self) -> dict[int, BlockTraffic]:
        """Run the first microbatch behind gathers, as `first_forwards` does."""
        placement = self.replicas.placement(self.replica)
        rank_of = placement.rank_of[: placement.num_stages].tolist()
        stages = [self._layers(stage, FORWARD) for stage in range(placement.num_stages)]
        channel_s, silent_s = dict.fromkeys(rank_of, 0.0), dict.fromkeys(rank_of, 0.0)
        for rank, layers in zip(rank_of, stages, strict=True):
            silent_s[rank] += float((layers.gather_s * self.longer).sum())
        arrival, found = 0.0, {}
        for stage, (rank, layers) in enumerate(zip(rank_of, stages, strict=True)):
            computed, knots_s, events = arrival, [], []
            waits_s = np.zeros(len(layers.compute_s))
            for layer, seconds in enumerate((layers.gather_s * self.longer).tolist()):
                knots_s.append(computed)
                if seconds > 0.0:
                    begin = channel_s[rank]
                    channel_s[rank] += seconds
                    alone_s, moved = layers.gather_s[layer], layers.gather_bytes[layer]
                    events.append(
                        Event(layer, GATHER, FORWARD, begin, channel_s[rank], alone_s, moved)
                    )
                    waits_s[layer] = max(0.0, channel_s[rank] - computed)
                    computed = max(computed, channel_s[rank])
                knots_s.append(computed)
                computed += float(layers.compute_s[layer])
            beside = max(0.0, min(computed, silent_s[rank]) - arrival - float(waits_s.sum()))
            nothing = np.zeros(len(waits_s))
            # Nothing is added to a stage that gathers nothing.
            added = self.slowdown * beside if events else 0.0
            traffic = BlockTraffic(
                waits_s, nothing, nothing.copy(), nothing.copy(),
                np.array([*knots_s, computed, computed], np.float64), events, ahead=True,
            )  # fmt: skip
            _slow(traffic, added, layers.compute_s > 0.0)
            computed += self.slowdown * beside
            traffic.knots_s[-2:] = computed
            found[stage] = traffic
            arrival = computed
        return found


class _Channel:
    """One channel that serves gathers and reductions in the order in which they are asked for."""

    def __init__(self, layers: _Stage, longer: float, phase: int) -> None:
        self.layers, self.longer, self.phase = layers, longer, phase
        self.gathered_s = np.zeros(len(layers.compute_s))
        self.until_s, self.asked = 0.0, 0
        self.events: list[Event] = []

    def ask(self, until: int, now: float) -> None:
        """Gather the weights of all layers before ``until`` that were not asked for."""
        while self.asked < until:
            layer = self.asked
            self.asked += 1
            if self.layers.gather_s[layer] > 0.0:
                self._serve(layer, GATHER, now, self.layers.gather_s, self.layers.gather_bytes)
                self.gathered_s[layer] = self.until_s

    def reduce(self, layer: int, now: float) -> None:
        """Reduce the gradients of a layer."""
        if self.layers.reduce_s[layer] > 0.0:
            self._serve(layer, REDUCE, now, self.layers.reduce_s, self.layers.reduce_bytes)

    def _serve(self, layer: int, label: str, now: float, seconds: Floats, moved: Floats) -> None:
        begin = max(self.until_s, now)
        alone_s = float(seconds[layer])
        self.until_s = begin + alone_s * self.longer
        self.events.append(
            Event(layer, label, self.phase, begin, self.until_s, alone_s, float(moved[layer]))
        )


def _slow(traffic: BlockTraffic, seconds: float, computes: Flags) -> None:
    """Divide the slowdown over the layers that compute beside collectives, and say beside which.

    A frozen embedding computes nothing in the backward.
    """
    layers = len(traffic.waits_s)
    traffic.waits_for = np.full(layers, NONE)
    traffic.slowed_by = np.full(layers, NONE)
    for place, event in enumerate(traffic.events):
        if event.label == GATHER:
            traffic.waits_for[event.layer] = place
    if not traffic.events:
        return
    begins, ends = traffic.knots_s[1:-1:2], traffic.knots_s[2::2]
    times = np.array([(event.begin_s, event.end_s) for event in traffic.events], np.float64)
    beside = np.minimum(ends[:, None], times[:, 1]) - np.maximum(begins[:, None], times[:, 0])
    beside = np.maximum(beside, 0.0)
    traffic.slowed_by[:] = np.argmax(beside, axis=1)
    of_layer = beside.sum(axis=1) * computes
    if not of_layer.any():
        # Gathers of other stages of the rank run on beside this one.
        of_layer = (ends - begins) * computes
    total = float(of_layer.sum())
    if total > 0.0:
        traffic.slows_s[:] = seconds * of_layer / total
