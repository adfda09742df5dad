"""The report of `project_serving`, for one screen."""

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.bands import DECODE, PREFILL
from projector.report.terminal.grid import Grid
from projector.report.terminal.lines import entries, pairs
from projector.report.terminal.tables import (
    DIM,
    add_row,
    bar,
    gib,
    grid,
    heading,
    milliseconds,
    percent,
    plain,
    section,
)
from projector.serving.projection import ServingProjection, StepProjection, degrees
from projector.units import to_gib, to_ms

TERMS = {
    "gemm": "matrix multiplication",
    "attention": "attention and its cache",
    "other": "norms, activations, routing",
    "tp_comm": "tensor-parallel communication",
    "ep_comm": "expert-parallel communication",
    "pp_comm": "sends between stages",
    "launch": "gaps between kernels",
    "host": "waiting for the host",
}
"""What the terms of a step are."""


MOST_SHOWN = 12
"""Points of a front that are listed; a page and ``--json`` have all."""


def serve_report(result: ServingProjection) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    return [
        title(result),
        setup(result),
        Text(),
        verdict(result),
        *headline(result),
        Text(),
        *front(result),
        *load(result),
        *breakdown(result),
        *memory(result),
        *filled_in(result),
    ]


def title(result: ServingProjection) -> Text:
    """Name model, devices and types in one line."""
    deployment = result.deployment
    line = Text(deployment.model.name, style="bold")
    line.append(f" on {result.gpus:,} x {deployment.cluster.device.name}", style="bold")
    line.append(f", {deployment.dtype.upper()}", style="not bold")
    return line


def setup(result: ServingProjection) -> Padding:
    """List how the replica is split, and its load, a line each."""
    split = {
        name.upper().replace("_", " "): f"{value:,}"
        for name, value in degrees(result.deployment).items()
        if value > 1 or name in {"tp", "pp"}
    }
    traffic = result.traffic
    requests = {"batch": f"{result.batch:,}", "prompt": f"{traffic.context:,} tokens"}
    requests["output"] = f"{traffic.output:,} tokens" if traffic.output else "not stated"
    if result.prefill.sequences > 1:
        requests["prompts together"] = f"{result.prefill.sequences:,}"
    return Padding(Group(pairs(split.items()), pairs(requests.items())), (0, 0, 0, 2))


def verdict(result: ServingProjection) -> Text:
    """Say whether the batch fits, and what would."""
    style = "green" if result.fits else "red"
    line = Text("FITS" if result.fits else "DOES NOT FIT", style=f"bold {style}")
    return line.append(f"  {verdict_text(result)}", style="not bold default")


def verdict_text(result: ServingProjection) -> str:
    """Say what fits."""
    longest = f"{result.traffic.longest:,} tokens"
    if result.max_batch:
        text = f"largest batch of {longest}: {result.max_batch:,}"
    else:
        over = result.peak_bytes - result.memory.usable_bytes - result.memory.reserve_bytes
        text = f"{gib(over)} GiB over: not even one sequence of {longest} fits"
    if result.max_context:
        text += f"; longest prompt of this batch: {result.max_context:,} tokens"
    elif result.max_batch:
        text += "; no prompt is short enough for this batch"
    return text


def answer_text(result: ServingProjection) -> str:
    """Say latencies and throughput in a sentence."""
    return (
        f"First token after {milliseconds(result.ttft_s)} ms, then one every "
        f"{milliseconds(result.tpot_s)} ms; {result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, "
        f"{result.tokens_per_s_per_user:,.1f} tokens/s/user."
    )


def headline(result: ServingProjection) -> list[RenderableType]:
    """Return the numbers that people ask for first, and what limits them."""
    figures = (
        f"TTFT {milliseconds(result.ttft_s)} ms",
        f"TPOT {milliseconds(result.tpot_s)} ms",
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU",
        f"{result.tokens_per_s_per_user:,.1f} tokens/s/user",
    )
    limit = f"prefill limited by {result.prefill.bound}, decode by {result.decode.bound}"
    parts: list[RenderableType] = [entries(figures, "bold"), Text(limit)]
    if bands := bands_text(result):
        parts.append(Text(bands))
    if result.prompts_s > 0.0:
        parts.append(Text(f"prompts of others add {to_ms(result.prompts_s):.2f} ms to each token"))
    price = result.usd_per_million_tokens
    if price is not None:
        rent = f"{result.traffic.usd_per_gpu_hour:,.2f} USD a GPU-hour"
        parts.append(Text(f"{price:,.3f} USD per million generated tokens, at {rent}"))
    return [*parts, *(Text(text) for text in _extras(result))]


