"""The page of a deployment that serves."""

from pathlib import Path
from typing import Any

import numpy as np

from projector.arrays import Floats
from projector.report.document import Document, Section, Table
from projector.report.figures.figure import PALETTE, SOFT
from projector.report.figures.serve import GPU, USER, speed_band, split_name, titles
from projector.report.pages.figures import log_ticks, plain_layout
from projector.report.pages.page import check_page, write_page
from projector.report.terminal.serve import (
    TERMS,
    answer_text,
    bands_text,
    under_load_rows,
    verdict_text,
)
from projector.serving.front import ServingFront
from projector.serving.projection import ServingProjection
from projector.units import to_gib, to_ms

_DIGITS = {"TTFT ms": 1, "TPOT ms": 2, "tokens/s/user": 1, "tokens/s/GPU": 0}


def write_serve_page(result: ServingProjection, path: str | Path) -> None:
    """Write a load as one page that works offline; it appears whole or not at all."""
    check_page(path)
    deployment, traffic = result.deployment, result.traffic
    title = f"Serving {deployment.model.name} on {result.gpus:,} x {deployment.cluster.device.name}"
    output = f" and {traffic.output:,} generated" if traffic.output else ""
    fits = verdict_text(result)
    lead = (
        f"Batch {result.batch:,}, prompts of {traffic.context:,} tokens{output}. "
        f"{answer_text(result)} {fits[:1].upper()}{fits[1:]}."
    )
    if bands := bands_text(result):
        lead += f" {bands}."
    sections = [*_front(result), *_load(result), _steps(result), _memory(result), _rest(result)]
    write_page(path, Document(title, lead, sections))


def _front(result: ServingProjection) -> list[Section]:
    front = result.front
    if front is None:
        return []
    if not len(front.rows):
        return [Section("Throughput against speed", "No split fits, not even with one sequence.")]
    points = [front.point(row) for row in front.rows.tolist()]
    columns = {
        "": ["knee" if place == front.knee else "" for place in range(len(points))],
        "split": [split_name(front, row, batch=False) for row in front.rows.tolist()],
        "GPUs": [point["gpus"] for point in points],
        "batch": [point["batch"] for point in points],
        "TTFT ms": [point["ttft_ms"] for point in points],
        "TPOT ms": [point["tpot_ms"] for point in points],
        "tokens/s/user": [point["tokens_per_s_per_user"] for point in points],
        "tokens/s/GPU": [point["tokens_per_s_per_gpu"] for point in points],
    }
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    what = titles(result)[1]
    text = (
        f"{what[:1].upper()}{what[1:]}. These {len(rows):,} are beaten by none in both. "
        "Beyond the knee one percent of throughput costs more than one percent of speed. "
        "A click on a head sorts."
    )
    if speed_band(result, rates_of(front)) is not None:
        text += " Bars in the figure hold 68 % of measured speeds."
    table = Table.of(list(columns), rows, _DIGITS)
    return [
        Section(
            "Throughput against speed", text, table, figures=[("", lambda: _figure(result, front))]
        )
    ]


def rates_of(front: ServingFront) -> Floats:
    """Return the speed of one user at each point of the front, tokens/s."""
    return front.rates.tokens_per_s_per_user[front.rows]


def _figure(result: ServingProjection, front: ServingFront) -> Any:
    rates = front.rates
    user, device = rates.tokens_per_s_per_user, rates.tokens_per_s_per_gpu
    fits = np.flatnonzero(rates.fits)
    knee = front.rows[front.knee : front.knee + 1]

    def points(name: str, rows: Any, **style: Any) -> dict[str, Any]:
        texts = [
            f"{split_name(front, row)}<br>TTFT {to_ms(rates.ttft_s[row]):,.1f} ms, "
            f"TPOT {to_ms(rates.tpot_s[row]):,.2f} ms"
            for row in rows.tolist()
        ]
        hover = "%{x:,.1f} tokens/s/user, %{y:,.0f} tokens/s/GPU<br>%{text}<extra></extra>"
        values = {"x": user[rows], "y": device[rows], "text": texts, "hovertemplate": hover}
        return {"type": "scatter", "name": name, **values, **style}

    data = [
        points("fits", fits, mode="markers", marker={"color": SOFT, "size": 4, "opacity": 0.4}),
        points(
            "no other is better",
            front.rows,
            mode="lines+markers",
            line={"color": PALETTE[0]},
            marker={"size": 8},
            **_bars(result, user[front.rows]),
        ),
        points(
            "knee",
            knee,
            mode="markers",
            marker={"color": PALETTE[3], "size": 13, "symbol": "diamond"},
        ),
    ]
    layout = plain_layout(USER, GPU)
    ends = speed_band(result, user[front.rows]) or ()
    ranges = {"xaxis": np.concatenate([user[fits], *ends]), "yaxis": device[fits]}
    for axis, values in ranges.items():
        if len(fits):
            layout[axis] |= log_ticks(float(values.min()), float(values.max()))
    return {"data": data, "layout": layout}


def _bars(result: ServingProjection, user: Floats) -> dict[str, Any]:
    """Return the band of the speed of one user as bars; nothing where it is not known."""
    ends = speed_band(result, user)
    if ends is None:
        return {}
    sides = {"array": ends[1] - user, "arrayminus": user - ends[0]}
    return {"error_x": {"type": "data", "symmetric": False, "thickness": 1, "width": 0, **sides}}


def _load(result: ServingProjection) -> list[Section]:
    if result.under_load is None:
        return []
    heads, rows, text = under_load_rows(result)
    return [Section("Under load", text, Table.of(heads, rows))]


def _steps(result: ServingProjection) -> Section:
    prefill, decode = result.prefill, result.decode
    rows = [
        [name, TERMS.get(name, ""), to_ms(prefill.breakdown_s[name]), to_ms(seconds)]
        for name, seconds in decode.breakdown_s.items()
        if seconds > 0.0 or prefill.breakdown_s[name] > 0.0
    ]
    rows.append(["total", "", to_ms(prefill.time_s), to_ms(decode.time_s)])
    text = (
        f"Prefill of {prefill.sequences:,} x {prefill.new_tokens:,} tokens, limited by "
        f"{prefill.bound}; decode of {decode.sequences:,} sequences with {decode.cached_tokens:,} "
        f"cached tokens each, limited by {decode.bound}."
    )
    table = Table.of(
        ["term", "", "prefill ms", "decode ms"], rows, {"prefill ms": 2, "decode ms": 3}
    )
    return Section("Time of one step", text, table)


def _memory(result: ServingProjection) -> Section:
    held = result.memory
    rows = [
        ["weights", to_gib(held.weights_bytes)],
        ["cache", to_gib(result.kv_cache_bytes)],
        ["workspace", to_gib(held.workspace_bytes)],
        ["reserve", to_gib(held.reserve_bytes)],
        ["total", to_gib(result.peak_bytes)],
        ["usable", to_gib(held.usable_bytes + held.reserve_bytes)],
    ]
    return Section("Memory of one GPU", "", Table.of(["held", "GiB"], rows, {"GiB": 2}))


def _rest(result: ServingProjection) -> Section:
    chosen = [f"{key} = {value}" for key, value in result.derived.items()]
    defaults = [f"{key} = {value}" for key, value in result.provenance["defaults"].items()]
    items = [*result.warnings, *chosen, *defaults]
    return Section("What was chosen, and defaults", "", items=items)
