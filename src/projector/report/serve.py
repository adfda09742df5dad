"""A served load: the answer, throughput against speed, a simulated load, time and memory."""

from collections.abc import Mapping

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.arrays import Floats
from projector.config.bands import DECODE, PREFILL
from projector.config.resources import hardware_table
from projector.errors import ConfigError
from projector.report.document import Column, Document, Media, Section, Table, prose, words
from projector.report.figures import figure as fig
from projector.report.speed_front import Curve, chart, draw
from projector.report.terminal.grid import DIM, entries, gib, milliseconds, pairs, percent, plain
from projector.serving.deployment import degrees
from projector.serving.projection import ServingProjection
from projector.serving.rates import ServingFront
from projector.units import MILLISECOND, to_gib, to_ms

TERMS: Mapping[str, str] = hardware_table("report_words.yaml")["serving_terms"]
"""What the terms of a step are."""

MOST_SHOWN = 12
"""Points of a front that a terminal lists; a page and ``--json`` have all."""


def serve_report(result: ServingProjection) -> Document:
    """Return the report of a load."""
    deployment, traffic = result.deployment, result.traffic
    title = f"Serving {deployment.model.name} on {result.gpus:,} x {deployment.cluster.device.name}"
    output = f" and {traffic.output:,} generated" if traffic.output else ""
    fits = verdict_text(result)
    lead = (
        f"Batch {result.batch:,}, prompts of {traffic.context:,} tokens{output}. "
        f"{_answer(result)} {fits[:1].upper()}{fits[1:]}."
    )
    if bands := bands_text(result):
        lead += f" {bands}."
    sections = [*_front(result), *_load(result), _steps(result), _memory(result)]
    return Document(title, lead, [*sections, *_filled_in(result)], _head(result))


def _head(result: ServingProjection) -> list[RenderableType]:
    """Return what was asked, whether it fits, and the numbers that people ask for first."""
    deployment, traffic = result.deployment, result.traffic
    title = Text(deployment.model.name, style="bold")
    title.append(f" on {result.gpus:,} x {deployment.cluster.device.name}", style="bold")
    title.append(f", {deployment.dtype.upper()}", style="not bold")
    split = {
        name.upper().replace("_", " "): f"{value:,}"
        for name, value in degrees(deployment).items()
        if value > 1 or name in {"tp", "pp"}
    }
    requests = {"batch": f"{result.batch:,}", "prompt": f"{traffic.context:,} tokens"}
    requests["output"] = f"{traffic.output:,} tokens" if traffic.output else "not stated"
    if result.prefill.sequences > 1:
        requests["prompts together"] = f"{result.prefill.sequences:,}"
    style = "green" if result.fits else "red"
    verdict = Text("FITS" if result.fits else "DOES NOT FIT", style=f"bold {style}")
    figures = (
        f"TTFT {milliseconds(result.ttft_s)} ms",
        f"TPOT {milliseconds(result.tpot_s)} ms",
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU",
        f"{result.tokens_per_s_per_user:,.1f} tokens/s/user",
    )
    told = [f"prefill limited by {result.prefill.bound}, decode by {result.decode.bound}"]
    if bands := bands_text(result):
        told.append(bands)
    if result.prompts_s > 0.0:
        told.append(f"prompts of others add {to_ms(result.prompts_s):.2f} ms to each token")
    price = result.usd_per_million_tokens
    if price is not None:
        rent = f"{traffic.usd_per_gpu_hour:,.2f} USD a GPU-hour"
        told.append(f"{price:,.3f} USD per million generated tokens, at {rent}")
    return [
        title,
        Padding(Group(pairs(split.items()), pairs(requests.items())), (0, 0, 0, 2)),
        Text(),
        verdict.append(f"  {verdict_text(result)}", style="not bold default"),
        entries(figures, "bold"),
        *(Text(text) for text in [*told, *_extras(result)]),
        Text(),
    ]


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


def _answer(result: ServingProjection) -> str:
    return (
        f"First token after {milliseconds(result.ttft_s)} ms, then one every "
        f"{milliseconds(result.tpot_s)} ms; {result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, "
        f"{result.tokens_per_s_per_user:,.1f} tokens/s/user."
    )


def bands_text(result: ServingProjection) -> str:
    """Say where measured times lie around the projected ones; empty if nothing is known."""
    phases = {"TTFT": PREFILL, "TPOT": DECODE}
    bands = {name: result.band_of(phase).words for name, phase in phases.items()}
    known = ", ".join(f"{name} {words}" for name, words in bands.items() if words)
    return f"68 % of measured times lie around these: {known}" if known else ""


def _extras(result: ServingProjection) -> list[str]:
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


