"""Rows of serving: prefill and decode of a stated batch, loads, prefill and decode apart.

Units, as printed: ``s end-to-end`` is prompt to last token of the whole batch; ``tokens/s`` counts
the generated tokens of the batch over that time (of prefill alone the tokens of the prompts), with
``/GPU`` each device's share; ``ms`` is one decode step, or the time to the first token of a prefill
row. A stated batch is that of all devices; replicas share it. Loads are simulated
(`projector.validate.serving_loads`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from projector.config import bands
from projector.config.bands import Band
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.engine import GENERIC, engines
from projector.config.model_file import load_model
from projector.config.resources import settings_of
from projector.errors import ProjectorError
from projector.serving.deployment import MTP, Deployment, SpeculativeConfig
from projector.serving.generation import Generation, GenerationTimes, generation_times
from projector.serving.load import Load, Scheduler
from projector.serving.memory import serving_memory
from projector.serving.simulation import LoadResult, Replica, longest_of, replica_of, serve_all
from projector.validate import kind as kinds
from projector.validate import serving_loads as loads
from projector.validate.kind import Kind, whole
from projector.validate.names import device_of, precision_of
from projector.validate.words import number_said, said

_TABLE = settings_of("serving_rows")

WIDENING = "widening_share"

FITTED: Mapping[str, tuple[str, list[str]]] = _TABLE["fitted"]
"""Fitted constant of an engine -> its field, and the engines that share it."""

MOST_SHARE = 0.9999
"""All of a prompt but its last page."""

_DEPLOYMENT = ("model", "gpu", "n_gpus", "precision", "tp", "pp")
_LOAD = ("phase", "batch_or_concurrency", "input_len", "output_len")
_COLUMNS = (*_DEPLOYMENT, *_LOAD, "value", "unit")

_MAX_LENGTH = 1 << 27


@dataclass(frozen=True, slots=True)
class Case:
    """What a row times, and what is projected for it."""

    work: Generation | Load | loads.Pools
    measured: float
    unit: str
    """Of a batch ``s``, ``ms`` or ``tokens/s``; of a load that of the row (`loads.reported`)."""
    replicas: int
    per: int
    """Devices that a rate is divided by."""
    note: str
    deployment: Deployment
    scheduler: Scheduler = Scheduler()  # noqa: RUF009  # immutable
    is_decode_alone: bool = False


@dataclass(frozen=True, slots=True)
class Shared:
    """What rows of a table have in common, read once."""

    clusters: dict[tuple[str, int], ClusterConfig] = field(default_factory=dict)
    deployments: dict[tuple[object, ...], Deployment] = field(default_factory=dict)
    replicas: dict[tuple[int, Scheduler, int], Replica] = field(default_factory=dict)


_model = cache(load_model)


def _model_name(row: kinds.Row) -> str:
    try:
        return _model((row.get("model") or "").strip()).name
    except ProjectorError:
        return ""


def why_not_eligible(row: kinds.Row) -> str:
    """Return what a row does not state, or measures beside time."""
    notes = loads.stated(row)
    if (row.get("unit") or "").strip().startswith("W "):
        return "power"
    drafts = notes.get("speculative", "none")
    if drafts != "none" and not loads.number_in(notes.get("acceptance")):
        return "speculation without its acceptance"
    unsplit = "disaggregated" in notes and not (row.get("n_gpus") or "").strip()
    if unsplit or re.search(r"layout[\w ]* not stated", row.get("notes") or ""):
        return "no stated layout"
    if loads.is_under_load(row):
        return loads.why_no_load(row, _model_name(row))
    phase = kinds.plain(row, "phase")
    if "prefill" not in phase and "decode" not in phase:
        return "neither prefill, decode nor a load"
    if not loads.number_in(row.get("batch_or_concurrency")):
        return "no stated batch"
    return ""


def phase_of(row: kinds.Row) -> str:
    """Return what a row times: a batch to its last token, its parts, or a load."""
    phase = kinds.plain(row, "phase")
    if loads.is_under_load(row):
        first = re.search("ttft|first token", (row.get("unit") or "").lower())
        return bands.FIRST if first else bands.LOAD
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
    shared = Shared()
    pairs = list(zip(rows, constants, strict=True))
    read = kinds.read_cases(pairs, lambda pair: read_case(pair[0], shared, pair[1]))
    cases = [case for case in read if not isinstance(case, str)]
    if not cases:
        return [kinds.failed(str(why)) for why in read]
    values = iter(_values(cases, shared))
    outcomes = []
    for (row, without), case in zip(pairs, read, strict=True):
        predicted = case if isinstance(case, str) else next(values)
        if isinstance(case, str) or isinstance(predicted, str):
            outcomes.append(kinds.failed(str(predicted)))
            continue
        band, classes = _band(row, case, without.source)
        outcomes.append(kinds.Outcome(
            kinds.OK, predicted, case.measured, predicted / case.measured,
            mark=kinds.FROM_RULE if case.note else kinds.FROM_ROW, note=case.note,
            is_inverse=case.unit != "s" and not case.unit.strip().lower().startswith("ms"),
            band=band, classes=classes,
        ))  # fmt: skip
    return outcomes


def _values(cases: Sequence[Case], shared: Shared) -> list[float | str]:
    """Return the projected value of each case in the unit of its row, or why there is none."""
    batches = [case.work for case in cases if isinstance(case.work, Generation)]
    found = generation_times(batches) if batches else GenerationTimes(np.zeros(0), np.zeros(0))
    times_s = zip(found.prefill_s.tolist(), found.decode_s.tolist(), strict=True)
    results: dict[tuple[object, ...], LoadResult] = {}
    values: list[float | str] = []
    for case in cases:
        try:
            if isinstance(case.work, Generation):
                values.append(_in_unit(case, case.work, *next(times_s)))
                continue
            what = loads.reported(case.unit)
            if isinstance(case.work, loads.Pools):
                values.append(loads.pools_value(what, case.work))
                continue
            key = (id(case.deployment), case.scheduler, case.work)
            if key not in results:
                results[key] = _served(case, case.work, shared)
            values.append(loads.value_of(what, results[key], case.replicas))
        except (ValueError, ProjectorError) as error:
            values.append(str(error))
    return values


def _served(case: Case, load: Load, shared: Shared) -> LoadResult:
    drawn = load.draw()
    longest = longest_of(drawn)
    key = (id(case.deployment), case.scheduler, longest)
    if key not in shared.replicas:
        shared.replicas[key] = replica_of(case.deployment, case.scheduler, longest)
    return serve_all([(shared.replicas[key], load, drawn)], threads=1)[0]


def _in_unit(case: Case, item: Generation, prefill_s: float, decode_s: float) -> float:
    if case.is_decode_alone:
        prefill_s = 0.0
    if case.unit == "s":
        return prefill_s + decode_s
    if case.unit == "tokens/s":
        tokens = item.output_len if item.output_len > 1 else item.input_len
        return item.batch * case.replicas * tokens / (prefill_s + decode_s) / case.per
    if item.output_len < 2:
        return prefill_s * 1e3
    return decode_s / (item.output_len - 1) * 1e3


def read_case(row: kinds.Row, shared: Shared, without: kinds.Without) -> Case:
    """Return a row as it is projected; raise what `kind.read_cases` takes as its failure."""
    notes: list[str] = []
    says = loads.stated(row)
    measured = kinds.above_zero(row, "value")
    layout = _layout(row, says, notes)
    of_replica = layout["tp"] * layout["pp"] * layout["attention_dp"]
    gpus = whole(row, "n_gpus", _MAX_LENGTH, of_replica)
    under_load = loads.is_under_load(row)
    pools = _pools(says) if says.get("disaggregated") and under_load else None
    replicas = gpus // of_replica
    if replicas * of_replica != gpus and pools is None:
        names = "tp x pp" if layout["attention_dp"] == 1 else "tp x attention_dp x pp"
        raise ValueError(f"{gpus} GPUs are not a whole number of replicas of {names} {of_replica}")
    device = load_device(_device(row.get("gpu") or "", notes))
    scheduler = loads.scheduler_of(row, engine_of(row), device)
    limits: dict[str, Any] = {"max_step_tokens": scheduler.max_num_batched_tokens,
              "max_sequences": scheduler.max_num_seqs} if under_load else {}  # fmt: skip
    if pools is not None:
        limits = {"disaggregated": {"prefill": pools[1]}}
        layout = pools[0]
    deployment = _deployment(row, device, layout | limits, shared, without, notes)
    if pools is not None:
        output = loads.number_in(says.get("mean_output_len")) or whole(row, "output_len", 1 << 24)
        many = int(loads.number_in(row.get("batch_or_concurrency")))
        lengths = whole(row, "input_len", _MAX_LENGTH), max(2, round(output))
        work: Any = loads.Pools(deployment, *pools[2], many, *lengths)
        return Case(work, measured, row.get("unit") or "", 1, 1, "; ".join(notes), deployment)
    if under_load:
        longest = sum(int(loads.number_in(row.get(name))) for name in ("input_len", "output_len"))
        most = int(serving_memory(deployment).max_batch(longest or 1024))
        largest = max(1, min(scheduler.max_num_seqs * deployment.attention_dp, most))
        work = loads.load_of(row, _model_name(row), replicas, largest)
        unit = row.get("unit") or ""
        loads.reported(unit)
        if not whole(row, "input_len", _MAX_LENGTH, 1) > 1:
            notes.append("lengths of the MLPerf data set")
        return Case(work, measured, unit, replicas, 1, "; ".join(notes), deployment, scheduler)
    text = (row.get("batch_or_concurrency") or "").strip()
    total = int(loads.number_in(text)) * (gpus if "per gpu" in text.lower() else 1)
    if total > _MAX_LENGTH:
        raise ValueError(f"batch_or_concurrency is {text!r}, not a count")
    batch = -(-total // replicas)
    given_in, given_out = kinds.integer(row, "input_len"), kinds.integer(row, "output_len")
    usual_in, usual_out = _TABLE["usual_lengths"]
    input_len = whole(row, "input_len", _MAX_LENGTH, usual_in)
    prefill_only = "decode" not in kinds.plain(row, "phase") and given_out is None
    output_len = whole(row, "output_len", _MAX_LENGTH, 1 if prefill_only else usual_out)
    if given_in is None or (given_out is None and not prefill_only):
        notes.append(f"lengths not stated: {input_len} tokens in, {output_len} out")
    per = gpus if "gpu" in (row.get("unit") or "").lower() else 1
    return Case(
        Generation(deployment, batch, input_len, output_len), measured,
        _unit(row.get("unit") or ""), replicas, per, "; ".join(notes), deployment,
        is_decode_alone=loads.is_decode_alone(row),
    )  # fmt: skip


def _layout(row: kinds.Row, says: Mapping[str, str], notes: list[str]) -> dict[str, int]:
    """Return how a replica is split; ``tp`` is that of attention.

    Experts divided over more devices than that take attention groups along. TensorRT-LLM's page of
    maximum loads runs mixtures of experts with attention data parallelism (its llm_options.yml); we
    take experts as divided over all.
    """
    tp, pp = whole(row, "tp", _MAX_LENGTH, 1), whole(row, "pp", _MAX_LENGTH, 1)
    ep = max(1, int(loads.number_in(says.get("ep"))))
    groups = int(loads.number_in(says.get("attention_dp"))) or max(1, ep // tp)
    unsaid = "ep" not in says or not re.match(r"\d", says["ep"])
    tables = said(row, "engine") == "tensorrt_llm" and "PyTorch" in (row.get("framework") or "")
    unsaid &= "attention_dp" not in says and tables and loads.is_under_load(row)
    if unsaid and tp > 1 and _model((row.get("model") or "").strip()).moe is not None:
        notes.append(f"attention groups and experts over all {tp} devices")
        return {"tp": 1, "pp": pp, "attention_dp": tp, "ep": tp}
    return {"tp": tp, "pp": pp, "attention_dp": groups, "ep": ep}


def _pools(says: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int], tuple[int, int]]:
    """Return the split of a decode and of a prefill replica, and how many there are of both."""
    counts = re.search(r"(\d+) prefill \+ (\d+) decode", says["disaggregated"])
    sides, many = [], []
    for side in ("decode", "prefill"):
        split = {
            name: int(loads.number_in(says.get(f"{side}_{name}"), 1.0))
            for name in ("tp", "attention_dp", "ep", "workers")
        }
        many.append(split.pop("workers"))
        sides.append({**split, "pp": 1})
    if "decode_tp" not in says:
        raise ValueError("the layouts of prefill and decode are not stated")
    workers = (int(counts[1]), int(counts[2])) if counts else (many[1], many[0])
    return sides[0], sides[1], workers


def _deployment(
    row: kinds.Row,
    device: Device,
    layout: Mapping[str, Any],
    shared: Shared,
    without: kinds.Without,
    notes: list[str],
) -> Deployment:
    """Return what serves; rows that agree share it, so that it is read once."""
    precision = kinds.plain(row, "precision")
    gpus = layout["tp"] * layout["pp"] * layout["attention_dp"]
    key = (device.name, gpus)
    if key not in shared.clusters:
        nodes = -(-gpus // ClusterConfig.parse({"device": device}).gpus_per_node)
        shared.clusters[key] = ClusterConfig.parse({"device": device, "nodes": nodes})
    settings = _settings(row, precision, notes)
    if re.search("fp4|int4", f"{settings['dtype']} {settings.get('weights')}"):
        begins = (name for name in _TABLE["narrow_layers"] if _model_name(row).startswith(name))
        settings["narrow_layers"] = _TABLE["narrow_layers"].get(next(begins, ""), "all")
    says = loads.stated(row)
    engine = engine_of(row)
    settings |= {"engine": engine, "prefix_share": _prefix_share(row, notes)}
    stated = says.get("kv_cache", "")
    if re.match("fp8|bf16|fp16", stated):
        settings["kv_cache_bytes"] = 1 if stated.startswith("fp8") else 2
    elif engine in _TABLE["narrow_cache"] and str(settings["dtype"]).startswith("fp8"):
        settings["kv_cache_bytes"] = 1
        notes.append("8-bit cache, as FP8 checkpoints of the engine have")
    if engine == "tensorrt_llm" and loads.is_under_load(row):
        settings["gpu_memory_utilization"] = _TABLE["tensorrt_llm_memory"]
    if says.get("graphs", "").startswith("off"):
        settings["decode_graph"] = False
    if (
        layout["attention_dp"] > 1
        and layout["ep"] <= _TABLE["gathered"]
        and "WIDEEP" not in str(says)
    ):
        settings["dispatcher"] = "allgather"
    constants = {
        field: without.values[name]
        for name, (field, of) in FITTED.items()
        if name in without.values and engine in of
    }
    if "mlperf" in kinds.plain(row, "phase"):
        constants["request_ms"] = 0.0  # LoadGen calls the engine itself
    settings["widening_share"] = without.values.get(WIDENING)
    if steps := loads.number_in(says.get("num_scheduler_steps")):
        # The host schedules so many steps at once.
        constants["step_us"] = constants.get("step_us", engines()[engine].step_us) / steps
    settings["engine_constants"] = constants
    if "redundant experts" in (row.get("notes") or ""):
        settings["expert_load"] = 1.0
    drafts = _speculative(says)
    told = (row.get("model"), key, *sorted(layout.items(), key=str), *settings.items(), drafts)
    identity = tuple(map(str, told))
    if identity not in shared.deployments:
        model = _model((row.get("model") or "").strip())
        if drafts is not None:
            model = model.model_copy(update={"mtp_num_layers": 1})
        parts = {"model": model, "cluster": shared.clusters[key], "speculative": drafts}
        shared.deployments[identity] = Deployment.parse({**parts, **layout, **settings})
    return shared.deployments[identity]


def engine_of(row: kinds.Row) -> str:
    """Return the engine of a row, by its release."""
    engine = said(row, "engine") or GENERIC
    later = engine == "vllm" and _release(row) >= tuple(_TABLE["async_vllm"])
    return "vllm_async" if later else engine


def _release(row: kinds.Row) -> tuple[int, ...]:
    """Return the first two numbers of the engine's release; none where it is not stated."""
    release = said(row, "engine_release").split(".")
    return (int(release[0]), int(release[1])) if len(release) == 2 else ()


