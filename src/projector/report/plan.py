"""A plan: the answer, the choices, what would do, and what everything rests on."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from projector.config.first_order import FIRST_ORDER
from projector.planning.choice import MEETS, MISSES, UNCERTAIN, Choice
from projector.planning.plan import PlanResult
from projector.planning.question import days_number, number, usd
from projector.planning.ranking import COST, value_of
from projector.planning.words import KEEPS, OF_RUN, changes_of, limits_text
from projector.projection.bands import COVERED, WORDS
from projector.report.document import Column, Document, Media, Section, Table, prose, words
from projector.report.figures import figure as fig
from projector.report.pages.page import band, plain_layout, round_ticks, scatter
from projector.units import GIB

_STYLES = {MEETS: "bold green", UNCERTAIN: "bold yellow", MISSES: "bold red"}

LISTED = 14
"""Choices that are numbered and listed in a picture."""

ROOM = 1.35
"""Factor of room around the points of a picture."""

STROKES = {"x": ((0, (6, 3)), "dash"), "y": ((0, (1, 2)), "dot")}
"""Strokes of deadline and budget, as both libraries name them."""

MARKERS = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down",
    "P": "cross", "X": "x",
}  # fmt: skip
"""Markers of the kinds of clusters, as both libraries name them."""


def plan_document(result: PlanResult) -> Document:
    """Return the report of a plan."""
    question = result.question
    title = f"Plan: {question.job.model.name} on {number(question.tokens)} tokens"
    choices = result.listed
    sections = [*_listed("What would do", [each.text for each in result.would_do],
                         "each is a projection")]  # fmt: skip
    if result.worths:
        sections.append(_worths(result))
    if choices:
        sections += [_choices(result, choices), _picture(result), _layouts(choices)]
    else:
        none = "Nothing fits on any cluster that was tried."
        sections.append(Section("Choices", none, media=Media.PAGE))
    rows = [(each.name, each.reason) for each in result.skipped]
    told = len(rows) + len(result.beaten) * bool(question.gpus)
    rows += [(each.name, f"slower and dearer than {each.beaten_by}") for each in result.beaten]
    if rows:
        clusters, why = zip(*rows, strict=True)
        columns = [words("cluster", clusters), prose("why it offers no choice", why)]
        # What was asked for by name is answered in a terminal too.
        table, media = Table(columns, brief=range(told)), Media.ALL if told else Media.PAGE
        sections.append(Section("Not among the choices", table=table, media=media))
    changes = changes_of(result.choices)
    sections += _listed("What would change the answer", changes, media=Media.PAGE)
    of_run = result.choices[0].run.assumptions if result.choices else ()
    shown = [text for text in result.assumptions if not text.startswith(OF_RUN)]
    if of_run:
        short = "; ".join(text.removeprefix("run.").partition(":")[0] for text in of_run)
        shown.append(f"{OF_RUN} {short} (sources: --json, --html).")
    sections += [
        Section("Assumed", items=shown, media=Media.TERMINAL),
        *_listed("What the figures rest on", result.assumptions, media=Media.PAGE),
    ]
    if choices:
        overrides = " ".join(f"{key}={_text(value)}" for key, value in choices[0].overrides.items())
        name = "The first choice as overrides of the job"
        sections.append(Section(name, overrides, media=Media.PAGE))
    return Document(
        f"{title} {limits_text(question)}".strip(), result.answer, sections, _head(result)
    )


def _head(result: PlanResult) -> list[Any]:
    from rich.text import Text

    from projector.report.terminal.first_order import PLAIN_WORDS

    status = result.choices[0].status if result.choices else MISSES
    return [
        Text(result.answer, style=_STYLES[status if result.met else max(status, MISSES)]),
        *([Text(PLAIN_WORDS, style="bold yellow")] if _is_plain(result) else []),
        Text(f"{result.layouts:,} layouts projected in {result.seconds:.1f} s", style="dim"),
        Text(),
    ]


def _is_plain(result: PlanResult) -> bool:
    return result.question.fidelity == FIRST_ORDER


def _listed(
    title: str, items: Sequence[str], note: str = "", media: Media = Media.ALL
) -> list[Section]:
    return [Section(title, items=items, note=note, media=media)] if items else []


def _worths(result: PlanResult) -> Section:
    def share(change: float) -> str:
        return f"{100.0 * change:+.0f} %" if change else ""

    columns = [
        words("assumed", [each.name for each in result.worths]),
        words("as it is", [each.value for each in result.worths]),
        words("instead", [each.moved for each in result.worths]),
        words("days", [share(each.days) for each in result.worths]),
        words(spend_label(result), [share(each.spend) for each in result.worths]),
    ]
    note = "the first choice, with one assumption moved at a time"
    return Section("What decides", note, Table(columns), note=note)


def _choices(result: PlanResult, choices: Sequence[Choice]) -> Section:
    runs = [each.run for each in choices]
    limited = bool(limits_text(result.question))
    columns = [
        Column("#", range(1, len(choices) + 1)),
        Column("group", [each.group for each in choices], media=Media.PAGE),
        Column("GPUs", [each.gpus for each in choices], "{:,}".format),
        words("device", [each.label for each in choices]),
        Column("batch", [each.batch for each in choices], "{:,}".format),
        Column("days", [run.days for run in runs], days_number, 1),
        Column("from", [run.days_low for run in runs], days_number, 1, media=Media.PAGE),
        Column("to", [run.days_high for run in runs], days_number, 1),
        Column("GPU-hours", [run.gpu_hours for run in runs], number, short="GPU-h"),
        Column("USD", [run.cost_usd for run in runs], usd),
        Column("MWh", [run.energy_mwh for run in runs], _three, media=Media.PAGE),
        Column("t CO2", [run.co2_t for run in runs], _three, media=Media.PAGE),
        Column("MFU %", [100.0 * each.mfu for each in choices], "{:.1f} %".format, 1, short="MFU"),
        words("memory", [WORDS[each.verdict] for each in choices]),
    ]
    if limited:
        columns.append(words("in limits", [KEEPS[each.status] for each in choices], short="keeps"))
    else:
        places = ["knee" if each.is_knee else "yes" if each.on_front else "" for each in choices]
        columns.append(words("front", places, media=Media.TERMINAL))
    columns.append(prose("why it is there", [each.remark for each in choices], media=Media.PAGE))
    left_out = len(result.beaten)
    note = f"{left_out} left out: slower and dearer than another" if left_out else ""
    note += "; " * bool(note) + f"to: where the {COVERED} % bands end"
    if _is_plain(result):
        note = "no bands"
    text = (
        f"Each row is the fastest layout of one cluster. The days lie between from and to in "
        f"{COVERED} % of comparable runs. Rows of one group differ by less than a projection can "
        "tell. A click on a head sorts."
    )
    if len(choices) + left_out < len(result.choices):
        note = f"{len(choices)} of {len(result.choices) - left_out}; {note}"
        text = f"The first {len(choices)} of {len(result.choices) - left_out} choices. {text}"
    return Section("Choices", text, Table(columns, {0: "bold"}, gap=1), note=note)


def _reached(choices: Sequence[Choice], media: Media) -> list[Column]:
    """Return goodput and memory of each choice, and where the band of memory ends."""
    percent, gib = "{:.1f} %".format, "{:,.2f}".format
    goodput = [None if each.run.goodput is None else 100.0 * each.run.goodput for each in choices]
    peaks = [each.peak_bytes / GIB for each in choices]
    return [
        Column("goodput %", goodput, percent, 1, short="goodput", media=media),
        Column("peak GiB", peaks, gib, 1, short="GiB", media=media),
        Column("to GiB", [each.peak_high_bytes / GIB for each in choices], gib, 1, media=media),
    ]  # fmt: skip


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _layouts(choices: Sequence[Choice]) -> Section:
    failures = [each.run.failures for each in choices]
    usable = [each.usable_bytes / GIB for each in choices]
    columns = [
        Column("#", range(1, len(choices) + 1)),
        words("cluster", [each.name for each in choices], media=Media.PAGE),
        prose("layout", [each.layout for each in choices]),
        prose("limited by", [each.bound for each in choices]),
        prose("why it is there", [each.remark for each in choices], media=Media.TERMINAL),
        Column("tokens/s/GPU", [each.tokens_per_s_per_gpu for each in choices], media=Media.PAGE),
        Column("failures", failures, digits=1, media=Media.PAGE),
        *_reached(choices, Media.PAGE),
        Column("usable GiB", usable, digits=1, media=Media.PAGE),
    ]
    text = (
        f"The peak of memory stays below to GiB in {COVERED} % of comparable runs. Goodput is the "
        "share of the days in which steps are made that stay."
    )
    return Section("Layouts", text, Table(columns), note="the fastest of each cluster")


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


# The picture: days against money, or GPU-hours without prices.


def _picture(result: PlanResult) -> Section:
    name = spend_label(result)
    text = (
        f"Each point is a choice; the bars reach to both ends of its {COVERED} % band. The line "
        f"joins those that no other beats in both days and {name}. Small points are slower and "
        "dearer than another."
    )
    if (knee := result.knee) is not None:
        text += (
            f" The knee is {knee.name}: on the left of it more GPUs save less time for their "
            f"{name}, on the right fewer GPUs save little."
        )
    charts = [("", lambda: figure_of_plan(result))]
    return Section(f"Days against {name}", text, figures=charts, media=Media.PAGE)


def spend_label(result: PlanResult) -> str:
    """Return the label of the axis that is not days."""
    return "USD" if result.spend == COST else "GPU-hours"


def _points(result: PlanResult, choices: Sequence[Choice]) -> tuple[list[float], list[float]]:
    return [each.run.days for each in choices], [value_of(each, result.spend) for each in choices]


def _ranges(result: PlanResult) -> list[tuple[float, float]]:
    days = [end for each in result.choices for end in (each.run.days_low, each.run.days_high)]
    spent = _points(result, result.choices)[1]
    for axis, place, _ in _limits(result):
        (days if axis == "x" else spent).append(place)
    return [(min(values) / ROOM, max(values) * ROOM) for values in (days, spent)]


def _limits(result: PlanResult) -> list[tuple[str, float, str]]:
    """Return the limits as lines: their axis, place and text."""
    question = result.question
    found = []
    if (days := question.deadline_days) is not None:
        found.append(("x", days, f"deadline, {days:,g} days"))
    if (money := question.budget_usd) is not None and result.spend == COST:
        found.append(("y", money, f"budget, {usd(money)}"))
    return found


def _kinds(result: PlanResult) -> list[tuple[str, list[Choice], str, str]]:
    """Return the kinds of clusters: label, choices, colour and marker."""
    labels = dict.fromkeys(each.label for each in result.choices)
    looks = zip(cycle(fig.PALETTE), cycle(MARKERS), strict=False)
    return [
        (label, [each for each in result.choices if each.label == label], *look)
        for label, look in zip(labels, looks, strict=False)
    ]


def plan_figure(result: PlanResult) -> fig.Figure:
    """Draw the choices with their bands, the front, the knee, and the limits."""
    title = f"Days against {spend_label(result)}: {result.question.job.model.name}"
    figure = fig.new_figure(*fig.WIDE, title)
    axes, side = figure.subplots(1, 2, width_ratios=(1.0, 0.78))
    if not result.choices:
        axes.set_axis_off()
        fig.draw_list(side, (), (), notes=[result.answer])
        return figure
    fig.log_axes(axes, *_ranges(result))
    fig.label(axes, "time of the run, days", spend_label(result), grid="both")
    line: dict[str, Any] = {"color": fig.INK, "lw": 1.2, "zorder": 3}
    for axis, limit, text in _limits(result):
        (axes.axvline if axis == "x" else axes.axhline)(limit, ls=STROKES[axis][0], **line)
        at = (limit, 1.01, "center") if axis == "x" else (0.99, 1.03 * limit, "right")
        along = axes.get_xaxis_transform() if axis == "x" else axes.get_yaxis_transform()
        axes.text(*at[:2], text, ha=at[2], transform=along)
    for kind in _kinds(result):
        _draw_kind(axes, result, *kind)
    axes.plot(
        *_points(result, result.front), color=fig.SOFT, lw=1.2, zorder=5, drawstyle="steps-post",
        label=f"no other beats these in both; bars: {COVERED} % bands",
    )  # fmt: skip
    if result.knee is not None:
        axes.scatter(
            *_points(result, [result.knee]), s=190, facecolors="none", edgecolors=fig.INK,
            linewidths=1.3, zorder=7, label="knee",
        )  # fmt: skip
    shown = result.listed[:LISTED]
    fig.number_points(axes, np.array(_points(result, shown)).T, np.full(len(shown), 5.0))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
    _draw_names(side, result, shown)
    return figure


def _draw_kind(
    axes: fig.Axes, result: PlanResult, label: str, members: list[Choice], colour: str, marker: str
) -> None:
    """Draw the choices of one kind of cluster; those at risk are hollow, beaten ones faint."""
    beaten = [each for each in members if each.beaten_by]
    members = [each for each in members if not each.beaten_by]
    axes.scatter(
        *_points(result, beaten), s=14, marker=marker, color=colour, alpha=0.4, zorder=4,
        label=None if members else label,
    )  # fmt: skip
    for each in members:
        run, spent = each.run, value_of(each, result.spend)
        # Money grows with time, so that both ends of a band lie on a line through the point.
        ends = [run.days_low, run.days_high]
        along = [spent * days / run.days for days in ends]
        axes.plot(ends, along, color=colour, lw=1.1, alpha=0.45, zorder=4)
    for fits in (True, False):
        shown = [each for each in members if each.fits == fits]
        if shown:
            axes.scatter(
                *_points(result, shown), s=42, marker=marker, zorder=6, linewidths=1.2,
                edgecolors=colour, facecolors=colour if fits else "white",
                label=label if fits else f"{label}, memory at risk",
            )  # fmt: skip


def _draw_names(side: fig.Axes, result: PlanResult, shown: Sequence[Choice]) -> None:
    write = usd if result.spend == COST else number
    rows = [
        (str(place), days_number(each.run.days), days_number(each.run.days_high),
         write(value_of(each, result.spend)), f"{each.name}, {each.layout}")
        for place, each in enumerate(shown, 1)
    ]  # fmt: skip
    notes = [result.answer]
    if result.beaten:
        notes.insert(0, f"{len(result.beaten)} small ones are slower and dearer than another.")
    columns = (("", 0.0, "left"), ("days", 0.14, "right"), ("to", 0.23, "right"),
               (spend_label(result), 0.38, "right"), ("cluster", 0.42, "left"))  # fmt: skip
    fig.draw_list(side, columns, rows, notes=notes, wrap=46)


def figure_of_plan(result: PlanResult) -> dict[str, Any]:
    """Return the same picture as a Plotly object, with the layouts to hover."""

    def trace(mode: str, name: str, choices: Sequence[Choice], **more: Any) -> dict[str, Any]:
        return scatter(mode, name, *_points(result, choices), **more)

    data = []
    hover = "%{x:,.1f} days, %{y:,.0f} " + spend_label(result) + "<br>%{text}<extra></extra>"
    for label, members, colour, marker in _kinds(result):
        symbol = MARKERS[marker]
        symbols = [symbol if each.fits else f"{symbol}-open" for each in members]
        runs = [(each.run.days, each.run.days_low, each.run.days_high) for each in members]
        days, low, high = np.array(runs).T
        shown = np.array([not each.beaten_by for each in members])
        bar = band(days, np.where(shown, low, days), np.where(shown, high, days), 3)
        texts = [f"{each.name}, {each.layout}<br>{each.remark}" for each in members]
        sizes = np.where(shown, 10, 4).tolist()
        points = {"color": colour, "size": sizes, "symbol": symbols}
        data.append(trace("markers", label, members, text=texts, marker=points, error_x=bar,
                          hovertemplate=hover))  # fmt: skip
    front = {"color": fig.SOFT, "width": 1.5, "shape": "hv"}
    data.append(trace("lines", "front", result.front, line=front, hoverinfo="skip"))
    if result.knee is not None:
        ring = {"size": 20, "symbol": "circle-open", "color": fig.INK, "line": {"width": 1.5}}
        data.append(trace("markers", "knee", [result.knee], marker=ring, hoverinfo="skip"))
    layout = plain_layout("time of the run, days", spend_label(result))
    writers = {"xaxis": days_number, "yaxis": usd if result.spend == COST else number}
    for (axis, write), (low, high) in zip(writers.items(), _ranges(result), strict=True):
        ticks = round_ticks(low, high)
        texts, ends = [write(tick) for tick in ticks], [math.log10(low), math.log10(high)]
        layout[axis] |= {"type": "log", "range": ends, "tickvals": ticks, "ticktext": texts}
    lines = []
    for axis, place, text in _limits(result):
        across = "y" if axis == "x" else "x"
        told: dict[str, Any] = {"text": text, "textposition": "end"}
        if axis == "x":
            told |= {"textangle": 0, "xanchor": "left"}
        lines.append({
            "type": "line", f"{across}ref": "paper", f"{across}0": 0, f"{across}1": 1,
            f"{axis}0": place, f"{axis}1": place, "label": told,
            "line": {"color": fig.INK, "width": 1.5, "dash": STROKES[axis][1]},
        })  # fmt: skip
    return {"data": data, "layout": {**layout, "shapes": lines}}