def _front(result: ServingProjection) -> list[Section]:
    """Return throughput against speed, where a batch or a split was left open."""
    front = result.front
    if front is None:
        return []
    if not len(front.rows):
        none = "No split fits, not even with one sequence."
        return [Section("Throughput against speed", none, media=Media.PAGE)]
    rows = front.rows.tolist()
    points = [front.point(row) for row in rows]
    shown = np.arange(len(rows))
    if len(rows) > MOST_SHOWN:
        spread = np.linspace(0, len(rows) - 1, MOST_SHOWN - 1).round().astype(np.int64)
        shown = np.union1d(spread, [front.knee])
    columns = [
        words("split", [split_name(front, row, batch=False) for row in rows], write=_shorter),
        Column("GPUs", [point["gpus"] for point in points], "{:,}".format),
        Column("batch", [point["batch"] for point in points], "{:,}".format),
        Column("TTFT ms", [point["ttft_ms"] for point in points], "{:,.0f}".format, 1),
        Column("TPOT ms", [point["tpot_ms"] for point in points], "{:,.1f}".format, 2),
        Column("tokens/s/user", [point["tokens_per_s_per_user"] for point in points],
               "{:,.1f}".format, 1, short="tok/s/user"),
        Column("tokens/s/GPU", [point["tokens_per_s_per_gpu"] for point in points],
               "{:,.0f}".format, short="tok/s/GPU"),
        words("", ["knee" if place == front.knee else "" for place in range(len(rows))]),
    ]  # fmt: skip
    more = f", {len(shown)} of {len(rows)} shown" if len(shown) < len(rows) else ""
    what = titles(result)[1]
    text = (
        f"{what[:1].upper()}{what[1:]}. These {len(rows):,} are beaten by none in both. "
        "Beyond the knee one percent of throughput costs more than one percent of speed. "
        "A click on a head sorts."
    )
    if speed_band(result, front.rates.tokens_per_s_per_user[front.rows]) is not None:
        text += " Bars in the figure hold 68 % of measured speeds."
    return [
        Section(
            "Throughput against speed",
            text,
            Table(columns, brief=shown.tolist()),
            note=f"{front.fitting:,} of {len(front.grid):,} points fit{more}",
            figures=[("", lambda: chart([_curve(result, front)]))],
        )
    ]


def _shorter(split: str) -> str:
    return split.lower().replace("attention dp", "adp").replace("  ", " ")


def _load(result: ServingProjection) -> list[Section]:
    """Return a simulated load: percentiles of the users, and replicas for what is promised."""
    simulated = result.under_load
    if simulated is None:
        return []
    names = {"ttft": "first token ms", "tpot": "further token ms", "e2e": "last token ms"}
    columns = [words("", list(names.values()))]
    for each in (50, 90, 99):
        values = [to_ms(simulated.percentile_s(name, each)) for name in names]
        columns.append(Column(f"p{each}", values, "{:,.1f}".format, 1))
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
    title = f"Under {result.traffic.rate_per_s:g} requests/s"
    return [Section(title, table=Table(columns), lead=text)]


def _steps(result: ServingProjection) -> Section:
    """Return where both steps go, with what the terms are; the rows add up to the totals."""
    prefill, decode = result.prefill, result.decode
    names = [
        name
        for name, seconds in decode.breakdown_s.items()
        if seconds > 0.0 or prefill.breakdown_s[name] > 0.0
    ]
    largest = max(decode.breakdown_s.values())
    columns = [
        words("term", [*names, "total"]),
        prose("", [*(TERMS.get(name, "") for name in names), ""], style=DIM),
    ]
    for phase, step, digits in (("prefill", prefill, 2), ("decode", decode, 3)):
        seconds = [*(step.breakdown_s[name] for name in names), step.time_s]
        columns.append(Column(f"{phase} ms", to_ms(np.array(seconds)).tolist(), _ms, digits))
        shares = [100.0 * (each / step.time_s) for each in seconds]
        columns.append(Column("share", shares, "{:.1f} %".format, media=Media.TERMINAL))
    bars = [*(decode.breakdown_s[name] / largest for name in names), None]
    columns.append(Column("", bars, kind="bar", media=Media.TERMINAL))
    text = (
        f"Prefill of {prefill.sequences:,} x {prefill.new_tokens:,} tokens, limited by "
        f"{prefill.bound}; decode of {decode.sequences:,} sequences with {decode.cached_tokens:,} "
        f"cached tokens each, limited by {decode.bound}."
    )
    note = (
        f"prefill of {prefill.sequences:,} x {prefill.new_tokens:,}; decode of "
        f"{decode.sequences:,} at {decode.cached_tokens:,} cached"
    )
    return Section("Time of one step", text, Table(columns, {len(names): "bold"}), note=note)


def _ms(value: float) -> str:
    return milliseconds(value * MILLISECOND)


