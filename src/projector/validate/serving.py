"""Rows that time prefill and decode of a stated batch.

Units, as printed: ``s end-to-end`` is prompt to last token of the whole batch; ``tokens/s`` counts
the generated tokens of the batch over that time (of prefill alone the tokens of the prompts), with
``/GPU`` each device's share; ``ms`` is one decode step, or the time to the first token of a prefill
row. A stated batch is that of all devices; replicas share it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from projector.config import bands
from projector.config.bands import Band
from projector.config.cluster import ClusterConfig
from projector.config.device_file import load_device
from projector.config.engine import GENERIC
from projector.serving.deployment import Deployment
from projector.serving.generation import Generation, generation_times
from projector.serving.memory import serving_memory
from projector.validate import kind as kinds
from projector.validate.kind import Kind, whole
from projector.validate.names import device_of, precision_of
from projector.validate.words import number_said, said

NARROW_CACHE = ("vllm", "tensorrt_llm")
"""Engines whose FP8 checkpoints come with scales for an 8-bit cache, and whose published commands
use it: AMD's FP8-KV checkpoints, TensorRT-LLM's ``quantize.py --kv_cache_dtype fp8``."""

WIDENING = "widening_share"

FITTED = {
    WIDENING: "widening_share",
    "step_us": "step_overhead_us",
    "sequence_us": "sequence_overhead_us",
}
"""Fitted constant -> field of a deployment."""

FITTED_ENGINES = ("vllm", "sglang", "tensorrt_llm")
"""Engines that share the constants of a step and of a sequence."""

MOST_SHARE = 0.9999
"""All of a prompt but its last page."""

PROMPT_TOKENS, NEW_TOKENS = 5, 200
"""Lengths of a decode row that states none: the defaults of the gpt-fast script, a short prompt.
Decode is then bound by the weights and hardly depends on them."""

_DEPLOYMENT = ("model", "gpu", "n_gpus", "precision", "tp", "pp")
_LOAD = ("phase", "batch_or_concurrency", "input_len", "output_len")
_COLUMNS = (*_DEPLOYMENT, *_LOAD, "value", "unit")


REUSED_PROMPTS = ("vllm", (0, 8), (0, 11))
"""Engine, and the releases from one up to another, whose latency benchmark has its prompts cached:
it sends the same ones again after warming up, and the engine keeps prefixes unless told otherwise.
Later releases tell it (vllm/benchmarks/latency.py); which was the first is not verified."""

_MAX_LENGTH = 1 << 27


@dataclass(frozen=True, slots=True)
class _Case:
    """One row, read."""

    generation: Generation
    measured: float
    unit: str
    replicas: int
    per: int
    """Devices that a rate is divided by."""
    batch: int
    """Sequences of all waves."""
    waves: int
    """Batches one after the other, where the cache does not hold all sequences at once."""
    note: str


@dataclass(frozen=True, slots=True)
class _Shared:
    """What rows have in common, so that it is built once."""

    clusters: dict[tuple[str, int], ClusterConfig]
    deployments: dict[tuple[object, ...], Deployment]


def why_not_eligible(row: kinds.Row) -> str:
    """Only prefill and decode of a stated batch count."""
    phase = (row.get("phase") or "").lower()
    if "prefill" not in phase and "decode" not in phase:
        return "neither prefill nor decode"
    if not re.fullmatch(r"\d+(\.0+)?", (row.get("batch_or_concurrency") or "").strip()):
        return "no stated batch"
    return ""


def phase_of(row: kinds.Row) -> str:
    """Return what a row times: a batch to its last token, its parts, or as much load as fits."""
    phase = (row.get("phase") or "").lower()
    if "offline" in phase:
        return bands.LOAD
    if "decode" not in phase:
        return bands.PREFILL
    return bands.LATENCY if "prefill" in phase else bands.DECODE


def doubt_of(row: kinds.Row) -> str:
    """Return why a row contradicts itself, by its own note; bands are made without it."""
    below = "below bandwidth bound" in (row.get("notes") or "").lower()
    return "far slower than reading its weights takes" if below else ""


def project(rows: Sequence[kinds.Row]) -> list[kinds.Outcome]:
    """Project rows, all generations in one batch."""
    return project_without(rows, [kinds.Without("", {})] * len(rows))


def project_without(
    rows: Sequence[kinds.Row], constants: Sequence[kinds.Without]
) -> list[kinds.Outcome]:
    """Project rows, each with the constants beside it in place of those that ship."""
    shared = _Shared({}, {})
    pairs = list(zip(rows, constants, strict=True))
    read = kinds.read_cases(pairs, lambda pair: _read(pair[0], shared, pair[1]))
    cases = [case for case in read if not isinstance(case, str)]
    if not cases:
        return [kinds.failed(str(why)) for why in read]
    found = generation_times([case.generation for case in cases])
    times_s = zip(found.prefill_s, found.decode_s, strict=True)
    outcomes = []
    for (row, without), case in zip(pairs, read, strict=True):
        if isinstance(case, str):
            outcomes.append(kinds.failed(case))
            continue
        predicted = _in_unit(case, *(float(time_s) * case.waves for time_s in next(times_s)))
        band, classes = _band(row, case, without.source)
        outcomes.append(kinds.Outcome(
            kinds.OK, predicted, case.measured, predicted / case.measured,
            mark=kinds.FROM_RULE if case.note else kinds.FROM_ROW, note=case.note,
            is_inverse=case.unit == "tokens/s", band=band, classes=classes,
        ))  # fmt: skip
    return outcomes


def _in_unit(case: _Case, prefill_s: float, decode_s: float) -> float:
    item = case.generation
    if case.unit == "s":
        return prefill_s + decode_s
    if case.unit == "tokens/s":
        tokens = item.output_len if item.output_len > 1 else item.input_len
        return case.batch * case.replicas * tokens / (prefill_s + decode_s) / case.per
    if item.output_len < 2:
        return prefill_s * 1e3
    return decode_s / (item.output_len - 1) * 1e3


def _read(row: kinds.Row, shared: _Shared, without: kinds.Without) -> _Case:
    notes: list[str] = []
    unit = _unit(row.get("unit") or "")
    measured = kinds.above_zero(row, "value")
    tp, pp = whole(row, "tp", _MAX_LENGTH, 1), whole(row, "pp", _MAX_LENGTH, 1)
    gpus = whole(row, "n_gpus", _MAX_LENGTH, tp * pp)
    replicas = gpus // (tp * pp)
    if replicas * tp * pp != gpus:
        raise ValueError(f"{gpus} GPUs are not a whole number of replicas of tp {tp} x pp {pp}")
    deployment = _deployment(row, tp, pp, shared, without, notes)
    batch = -(-whole(row, "batch_or_concurrency", _MAX_LENGTH) // replicas)
    given_in, given_out = kinds.integer(row, "input_len"), kinds.integer(row, "output_len")
    input_len = whole(row, "input_len", _MAX_LENGTH, PROMPT_TOKENS)
    prefill_only = "decode" not in (row.get("phase") or "").lower() and given_out is None
    output_len = whole(row, "output_len", _MAX_LENGTH, 1 if prefill_only else NEW_TOKENS)
    if given_in is None or (given_out is None and not prefill_only):
        notes.append(f"lengths not stated: {input_len} tokens in, {output_len} out")
    waves = _waves(row, deployment, batch, input_len + output_len, notes)
    per = gpus if "gpu" in (row.get("unit") or "").lower() else 1
    return _Case(
        Generation(deployment, -(-batch // waves), input_len, output_len), measured, unit,
        replicas, per, batch, waves, "; ".join(notes),
    )  # fmt: skip


def _deployment(
    row: kinds.Row, tp: int, pp: int, shared: _Shared, without: kinds.Without, notes: list[str]
) -> Deployment:
    """Return what serves; rows that agree share it, so that it is read once."""
    name = _device(row.get("gpu") or "", notes)
    precision = (row.get("precision") or "").strip().lower()
    key = (name, tp * pp)
    if key not in shared.clusters:
        device = load_device(name)
        nodes = -(-tp * pp // ClusterConfig.parse({"device": device}).gpus_per_node)
        shared.clusters[key] = ClusterConfig.parse({"device": device, "nodes": nodes})
    settings = _settings(row, precision, notes)
    engine = said(row, "engine") or GENERIC
    settings |= {"engine": engine, "prefix_share": _prefix_share(row, notes)}
    if engine in NARROW_CACHE and settings["dtype"] == "fp8":
        settings["kv_cache_bytes"] = 1
        notes.append("8-bit cache, as FP8 checkpoints of the engine have")
    settings |= _constants(engine, without)
    identity = (row.get("model"), key, tp, pp, *settings.items())
    if identity not in shared.deployments:
        shared.deployments[identity] = Deployment.parse(
            {
                "model": (row.get("model") or "").strip(),
                "cluster": shared.clusters[key],
                "tp": tp,
                "pp": pp,
                **settings,
            }
        )
    return shared.deployments[identity]


def _waves(
    row: kinds.Row, deployment: Deployment, batch: int, context: int, notes: list[str]
) -> int:
    """Return the batches after one another in which as many sequences as fit are served."""
    if phase_of(row) != bands.LOAD:
        return 1
    most = int(serving_memory(deployment).max_batch(context))
    if not 0 < most < batch:
        return 1
    notes.append(f"the cache holds {most} sequences at once")
    return -(-batch // most)


def _constants(engine: str, without: kinds.Without) -> dict[str, float]:
    """Return fields of a deployment with constants that have not seen a source."""
    return {
        field: without.values[name]
        for name, field in FITTED.items()
        if name in without.values and (engine in FITTED_ENGINES or name == WIDENING)
    }


def _band(row: kinds.Row, case: _Case, source: str) -> tuple[Band, tuple[str, ...]]:
    """Return the band of a row and the classes that it is looked for in."""
    device = case.generation.deployment.cluster.device
    classes = bands.serving_classes(device, phase_of(row))
    return bands.band_of(KIND.quantity, classes, device.name, source or None), classes


def _unit(text: str) -> str:
    plain = text.strip().lower()
    if plain.startswith(("tokens/s", "output tokens/s", "tok/s")):
        return "tokens/s"
    if plain in {"s", "s end-to-end", "seconds"}:
        return "s"
    if plain.startswith("ms"):
        return "ms"
    raise ValueError(f"unknown unit {text!r}")


def _device(text: str, notes: list[str]) -> str:
    """Return the shipped device, that of the first name if there are several."""
    try:
        return device_of(text)
    except ValueError:
        pass
    bare = re.sub(r"\(.*?\)", "", text).strip()
    candidates = [bare, *re.split(r"[/\s]+", bare)]
    for candidate in candidates:
        try:
            name = device_of(candidate)
        except ValueError:
            continue
        notes.append(f"{text} taken as {name}")
        return name
    raise ValueError(f"unknown device {text!r}")


def _prefix_share(row: kinds.Row, notes: list[str]) -> float:
    """Return the share of each prompt that was cached before, by `REUSED_PROMPTS`."""
    engine, first, end = REUSED_PROMPTS
    release = said(row, "engine_release").split(".")
    if phase_of(row) != bands.LATENCY or said(row, "engine") != engine or len(release) != 2:
        return 0.0
    if not first <= (int(release[0]), int(release[1])) < end:
        return 0.0
    notes.append("the benchmark sends the same prompts again, so they are cached")
    return MOST_SHARE


def _settings(row: kinds.Row, precision: str, notes: list[str]) -> dict[str, object]:
    if weights := said(row, "weights"):
        notes.append(f"{weights} weights, 16-bit arithmetic")
        return {
            "dtype": "bf16",
            "weights": weights,
            "weight_group": number_said(row, "weight_group") or None,
            "kv_cache_bytes": 2,
        }
    dtype = precision_of(precision)
    # NVFP4 checkpoints come with an 8-bit cache.
    narrow_cache = "kv" in precision or dtype == "nvfp4"
    return {"dtype": dtype, "kv_cache_bytes": 1 if narrow_cache else 2}


KIND = Kind(
    name="serving_measured",
    columns=_COLUMNS,
    why_not_eligible=why_not_eligible,
    project=project,
    quantity="serving",
    project_without=project_without,
    phase=phase_of,
    doubt=doubt_of,
)