def bands_text(result: ServingProjection) -> str:
    """Say where measured times lie around the projected ones; empty if nothing is known."""
    phases = {"TTFT": PREFILL, "TPOT": DECODE}
    bands = {name: result.band_of(phase).words for name, phase in phases.items()}
    known = ", ".join(f"{name} {words}" for name, words in bands.items() if words)
    return f"68 % of measured times lie around these: {known}" if known else ""


def _extras(result: ServingProjection) -> list[str]:
    """Say what speculation and prefill on devices of its own do."""
    found = result.to_dict()
    texts = []
    if "speculative" in found:
        part = found["speculative"]
        texts.append(
            f"a step verifies proposed tokens: {part['tokens_per_step']:.2f} tokens in "
            f"{part['verify_ms']:.2f} ms, after {part['draft_ms']:.2f} ms for proposing them"
        )
    if "disaggregated" in found:
        part = found["disaggregated"]
        texts.append(
            f"{part['prefill_replicas']} prefill and {part['decode_replicas']} decode replicas "
            f"({part['prefill_gpus']:.0f} and {part['decode_gpus']:.0f} GPUs); the cache takes "
            f"{part['transfer_ms']:.1f} ms, of which {part['exposed_ms']:.1f} ms show"
        )
    return texts


def front(result: ServingProjection) -> list[RenderableType]:
    """Return throughput against speed, where a batch or a split was left open."""
    found = result.front
    if found is None or not len(found.rows):
        return []
    table = grid("=split", "GPUs", "batch", "TTFT ms", "TPOT ms", "tok/s/user", "tok/s/GPU", "=")
    places = np.arange(len(found.rows))
    if len(places) > MOST_SHOWN:
        spread = np.linspace(0, len(places) - 1, MOST_SHOWN - 1).round().astype(np.int64)
        places = np.union1d(spread, [found.knee])
    for place in places.tolist():
        point = found.point(int(found.rows[place]))
        split = point["overrides"]
        words = [f"{name} {split[name]}" for name in split if name != "load.batch"]
        add_row(
            table,
            " ".join(words).replace("attention_dp", "adp"),
            f"{point['gpus']:,}",
            f"{point['batch']:,}",
            f"{point['ttft_ms']:,.0f}",
            f"{point['tpot_ms']:,.1f}",
            f"{point['tokens_per_s_per_user']:,.1f}",
            f"{point['tokens_per_s_per_gpu']:,.0f}",
            "knee" if place == found.knee else "",
        )
    more = f", {len(places)} of {len(found.rows)} shown" if len(places) < len(found.rows) else ""
    note = f"{found.fitting:,} of {len(found.grid):,} points fit{more}"
    return section("Throughput against speed", note, table)


def load(result: ServingProjection) -> list[RenderableType]:
    """Return a simulated load: percentiles of the users, and replicas for what is promised."""
    if result.under_load is None:
        return []
    heads, rows, text = under_load_rows(result)
    table = grid(f"={heads[0]}", *heads[1:])
    for row in rows:
        add_row(table, str(row[0]), *(f"{value:,.1f}" for value in row[1:]))
    return [
        heading(f"Under {result.traffic.rate_per_s:g} requests/s"),
        Padding(Text(text), (0, 0, 0, 2)),
        Padding(table, (0, 0, 1, 2)),
    ]


