"""Measured beside simulated: operations, layers and a step of the benchmark, and the target.

The target's step also follows from the proportion of copies, as Primus restores data parallelism.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from projector.config.job import Job
from projector.envelope import told
from projector.errors import ProjectorError
from projector.measure.keys import OperationKey
from projector.measure.reduction import Reduction
from projector.projection.evaluate import Evaluation
from projector.projection.terms import BREAKDOWN
from projector.units import to_ms


@dataclass(frozen=True, slots=True)
class Pair:
    """One time, measured and simulated."""

    measured_s: float
    simulated_s: float

    @property
    def ratio(self) -> float | None:
        """Simulated over measured, as `projector validate` has it; none where nothing ran."""
        return self.simulated_s / self.measured_s if self.measured_s > 0.0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return both in milliseconds."""
        return told(self, "measured_ms simulated_ms ratio")


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """One kernel of the benchmark job, run by itself."""

    layer: str
    """Kind of the layer that it belongs to."""
    key: OperationKey
    pair: Pair
    low_s: float
    """Quarter of the runs were faster."""
    high_s: float
    """Quarter of the runs were slower."""
    runs: float
    """How often a microbatch runs it in one such layer."""
    backend: str = ""

    @property
    def shape(self) -> str:
        """What its kernel works on, in a few characters."""
        return shape_of(self.key)

    def to_dict(self) -> dict[str, Any]:
        """Return the operation as ``--json`` prints it."""
        return {
            "layer": self.layer,
            "operation": self.key.label,
            **told(self.key, "phase kind"),
            "shape": self.shape,
            **self.pair.to_dict(),
            "measured_low_ms": to_ms(self.low_s),
            "measured_high_ms": to_ms(self.high_s),
            "runs_per_layer": self.runs,
            "backend": self.backend,
        }


@dataclass(frozen=True, slots=True)
class ComparedLayer:
    """Forward or backward of one real layer."""

    layer: str
    phase: str
    pair: Pair

    def to_dict(self) -> dict[str, Any]:
        """Return the layer as ``--json`` prints it."""
        return {"layer": self.layer, "phase": self.phase, **self.pair.to_dict()}


@dataclass(frozen=True, slots=True)
class Peaks:
    """One peak of memory, measured or anchored on what was, and simulated."""

    measured_bytes: float
    simulated_bytes: float

    @property
    def ratio(self) -> float | None:
        """Simulated over measured; none where nothing was held."""
        return self.simulated_bytes / self.measured_bytes if self.measured_bytes > 0.0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return both in GiB."""
        return told(self, "measured_gib simulated_gib ratio")


ComparedMemory = Mapping[str, Peaks]
"""Allocated peaks of the measured ``step`` of the benchmark, and of the ``target``, the job asked
for, anchored on it."""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A program that gave no time, and why."""

    name: str
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was both measured and simulated."""

    operations: tuple[ComparedOperation, ...]
    layers: tuple[ComparedLayer, ...]
    step: Mapping[str, Pair]
    """Of a step with one layer of each kind: ``forward_backward``, ``optimizer``, ``total``."""
    target: Mapping[str, Pair]
    """Terms of the restored target's step, and its ``total``."""
    memory: ComparedMemory | None = None
    """Peaks, where the step said any."""
    missing: tuple[NotMeasured, ...] = ()

    @property
    def total(self) -> Pair:
        """The step of the restored target."""
        return self.target["total"]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that stands under ``comparison`` in ``--json``."""
        return {
            **told(self, "operations layers step target memory"),
            "summary": {
                "operations": errors(entry.pair for entry in self.operations),
                "layers": errors(entry.pair for entry in self.layers),
            },
            "not_measured": [asdict(entry) for entry in self.missing],
        }


def errors(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Sum up how far simulated times are off: median and geometric mean, None without pairs."""
    ratios = [pair.ratio for pair in pairs]
    known = [ratio for ratio in ratios if ratio is not None and ratio > 0.0]
    if not known:
        return {"count": 0, "median_ape": None, "geomean_ratio": None}
    return {
        "count": len(known),
        "median_ape": median(abs(ratio - 1.0) for ratio in known),
        "geomean_ratio": math.exp(math.fsum(map(math.log, known)) / len(known)),
    }


def shape_of(key: OperationKey) -> str:
    """Return what the kernel of a key works on, in a few characters."""
    if key.kind == "gemm":
        batch = f"{key.batch} x " if key.batch > 1 else ""
        return f"{batch}{key.m} x {key.n} x {key.k} {key.dtype}"
    if key.kind == "attention":
        width = f"{key.k}" if key.d_v in (0, key.k) else f"{key.k}/{key.d_v}"
        return f"{key.batch} x {key.heads}/{key.key_heads} x {key.m} x {width} {key.dtype}"
    if key.kind == "memory":
        return f"{key.bytes / 1e6:,.3g} MB"
    if key.kind == "collective":
        return f"{key.bytes / 1e6:,.3g} MB on {key.ranks}"
    return f"{key.tokens:,.0f} tokens on {key.ranks}"


ONCE = ("dp_comm", "optimizer", "stragglers")
"""Terms that a step has once, however many microbatches there are, or that grow with the copies."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """The closed form ``base * min_dp / target_dp + once``, and what the replay says."""

    min_dp: int
    target_dp: int
    base_s: float
    """What microbatches take on the fewest nodes that hold a copy."""
    once_s: float
    """What a step of the target takes besides: data parallelism, optimizer, stragglers, overhead of
    the framework."""
    step_s: float
    """The closed form."""
    replayed_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the object that stands under ``closed_form`` in ``--json``."""
        return told(self, "min_dp target_dp base_ms once_ms step_ms replayed_ms")


def by_proportion(
    reduction: Reduction, evaluate: Callable[[Job], Evaluation], replayed: dict[str, float]
) -> Proportion | None:
    """Return a target's step by the proportion of copies; None where fewer nodes cannot run it."""
    try:
        least = evaluate(reduction.least_job())
    except ProjectorError:
        return None
    overhead_s = float(least.batch.cluster.step_overhead_s[0])
    terms = dict(zip(BREAKDOWN, least.steps.breakdown_s[0].tolist(), strict=True))
    base_s = sum(seconds for name, seconds in terms.items() if name not in ONCE) - overhead_s
    once_s = sum(replayed[name] for name in ONCE) + overhead_s
    return Proportion(
        min_dp=reduction.min_dp,
        target_dp=reduction.target_dp,
        base_s=base_s,
        once_s=once_s,
        step_s=reduction.closed_form_s(base_s, once_s),
        replayed_s=sum(replayed.values()),
    )
