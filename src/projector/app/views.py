"""What the page answers: tiles of numbers, and Plotly figures, of one projection or of two."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from dash import html

from projector.config.bands import Band
from projector.projection.bands import COVERED, WORDS, band_text
from projector.projection.performance import PerformanceProjection
from projector.projection.terms import LIMITS, MEMORY_TERMS
from projector.report.document import Figure
from projector.report.figures.figure import INK, PALETTE
from projector.report.pages.page import band as bars
from projector.report.pages.page import named_axis, plain_layout, scatter, stacked_bars
from projector.report.serve import TERMS, serve_report
from projector.report.terminal.compare import Comparison
from projector.schedule.replay.order_times import PS_PER_S
from projector.schedule.replay.run import PipelineRun
from projector.serving.projection import ServingProjection
from projector.units import to_gib, to_ms

COLUMNS = 1000
"""Points in time that the timeline of a pipeline shows."""

OPERATIONS = {"forward": ("#0072B2", "#5AA9D6"), "backward": ("#009E73", "#5CC7A5"),
              "weight gradient": ("#E69F00", "#F2C560")}  # fmt: skip
"""Operations of a pipeline, with the colours of even and odd microbatches."""

PINNED = "pinned"

NOTHING: Figure = {
    "data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
}  # fmt: skip
"""In place of a figure that a state does not have."""


class Answer(NamedTuple):
    """Everything that the page shows of one state."""

    tiles: list[Any]
    figures: list[Figure]
    notes: list[str]


def _tile(name: str, value: str, note: str, change: str = "", verdict: str = "") -> Any:
    """Return one number, how far it may be off, and how far it is from what is pinned."""
    shown = {"value": value, "note": note, "change": change}
    parts = [html.Dd(text, className=kind) for kind, text in shown.items() if text]
    return html.Dl([html.Dt(name), *parts], className=f"tile {verdict}")


def step_answer(now: PerformanceProjection, pinned: PerformanceProjection | None = None) -> Answer:
    """Return what a training step is like, beside a pinned one if there is one."""
    memory, step, rate = now.memory, to_ms(now.iteration_time_s), now.tokens_per_s_per_gpu
    both = [("", now), *([(PINNED, pinned)] if pinned else [])]

    def change(name: str) -> str:
        if pinned is None or not pinned.scalars[name]:
            return ""
        return f"{now.scalars[name] / pinned.scalars[name] - 1.0:+.1%} to {PINNED}"

    tiles = [
        _tile("memory", WORDS[memory.verdict], f"stage {memory.peak_stage} is the fullest",
             f"{PINNED}: {WORDS[pinned.memory.verdict]}" if pinned else "", memory.verdict),
        _tile("peak, GiB", f"{to_gib(memory.peak_bytes):,.1f}",
             f"{COVERED} %: {band_text(memory.peak_low_bytes, memory.peak_high_bytes)}; "
             f"usable {to_gib(memory.usable_bytes):,.1f}", change("peak_gib")),
        _tile("step, ms", _number(step), _within(step, now.band), change("iteration_time_ms")),
        _tile("tokens/s/GPU", _number(rate), _within(rate, now.band, -1),
             change("tokens_per_s_per_gpu")),
        _tile("MFU", f"{now.mfu:.1%}", f"bubble {now.bubble_fraction:.1%} of work", change("mfu")),
        _tile("limited by", now.bound, f"{now.schedule}, DP {now.degrees['dp']:,}, "
             f"{now.microbatches:,} microbatches"),
    ]  # fmt: skip
    shown = [name for name in LIMITS if any(each.breakdown_s[name] for _, each in both)]
    terms = [(group, {LIMITS[name]: each.breakdown_s[name] for name in shown})
             for group, each in reversed(both)]  # fmt: skip
    figures = [_memory(both), _terms("Step by term", terms), _timeline(now.pipeline)]
    if pinned is None:
        return Answer(tiles, figures, [*now.warnings])
    comparison = Comparison(pinned, now)
    ratio, sure = comparison.time_ratio, comparison.ratio_band
    ends = " to ".join(f"{ratio * limit:.3f}" for limit in sure.limits(90) or ())
    known = f"90 %: {ends}; " if ends else ""
    told = f"A token takes {ratio:.3f} of its time in the pinned job ({known}{sure.basis})."
    return Answer(tiles, figures, [told, *now.warnings])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:,.1f}"


def _within(value: float, band: Band, power: int = 1) -> str:
    """Write where 68 % of measured values lie: times, or rates with a ``power`` of -1."""
    limits = band.limits(68)
    if limits is None:
        return "no band is known"
    low, high = sorted(value * limit**power for limit in limits)
    return f"68 %: {_number(low)} to {_number(high)}"


def _memory(results: Sequence[tuple[str, PerformanceProjection]]) -> Figure:
    """Return the memory of each stage by term, with its band and what is usable."""
    data: list[dict[str, Any]] = []
    colours = dict(zip([term.name for term in MEMORY_TERMS], PALETTE, strict=False))
    for group, result in results:
        stages = result.memory.stages
        parts = {each.name: [to_gib(each.of(one)) for one in stages] for each in MEMORY_TERMS}
        made = stacked_bars([str(one.stage) for one in stages], parts, colours, group)
        data += [each | ({"opacity": 0.4, "showlegend": False} if group else {}) for each in made]
    memory = results[0][1].memory
    peaks = np.array([to_gib(stage.peak_bytes) for stage in memory.stages])
    low, high = (end / memory.peak_bytes for end in (memory.peak_low_bytes, memory.peak_high_bytes))
    # On top of the stack, so that it stands on its bars where others stand beside them.
    top = max(place for place, each in enumerate(data) if each["offsetgroup"] == "time")
    data[top]["error_y"] = bars(peaks, low * peaks, high * peaks, 4)
    layout = plain_layout("pipeline stage", "GiB; bars: 90 %, dashed: usable")
    layout |= _usable("y", to_gib(memory.usable_bytes))
    named_axis(layout, "xaxis")
    return _drawn("Memory by stage" + ", pale: pinned" * (len(results) > 1), data, layout)


def _usable(axis: str, gib: float) -> dict[str, Any]:
    across = "x" if axis == "y" else "y"
    ends = {f"{across}ref": "paper", f"{across}0": 0, f"{across}1": 1}
    line = {"type": "line", "line": {"color": INK, "width": 1, "dash": "dash"}, **ends}
    return {"barmode": "stack", "shapes": [{**line, f"{axis}0": gib, f"{axis}1": gib}]}


def _terms(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Figure:
    """Return terms in ms beside each other, of each group its seconds."""
    data = [
        {"type": "bar", "orientation": "h", "name": group or "now", "y": [*terms],
         "x": [to_ms(value) for value in terms.values()], "textposition": "outside",
         "text": [f"{value / sum(terms.values()):.1%}" for value in terms.values()],
         "marker": {"color": "#C9C9C9" if group else PALETTE[0]}, "cliponaxis": False,
         "hovertemplate": "%{y}: %{x:,.2f} ms, %{text}<extra></extra>"}
        for group, terms in rows
    ]  # fmt: skip
    layout = plain_layout("ms", "")
    layout["yaxis"] |= {"autorange": "reversed"}
    longest = max(value for _, terms in rows for value in terms.values())
    layout["xaxis"] |= {"range": [0, 1.2 * to_ms(longest)]}
    return _drawn(title, data, {**layout, "showlegend": len(rows) > 1})


def _timeline(run: PipelineRun) -> Figure:
    """Return the pipeline as a picture of ranks and points in time; shades tell microbatches."""
    order, times = run.order, run.timeline
    at_ps = (np.arange(COLUMNS) + 0.5) * run.makespan_s * PS_PER_S / COLUMNS
    shade, microbatch = np.full((2, order.pp, COLUMNS), np.nan)
    for rank in range(order.pp):
        first, end = int(order.rank_offset[rank]), int(order.rank_offset[rank + 1])
        row = first + np.searchsorted(times.start_ps[first:end], at_ps, side="right") - 1
        busy = (row >= first) & (at_ps < times.end_ps[row])
        row = row[busy]
        microbatch[rank, busy] = order.microbatch[row]
        shade[rank, busy] = 2 * order.kind[row] + order.microbatch[row] % 2
    colours = [colour for both in OPERATIONS.values() for colour in both]
    scale = [[(place + side) / 6, each] for place, each in enumerate(colours) for side in (0, 1)]
    ranks = [f"rank {rank}" for rank in range(order.pp)]
    data: list[dict[str, Any]] = [
        {"type": "heatmap", "x": to_ms(at_ps / PS_PER_S), "y": ranks, "z": shade, "zmin": -0.5,
         "zmax": 5.5, "colorscale": scale, "showscale": False, "ygap": 1, "hoverongaps": False,
         "customdata": microbatch,
         "hovertemplate": "%{y}, %{x:,.1f} ms: microbatch %{customdata}<extra></extra>"}
    ]  # fmt: skip
    for kind, (name, (colour, _)) in enumerate(OPERATIONS.items()):
        if (order.kind == kind).any():
            mark = {"symbol": "square", "size": 11, "color": colour}
            data.append(scatter("markers", name, [None], [None], marker=mark))
    layout = plain_layout("ms", "")
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    return _drawn("Timeline of the pipeline", data, layout)


def _drawn(title: str, data: list[dict[str, Any]], layout: dict[str, Any]) -> Figure:
    """Return a figure in the shape of the page; a zoom lasts while controls move."""
    below = 40 if layout.get("showlegend") is False else 84
    legend = {**layout["legend"], "yref": "container", "y": 0, "yanchor": "bottom", "x": 0}
    head = {"text": title, "x": 0, "xref": "paper", "font": {"size": 15}}
    shape = {"margin": {"t": 40, "r": 12, "l": 40, "b": below}, "uirevision": title}
    return {"data": data, "layout": {**layout, **shape, "title": head, "legend": legend}}


def serving_answer(now: ServingProjection) -> Answer:
    """Return what a deployment yields under its load."""
    told = now.to_dict()
    held, ttft, tpot = told["memory"], told["ttft_ms"], told["tpot_ms"]
    rate = now.tokens_per_s_per_gpu
    tiles = [
        _tile("memory", WORDS[now.verdict], f"largest batch {now.max_batch:,}", "", now.verdict),
        _tile("peak, GiB", f"{held['peak_gib']:,.1f}", f"usable {held['usable_gib']:,.1f}"),
        _tile("first token (TTFT), ms", _number(ttft), _within(ttft, now.band_of("prefill"))),
        _tile("each further (TPOT), ms", f"{tpot:,.2f}", _within(tpot, now.band_of("decode"))),
        _tile("tokens/s/GPU", _number(rate), _within(rate, now.band, -1)),
        _tile("limited by", now.decode.bound,
             f"prefill: {now.prefill.bound}; batch {now.batch:,} on {now.gpus:,} GPUs"),
    ]  # fmt: skip
    parts = {name: [held[f"{name.replace(' ', '_')}_gib"]]
             for name in ("weights", "kv cache", "workspace", "reserve")}  # fmt: skip
    bar = stacked_bars([""], parts, dict(zip(parts, PALETTE, strict=False)), flat=True)
    layout = plain_layout("GiB of the fullest GPU; dashed: usable", "")
    layout |= _usable("x", held["usable_gib"])
    figures = [_drawn("Memory", bar, layout)]
    for name, step in (("Decode", now.decode), ("Prefill", now.prefill)):
        terms = {TERMS.get(term, term): value for term, value in step.breakdown_s.items() if value}
        figures.append(_terms(f"{name} step by term", [("", terms)]))
    made = [make() for section in serve_report(now).sections for _, make in section.figures]
    figures += [_drawn("Throughput against speed", each["data"], each["layout"]) for each in made]
    return Answer(tiles, figures, [*now.warnings])
