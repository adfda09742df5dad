"""The report of `project_serving`, for one screen."""

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from projector.report.terminal.tables import (
    DIM,
    Fitting,
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


def serve_report(result: ServingProjection) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    return [
        title(result),
        setup(result),
        Text(),
        verdict(result),
        *headline(result),
        Text(),
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
    load = {"batch": f"{result.batch:,}", "prompt": f"{traffic.context:,} tokens"}
    load["output"] = f"{traffic.output:,} tokens" if traffic.output else "not stated"
    if result.prefill.sequences > 1:
        load["prompts together"] = f"{result.prefill.sequences:,}"
    text = Text()
    for pairs in (split, load):
        text.append("\n" if text else "")
        for index, (name, value) in enumerate(pairs.items()):
            text.append(f"{'  ' if index else ''}{name} ", style=DIM).append(value)
    return Padding(text, (0, 0, 0, 2))


def verdict(result: ServingProjection) -> Text:
    """Say whether the batch fits, and what would."""
    style = "green" if result.fits else "red"
    line = Text("FITS" if result.fits else "DOES NOT FIT", style=f"bold {style}")
    longest = f"{result.traffic.longest:,} tokens"
    if result.max_batch:
        rest = f"  largest batch of {longest}: {result.max_batch:,}"
    else:
        over = result.peak_bytes - result.memory.usable_bytes - result.memory.reserve_bytes
        rest = f"  {gib(over)} GiB over: not even one sequence of {longest} fits"
    if result.max_context:
        rest += f"; longest prompt of this batch: {result.max_context:,} tokens"
    elif result.max_batch:
        rest += "; no prompt is short enough for this batch"
    return line.append(rest, style="not bold default")


def headline(result: ServingProjection) -> list[RenderableType]:
    """Return the numbers that people ask for first, and what limits them."""
    line = Text()
    words = result.band.words
    for text in (
        f"TTFT {milliseconds(result.ttft_s)} ms",
        f"TPOT {milliseconds(result.tpot_s)} ms",
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU",
        f"{result.tokens_per_s_per_user:,.1f} tokens/s/user",
    ):
        line.append("  " if line else "").append(text, style="bold")
    limit = f"prefill limited by {result.prefill.bound}, decode by {result.decode.bound}"
    if words:
        limit += f"; times {words} for 68 %"
    if result.prompts_s > 0.0:
        limit += f"; prompts add {to_ms(result.prompts_s):.2f} ms to each token"
    return [line, Text(limit)]


def breakdown(result: ServingProjection) -> list[RenderableType]:
    """Return where both steps go; the rows add up to the totals."""
    prefill, decode = result.prefill, result.decode
    note = (
        f"prefill of {prefill.sequences:,} x {prefill.new_tokens:,}; decode of "
        f"{decode.sequences:,} at {decode.cached_tokens:,} cached"
    )
    tables = Fitting(_steps(prefill, decode, words=True), _steps(prefill, decode, words=False))
    return section("Time of one step", note, tables)


def _steps(prefill: StepProjection, decode: StepProjection, *, words: bool) -> Table:
    """Return the terms of both steps; where there is room, with what they are in words."""
    table = grid("=term", "prefill ms", "share", "decode ms", "share", "|")
    largest = max(decode.breakdown_s.values())
    for name, seconds in decode.breakdown_s.items():
        if seconds > 0.0 or prefill.breakdown_s[name] > 0.0:
            what = f" {TERMS.get(name, '')}" if words else ""
            term = Text(f"{name:9}").append(what, style=DIM)
            cells = (*_cells(prefill, name), *_cells(decode, name))
            add_row(table, term, *cells, bar(seconds / largest))
    totals = (milliseconds(prefill.time_s), percent(1.0), milliseconds(decode.time_s), percent(1.0))
    add_row(table, "total", *totals, "", style="bold")
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