def _speculative(says: Mapping[str, str]) -> SpeculativeConfig | None:
    """Return the drafts of the model's own module, with the acceptance that yields what is stated.

    A stated number above 1 is that of the tokens of a step.
    """
    drafts = says.get("speculative", "none")
    if drafts == "none":
        return None
    count = int(loads.number_in(drafts, 1.0))
    gained = loads.number_in(says.get("acceptance"))
    share = np.linspace(0.0, 1.0, 1001)
    tokens = np.array([sum(each**power for power in range(count + 1)) for each in share])
    found = gained if gained < 1.0 else float(np.interp(gained, tokens, share))
    return SpeculativeConfig(tokens=count, acceptance=found, draft=MTP)


def _band(row: kinds.Row, case: Case, source: str) -> tuple[Band, tuple[str, ...]]:
    device, experts = case.deployment.cluster.device, case.deployment.model.moe is not None
    classes = bands.serving_classes(device, phase_of(row), experts)
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
    bare = re.sub(r"\(.*?\)", "", text).strip()
    for candidate in (text, bare, *re.split(r"[/\s]+", bare)):
        try:
            name = device_of(candidate)
        except ValueError:
            continue
        if candidate != text:
            notes.append(f"{text} taken as {name}")
        return name
    raise ValueError(f"unknown device {text!r}")


def _prefix_share(row: kinds.Row, notes: list[str]) -> float:
    """Return the share of each prompt that was cached before."""
    first, end = map(tuple, _TABLE["vllm_reuses_prompts"])
    if phase_of(row) != bands.LATENCY or said(row, "engine") != "vllm":
        return 0.0
    if not first <= _release(row) < end:
        return 0.0
    notes.append("the benchmark sends the same prompts again, so they are cached")
    return MOST_SHARE


def _settings(row: kinds.Row, precision: str, notes: list[str]) -> dict[str, object]:
    if weights := said(row, "weights"):
        notes.append(f"{weights} weights, 16-bit arithmetic")
        group = number_said(row, "weight_group") or None
        return {"dtype": "bf16", "weights": weights, "weight_group": group, "kv_cache_bytes": 2}
    dtype: str = precision_of(precision)
    name = _model_name(row)
    of_library = said(row, "engine") == "tensorrt_llm" and name.startswith("Qwen3")
    if dtype == "fp8" and name.startswith(tuple(_TABLE["block_scaled"])) and not of_library:
        dtype = "fp8_block"
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
