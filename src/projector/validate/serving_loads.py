"""Loads that published rows of serving state: requests, their lengths, and what is reported.

What a row does not say follows from its benchmark or its engine, as
``hardware/settings/serving_rows.yaml`` says.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.config.device import Device
from projector.config.resources import settings_of
from projector.serving.deployment import Deployment
from projector.serving.generation import Generation, disaggregated_times
from projector.serving.load import Load, Scheduler
from projector.serving.simulation import LoadResult
from projector.validate.kind import Row, plain
from projector.validate.words import said

_TABLE = settings_of("serving_rows")

_NUMBER = r"\d[\d,]*\.?\d*"


@dataclass(frozen=True, slots=True)
class Reported:
    """What the value of a row is."""

    quantity: str
    """``ttft``, ``tpot``, ``e2e`` [ms]; ``output``, ``input``, ``all`` [tokens/s], ``requests``
    [1/s]; ``user`` [tokens/s of one]."""
    percentile: float | None
    """None: the mean."""
    per_gpu: bool


def reported(text: str) -> Reported:
    """Return what a unit means; a value without a statistic is a mean."""
    unit = text.strip().lower()
    found = re.search(r"p(\d\d)", unit)
    percentile = float(found[1]) if found else 50.0 if "median" in unit else None
    quantity = next(
        (name for words, name in _TABLE["quantities"].items() if re.search(words, unit)), ""
    )
    if not quantity:
        raise ValueError(f"unknown unit {text!r}")
    return Reported(quantity, percentile, "gpu" in unit)


AT_SERVER = ("ttft", "e2e")
"""Times that begin when a request comes to the server."""


def stated(row: Row) -> dict[str, str]:
    """Return what the notes of a row state as ``key=value``, apart by semicolons."""
    parts = (part.partition("=") for part in (row.get("notes") or "").split(";"))
    return {key.strip(): value.strip() for key, sign, value in parts if sign}


def number_in(text: str | None, default: float = 0.0) -> float:
    """Return the first number of a text."""
    found = re.search(_NUMBER, text or "")
    return float(found[0].replace(",", "")) if found else default


def is_decode_alone(row: Row) -> bool:
    """Whether a decode replica is timed by itself, its cache filled."""
    return "decode alone" in f"{stated(row).get('disaggregated')} {row.get('phase')}".lower()


def is_under_load(row: Row) -> bool:
    """Whether requests come and go; otherwise a batch starts and ends together."""
    phase = plain(row, "phase")
    if is_decode_alone(row):
        return False
    return bool(re.search("offline|serving|online|mlperf|server", phase))


def why_no_load(row: Row, model: str) -> str:
    """Return what a row under a load leaves out, by rule."""
    notes, phase = stated(row), plain(row, "phase")
    is_known = "mlperf" in phase and model in _TABLE["mlperf"]
    if not (is_known or (row.get("input_len") or "").strip()):
        return "no stated lengths"
    parallel = plain(row, "batch_or_concurrency")
    if "offline" in phase or parallel == "unbounded":
        return ""
    if not re.search(_NUMBER, parallel + notes.get("rate_per_s", "")):
        return "no stated batch, concurrency or rate"
    return ""


def load_of(row: Row, model: str, replicas: int, largest: int) -> Load:
    """Return the requests of one of the replicas, which holds at most ``largest`` at once."""
    notes, phase = stated(row), plain(row, "phase")
    settings = _lengths(row, notes, model)
    parallel = plain(row, "batch_or_concurrency")
    many = number_in(parallel)
    prompts = re.search(r"\d+ prompts", row.get("notes") or "")
    requests = number_in(notes.get("requests")) or number_in(prompts and prompts[0])
    if "poisson" in parallel or notes.get("arrival") == "Poisson":
        rate = number_in(notes.get("rate_per_s")) or many
        settings |= {
            "rate_per_s": rate / replicas,
            "requests": _TABLE["poisson_requests"],
            "warm_up": 0.2,
        }
        return Load.parse(settings)
    if "offline" in phase or "at once" in parallel or not many:
        if parallel == "unbounded" or not many:
            pair = f"{_whole(row, 'input_len')}x{_whole(row, 'output_len')}"
            of_engine = _TABLE.get(f"{said(row, 'engine')}_requests", {})
            many = requests or of_engine.get(pair) or _TABLE["waves"] * largest * replicas
        elif requests and not notes.get("requests", "").startswith("at once"):
            # A concurrency beside a number of requests is a closed loop.
            return _closed(settings, many / replicas, requests / replicas)
        settings |= {"arrival": "offline", "requests": math.ceil(many / replicas)}
        return Load.parse(settings)
    return _closed(settings, many / replicas, requests / replicas)


def _closed(settings: Mapping[str, Any], concurrency: float, requests: float) -> Load:
    many = max(1, math.ceil(concurrency))
    count = math.ceil(requests) or _TABLE["requests_of_concurrency"] * many
    closed = {"arrival": "closed", "concurrency": many, "requests": max(count, many), "warm_up": 0}
    return Load.parse({**settings, **closed})


def _whole(row: Row, column: str) -> int:
    return int(number_in(row.get(column)))


def _lengths(row: Row, notes: Mapping[str, str], model: str) -> dict[str, Any]:
    prompt, output = _whole(row, "input_len"), _whole(row, "output_len")
    mean = number_in(notes.get("mean_output_len"))
    if not prompt:
        usual_in, most_in, usual_out, most_out = _TABLE["mlperf"][model]
        spread = {"kind": "lognormal", "cv": _TABLE["mlperf_cv"]}
        return {
            "input_tokens": {**spread, "mean": usual_in, "high": most_in},
            "output_tokens": {**spread, "mean": mean or usual_out, "high": most_out},
        }
    source, spread_is_stated = row["source"].lower(), any("range" in key for key in notes)
    if source.startswith(tuple(_TABLE["lengths_up_to"])) and not spread_is_stated:
        return {"input_tokens": _from(1, prompt), "output_tokens": _from(1, output)}
    pairs, share = _TABLE["inferencex"]
    published = re.search("inferencex|inferencemax|aiconfigurator", source)
    if published and [prompt, output] in pairs and "requests" not in notes:
        each = (_from(int(share * tokens), tokens) for tokens in (prompt, output))
        return dict(zip(("input_tokens", "output_tokens"), each, strict=True))
    return {"input_tokens": prompt, "output_tokens": mean or max(1, output)}


def _from(low: int, high: int) -> dict[str, Any]:
    return {"kind": "uniform", "low": max(1, low), "high": max(1, high)}


def scheduler_of(row: Row, engine: str, device: Device) -> Scheduler:
    """Return how the engine fills its steps, from what a row states and its defaults.

    vLLM: 16,384 tokens offline and 8,192 as a server, 1,024 sequences (256 on A100); prompts first
    where they are not chunked. SGLang: prompts first, 8,192 tokens, 16,384 on devices of 160 GiB;
    2,048 requests. TensorRT-LLM: 2,048 sequences, 8,192 tokens, prompts whole and beside decode
    unless chunking is on, and only what can finish is admitted (engine arguments of the three).
    """
    notes, phase = stated(row), plain(row, "phase")
    parallel = plain(row, "batch_or_concurrency")
    chunked = notes.get("chunked", "")
    most = number_in(notes.get("max_batch"))
    tokens = number_in(notes.get("max_num_tokens")) or number_in(chunked)
    settings: dict[str, Any] = {}
    if engine == "tensorrt_llm":
        on = chunked == "on" or "enable_chunked_prefill" in (row.get("notes") or "")
        settings = {"max_num_seqs": 2048, "max_num_batched_tokens": 8192, "page_tokens": 32}
        settings |= {"prompts": "chunked" if on else "whole", "admission": "whole_sequence"}
    elif engine == "sglang":
        large = device.hbm_gib >= 160
        settings = {"max_num_seqs": 2048, "max_num_batched_tokens": 16384 if large else 8192}
        settings["prompts"] = "first"
    elif engine.startswith("vllm"):
        few = device.hbm_gib < 70 or "A100" in device.name
        settings = {"max_num_seqs": 256 if few else 1024}
        settings["max_num_batched_tokens"] = 16384 if "offline" in phase else 8192
        if chunked == "off":
            settings["prompts"] = "first"
        if "max seqs" in parallel or "max num seqs" in (row.get("notes") or ""):
            most = max(1024, number_in(parallel))
    source = (row.get("source") or "").lower()
    if "aiconfigurator" in source and "date" not in notes and not tokens:
        # Its own runs have the limits that it writes for an engine (`generator/rule_plugin`).
        own = _TABLE["aiconfigurator_tokens"].get(engine.removesuffix("_async"), 0)
        batch = number_in(parallel) * (engine != "sglang")
        tokens = own and own + batch + _whole(row, "input_len")
    settings |= {"max_num_seqs": int(most)} if most else {}
    settings |= {"max_num_batched_tokens": int(tokens)} if tokens else {}
    return Scheduler.parse(settings)


def value_of(what: Reported, result: LoadResult, replicas: int) -> float:
    """Return what a row reports of a load on one of its replicas."""
    if what.quantity in (*AT_SERVER, "tpot"):
        return _statistic(getattr(result, f"{what.quantity}_s"), what.percentile) * 1e3
    drawn = result.load.draw()
    if what.quantity == "user":
        rates = drawn.output_tokens[: len(result.e2e_s)].mean() / result.e2e_s
        return _statistic(rates, what.percentile)
    rated = result.load.rate_per_s is not None
    seconds = result.requests / result.requests_per_s if rated else result.makespan_s
    counts = {
        "output": drawn.output_tokens.sum(),
        "input": drawn.input_tokens.sum(),
        "all": drawn.input_tokens.sum() + drawn.output_tokens.sum(),
        "requests": result.requests,
    }
    rate = float(counts[what.quantity]) / seconds * replicas
    return rate / (result.deployment.gpus * replicas) if what.per_gpu else rate


def _statistic(values: np.ndarray, percentile: float | None) -> float:
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan
    return float(known.mean() if percentile is None else np.percentile(known, percentile))


@dataclass(frozen=True, slots=True)
class Pools:
    """Prefill and decode replicas that share a closed loop."""

    deployment: Deployment
    """A decode replica, with what prefills for it."""
    prefill: int
    decode: int
    concurrency: int
    input_len: int
    output_len: int


def pools_value(what: Reported, pools: Pools) -> float:
    """Return what a row reports of a closed loop through prefill and decode.

    So many requests decode that those and the ones that wait or prefill add up to the concurrency
    (Little's law); the rate is at most that of the prefill replicas.
    """
    most = max(1, math.ceil(pools.concurrency / pools.decode))
    batch = np.unique(np.geomspace(1, most, 16).round().astype(np.int64))
    sizes = (int(each) for each in batch)
    times = disaggregated_times([
        Generation(pools.deployment, size, pools.input_len, pools.output_len) for size in sizes
    ])  # fmt: skip
    limit = float(pools.prefill * times.prefill_requests_per_s[0])
    ttft_s = float(times.ttft_s[0])
    decoding = np.linspace(0.0, pools.concurrency, 1001)[1:]
    token_s = np.interp(decoding / pools.decode, batch, times.token_s)
    rate = decoding / (token_s * (pools.output_len - 1))
    # Beyond the rate of prefill, further requests wait for it.
    fits = (decoding + rate * ttft_s <= pools.concurrency) & (rate <= limit)
    row = int(np.flatnonzero(fits)[-1]) if fits.any() else 0
    requests_per_s = float(rate[row])
    if what.quantity == "tpot":
        return float(token_s[row]) * 1e3
    if what.quantity == "ttft":
        runs = pools.deployment.runs
        queued_s = max(ttft_s, float(pools.concurrency - decoding[row]) / requests_per_s)
        if what.percentile is None:
            # All of the first wave come together and wait for prefill.
            burst_s = max(queued_s, ttft_s + pools.concurrency / 2.0 / limit)
            queued_s += (burst_s - queued_s) / _TABLE["requests_of_concurrency"]
        return queued_s * 1e3 + runs.request_ms + runs.handoff_ms
    counts = {"output": pools.output_len, "input": pools.input_len, "requests": 1}
    if what.quantity not in counts:
        raise ValueError(f"{what.quantity} of prefill and decode apart is not projected")
    gpus = pools.prefill * pools.deployment.prefill_side.gpus + pools.decode * pools.deployment.gpus
    total = requests_per_s * counts[what.quantity]
    return total / gpus if what.per_gpu else total
