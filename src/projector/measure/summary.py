"""What a record holds, in short: for the report and the JSON of `projector record`."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from projector.measure.keys import OperationKey
from projector.measure.record import Record
from projector.measure.reduction import reduction_lines
from projector.measure.task import ClockProgram, LayerSpec, Outcome, Timing
from projector.units import MILLISECOND, to_gib

LONGEST = 10
"""Operations that the report shows."""


def summary_of(record: Record) -> dict[str, Any]:
    """Return what was measured where, with times in ms.

    Keys are ``environment``, ``device``, ``precision``, ``model``, ``reduction``, ``layers``,
    ``step`` (or null), ``clocks``, ``longest`` (operations that take longest, each once),
    ``operations`` (by status) and ``unsettled`` (timings that did not settle while they warmed up).
    """
    longest = sorted(record.operations, key=lambda each: -_longest_s(each.outcome))
    return {
        "environment": record.environment.model_dump(mode="json"),
        "device": record.device,
        "precision": record.precision,
        "model": _model(record),
        "reduction": reduction_lines(record.reduction),
        "layers": [
            {"layer": layer_words(each.layer), **_outcome(each.outcome)} for each in record.layers
        ],
        "step": None if record.step is None else _outcome(record.step.outcome),
        "clocks": [
            {"dtype": each.program.dtype, **_outcome(each.outcome)}
            for each in record.others
            if isinstance(each.program, ClockProgram)
        ],
        "longest": [
            {"label": each.key.label, "phase": each.key.phase, "shape": shape_words(each.key)}
            | _outcome(each.outcome)
            for each in longest[:LONGEST]
            if each.outcome.status == "ok"
        ],
        "operations": dict(Counter(each.outcome.status for each in record.operations)),
        "unsettled": sum(not timing.settled for timing in _timings(record)),
    }


def layer_words(layer: LayerSpec) -> str:
    """Return what a layer is: ``dense, bf16, windowed``."""
    words = [layer.kind, layer.dtype]
    if layer.columns.get("window"):
        words.append("windowed")
    return ", ".join(words)


def shape_words(key: OperationKey) -> str:
    """Return the extents of an operation as a reader knows them."""
    if key.kind == "gemm":
        groups = f"{key.batch} x " if key.batch > 1 else ""
        return f"{groups}{key.m} x {key.n} x {key.k} {key.dtype}"
    if key.kind == "attention":
        heads = f"{key.heads}/{key.key_heads} heads"
        return f"{key.batch} x {heads}, {key.m} x {key.n}, {key.k}/{key.d_v} wide, {key.dtype}"
    if key.kind in ("collective", "exchange"):
        return f"{key.operation}, {key.bytes or key.tokens * key.token_bytes:,.0f} bytes"
    return f"{key.bytes:,.0f} bytes"


def _model(record: Record) -> str:
    return str(record.job.get("model", {}).get("name", ""))


def _outcome(outcome: Outcome) -> dict[str, Any]:
    gib = {
        f"{name.removesuffix('_bytes')}_gib": to_gib(value)
        for name, value in outcome.numbers.items()
        if name.endswith("_bytes")
    }
    numbers = {
        name: value for name, value in outcome.numbers.items() if not name.endswith("_bytes")
    }
    return {
        "status": outcome.status,
        "message": outcome.message,
        "times": {name: _timing(timing) for name, timing in outcome.times.items()},
        "numbers": {**numbers, **gib},
        "backend": outcome.backend,
    }


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "median_ms": timing.median_s / MILLISECOND,
        "low_ms": timing.low_s / MILLISECOND,
        "high_ms": timing.high_s / MILLISECOND,
        "repeats": timing.repeats,
        "settled": timing.settled,
        "clock_mhz": timing.clock_mhz,
        "power_w": timing.power_w,
    }


def _longest_s(outcome: Outcome) -> float:
    return max((timing.median_s for timing in outcome.times.values()), default=0.0)


def _timings(record: Record) -> Iterator[Timing]:
    outcomes = [
        *(each.outcome for each in record.operations),
        *(each.outcome for each in record.layers),
        *(each.outcome for each in record.others),
    ]
    outcomes += [record.step.outcome] if record.step else []
    for outcome in outcomes:
        yield from outcome.times.values()