def _memory(result: ServingProjection) -> Section:
    """Return what lies on the fullest device."""
    held = result.memory
    usable = held.usable_bytes + held.reserve_bytes
    rows = (
        ("weights", held.weights_bytes, ""),
        ("cache", result.kv_cache_bytes, f"{held.cache_bytes_per_token / 1024:,.1f} KiB a token"),
        ("workspace", held.workspace_bytes, "activations, logits, buffers"),
        ("reserve", held.reserve_bytes, "driver, communicators"),
        ("total", result.peak_bytes, ""),
        ("usable", usable, ""),
    )
    shares = [num_bytes / usable for _, num_bytes, _ in rows]
    columns = [
        words("held", [name for name, _, _ in rows]),
        Column("GiB", [to_gib(num_bytes) for _, num_bytes, _ in rows], "{:,.2f}".format, 2),
        Column("share", [100.0 * share for share in shares], "{:.1f} %".format,
               media=Media.TERMINAL),
        Column("", [*shares[:-2], None, None], kind="bar", media=Media.TERMINAL),
        prose("", [note for _, _, note in rows], style=DIM),
    ]  # fmt: skip
    device_gib = float(result.deployment.cluster.device.hbm_gib)
    note = (
        f"fullest of {result.gpus:,}; the engine takes {to_gib(usable):,.1f} of {device_gib:,.0f}"
    )
    table = Table(columns, {4: "bold"}, brief=range(5))
    return Section("Memory of one GPU", table=table, note=note)


def _filled_in(result: ServingProjection) -> list[Section]:
    """List what was chosen or left at its default; a terminal has it in few lines."""
    provenance = result.provenance
    chosen = [f"{key} = {value}" for key, value in provenance["derived"].items()]
    text = Text(style=DIM)
    if chosen:
        text.append("derived: ", style="italic").append("; ".join(chosen)).append("\n")
    stated = [f"{key}={plain(value)}" for key, value in provenance["defaults"].items()]
    text.append("defaults: ", style="italic").append("  ".join(stated))
    defaults = [f"{key} = {value}" for key, value in provenance["defaults"].items()]
    items = [*result.warnings, *chosen, *defaults]
    return [
        Section("Filled in", closing=[Padding(text, (0, 0, 0, 2))], media=Media.TERMINAL),
        Section("What was chosen, and defaults", items=items, media=Media.PAGE),
    ]


# The chart: throughput against speed.


def front_figure(result: ServingProjection) -> fig.Figure:
    """Draw throughput against speed."""
    return draw(*titles(result), [_curve(result, front_of(result))])


def front_of(result: ServingProjection) -> ServingFront:
    """Return the front of a load."""
    if result.front is None:
        msg = "there is no front to draw: batch and split are stated; leave out batch"
        raise ConfigError(msg, key="plot", allowed="a load without batch")
    return result.front


def split_name(front: ServingFront, row: int, *, batch: bool = True) -> str:
    """Name the split of a point, and its batch."""
    found = front.overrides(row)
    many = found.pop("load.batch")
    words = [f"{name.upper().replace('_', ' ')} {value}" for name, value in found.items()]
    return "  ".join([*words, f"batch {many:,}"] if batch else words)


def titles(result: ServingProjection) -> tuple[str, str]:
    """Return the title of a figure of the front, and a note."""
    deployment, traffic = result.deployment, result.traffic
    front = front_of(result)
    sizes = {each.gpus for each in front.grid.deployments}
    devices = f"{max(sizes):,}" if len(sizes) == 1 else f"up to {max(sizes):,}"
    title = f"{deployment.model.name} on {devices} x {deployment.cluster.device.name}"
    output = f", {traffic.output:,} generated" if traffic.output else ""
    note = (
        f"prompts of {traffic.context:,} tokens{output}, {deployment.dtype.upper()}; "
        f"{front.fitting:,} of {len(front.grid):,} points fit"
    )
    return title, note


def speed_band(result: ServingProjection, user: Floats) -> tuple[Floats, Floats] | None:
    """Return where 68 % of measured speeds of one user lie; None where nothing is known."""
    band = result.band_of(DECODE)
    if band.low_68 is None or band.high_68 is None:
        return None
    return user / band.high_68, user / band.low_68


def _curve(result: ServingProjection, front: ServingFront) -> Curve:
    rates, rows = front.rates, front.rows

    def hover(row: int) -> str:
        return f"TTFT {to_ms(rates.ttft_s[row]):,.1f} ms, TPOT {to_ms(rates.tpot_s[row]):,.2f} ms"

    return Curve(
        name=result.deployment.cluster.device.name,
        user=rates.tokens_per_s_per_user,
        gpu=rates.tokens_per_s_per_gpu,
        shown=np.flatnonzero(rates.fits),
        front=rows,
        mark=int(rows[front.knee]) if len(rows) else None,
        mark_name="knee",
        label=lambda row: split_name(front, row),
        hover=hover,
        ends=speed_band(result, rates.tokens_per_s_per_user[rows]),
    )