def under_load_rows(result: ServingProjection) -> tuple[list[str], list[list[Any]], str]:
    """Return heads and rows of the percentiles under a load, and what else it looks like."""
    simulated = result.under_load
    assert simulated is not None
    percentiles = (50, 90, 99)
    names = {"ttft": "first token ms", "tpot": "further token ms", "e2e": "last token ms"}
    rows = [
        [words, *(to_ms(simulated.percentile_s(name, each)) for each in percentiles)]
        for name, words in names.items()
    ]
    text = (
        f"serves {simulated.requests_per_s:,.2f} requests/s and "
        f"{simulated.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, with {simulated.mean_batch:,.1f} "
        f"sequences on average; its cache is at most {percent(simulated.cache_peak)} full"
    )
    if simulated.saturated:
        text += "; requests arrive faster than they are served"
    found = result.capacity
    if found is None:
        text = f"One replica {text}"
    else:
        limits = ", ".join(
            f"{name.upper()} {limit:g} ms" for name, limit in found.targets.limits_ms.items()
        )
        kept = f"{limits} for {found.targets.percentile:g} % of requests"
        if found.replicas is None:
            text = f"No number of replicas keeps {kept}. At the smallest rate tried one {text}"
        else:
            keep = "replica keeps" if found.replicas == 1 else "replicas keep"
            text = (
                f"{found.replicas:,} {keep} {kept}, on {found.gpus:,} GPUs. One replica can take "
                f"up to {found.replica_rate_per_s:,.2f} requests/s. Each {text}"
            )
    return ["", *(f"p{each}" for each in percentiles)], rows, text


def breakdown(result: ServingProjection) -> list[RenderableType]:
    """Return where both steps go; the rows add up to the totals."""
    prefill, decode = result.prefill, result.decode
    note = (
        f"prefill of {prefill.sequences:,} x {prefill.new_tokens:,}; decode of "
        f"{decode.sequences:,} at {decode.cached_tokens:,} cached"
    )
    return section("Time of one step", note, _steps(prefill, decode))


def _steps(prefill: StepProjection, decode: StepProjection) -> Grid:
    """Return the terms of both steps, with what they are in words."""
    table = grid("=term", "<", "prefill ms", "share", "decode ms", "share", "|")
    largest = max(decode.breakdown_s.values())
    for name, seconds in decode.breakdown_s.items():
        if seconds > 0.0 or prefill.breakdown_s[name] > 0.0:
            what = Text(TERMS.get(name, ""), DIM)
            cells = (*_cells(prefill, name), *_cells(decode, name))
            add_row(table, name, what, *cells, bar(seconds / largest))
    totals = (milliseconds(prefill.time_s), percent(1.0), milliseconds(decode.time_s), percent(1.0))
    add_row(table, "total", "", *totals, "", style="bold")
    return table


def _cells(step: StepProjection, name: str) -> tuple[str, str]:
    seconds = step.breakdown_s[name]
    return milliseconds(seconds), percent(seconds / step.time_s)


def memory(result: ServingProjection) -> list[RenderableType]:
    """Return what lies on the fullest device."""
    held = result.memory
    usable = held.usable_bytes + held.reserve_bytes
    table = grid("=held", "GiB", "share", "|", "<")
    rows = (
        ("weights", held.weights_bytes, ""),
        ("cache", result.kv_cache_bytes, _per_token(result)),
        ("workspace", held.workspace_bytes, "activations, logits, buffers"),
        ("reserve", held.reserve_bytes, "driver, communicators"),
    )
    for name, num_bytes, note in rows:
        share = num_bytes / usable
        add_row(table, name, gib(num_bytes), percent(share), bar(share), Text(note, style=DIM))
    share = result.peak_bytes / usable
    add_row(table, "total", gib(result.peak_bytes), percent(share), "", "", style="bold")
    device_gib = float(result.deployment.cluster.device.hbm_gib)
    note = (
        f"fullest of {result.gpus:,}; the engine takes {to_gib(usable):,.1f} of {device_gib:,.0f}"
    )
    return section("Memory of one GPU", note, table)


def _per_token(result: ServingProjection) -> str:
    return f"{result.memory.cache_bytes_per_token / 1024:,.1f} KiB a token"


def filled_in(result: ServingProjection) -> list[RenderableType]:
    """List what was chosen or left at its default."""
    text = Text(style=DIM)
    provenance = result.provenance
    chosen = [f"{key} = {value}" for key, value in provenance["derived"].items()]
    if chosen:
        text.append("derived: ", style="italic").append("; ".join(chosen)).append("\n")
    stated = [f"{key}={plain(value)}" for key, value in provenance["defaults"].items()]
    text.append("defaults: ", style="italic").append("  ".join(stated))
    return [heading("Filled in"), Padding(text, (0, 0, 0, 2))]
