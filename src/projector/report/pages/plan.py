"""The page of a plan, for the person who decides."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from projector.planning.choice import Choice
from projector.planning.plan import PlanResult
from projector.planning.question import days_number, number, usd
from projector.planning.ranking import COST, value_of
from projector.planning.words import KEEPS, changes_of, limits_text
from projector.projection.bands import COVERED, WORDS
from projector.report.figures.figure import INK, PALETTE, SOFT
from projector.report.figures.plan import ROOM, spend_label
from projector.report.pages.figures import plain_layout
from projector.report.pages.page import Section, Table, check_page, write_page
from projector.units import GIB

SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")

_DIGITS = {
    "days": 1,
    "from": 1,
    "to": 1,
    "GPU-hours": 0,
    "USD": 0,
    "MWh": 0,
    "t CO2": 0,
    "goodput %": 1,
    "tokens/s/GPU": 0,
    "MFU %": 1,
    "failures": 1,
    "peak GiB": 1,
    "to GiB": 1,
    "usable GiB": 1,
}


def write_plan_page(result: PlanResult, path: str | Path) -> None:
    """Write a plan as one page that works offline; it appears whole or not at all."""
    check_page(path)
    question = result.question
    asked = limits_text(question)
    title = f"Plan: {question.job.model.name} on {number(question.tokens)} tokens"
    sections = [
        *_would_do(result),
        *_choices(result),
        *_listed("What would change the answer", changes_of(result.question, result.choices)),
        *_listed("What the figures rest on", result.assumptions),
        *_not_chosen(result),
        *_job(result),
    ]
    write_page(path, f"{title} {asked}".strip(), result.answer, sections)


def _choices(result: PlanResult) -> list[Section]:
    choices = result.choices[: result.top]
    if not choices:
        return [Section("Choices", "Nothing fits on any cluster that was tried.")]
    heads = {"#": [place + 1 for place in range(len(choices))]}
    decisive: dict[str, list[Any]] = {
        **heads,
        "GPUs": [each.gpus for each in choices],
        "device": [each.label for each in choices],
        "days": [each.run.days for each in choices],
        "from": [each.run.days_low for each in choices],
        "to": [each.run.days_high for each in choices],
        **_known("USD", choices, lambda each: each.run.cost_usd),
        "GPU-hours": [each.run.gpu_hours for each in choices],
        **_known("MWh", choices, lambda each: each.run.energy_mwh),
        **_known("t CO2", choices, lambda each: each.run.co2_t),
        "memory": [WORDS[each.verdict] for each in choices],
    }
    if limits_text(result.question):
        decisive["in limits"] = [KEEPS[each.status] for each in choices]
    decisive |= {
        "group": [each.group for each in choices],
        "why it is there": [each.remark for each in choices],
    }
    technical: dict[str, list[Any]] = {
        **heads,
        "cluster": [each.name for each in choices],
        "layout": [each.layout for each in choices],
        "tokens/s/GPU": [each.tokens_per_s_per_gpu for each in choices],
        "MFU %": [100.0 * each.mfu for each in choices],
        **_known("goodput %", choices, lambda each: _percent(each.run.goodput)),
        **_known("failures", choices, lambda each: each.run.failures),
        "peak GiB": [each.peak_bytes / GIB for each in choices],
        "to GiB": [each.peak_high_bytes / GIB for each in choices],
        "usable GiB": [each.usable_bytes / GIB for each in choices],
        "limited by": [each.bound for each in choices],
    }
    text = (
        f"Each row is the fastest layout of one cluster. The days lie between from and to in "
        f"{COVERED} % of comparable runs. Rows of one group differ by less than a projection can "
        "tell. A click on a head sorts."
    )
    if len(choices) < len(result.choices):
        text = f"The first {len(choices)} of {len(result.choices)} choices. {text}"
    behind = (
        f"The peak of memory stays below to GiB in {COVERED} % of comparable runs. Goodput is the "
        "share of the days in which steps are made that stay."
    )
    return [
        Section("Choices", text, _columns(decisive)),
        *_picture(result),
        Section("Layouts behind the choices", behind, _columns(technical)),
    ]


def _columns(columns: dict[str, list[Any]]) -> Table:
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return Table(list(columns), rows, _DIGITS)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def _known(
    name: str, choices: tuple[Choice, ...], value: Callable[[Choice], float | None]
) -> dict[str, list[Any]]:
    values = [value(each) for each in choices]
    if all(each is None for each in values):
        return {}
    return {name: ["" if each is None else each for each in values]}


def _listed(title: str, sentences: tuple[str, ...]) -> list[Section]:
    return [Section(title, items=sentences)] if sentences else []


def _would_do(result: PlanResult) -> list[Section]:
    return _listed("What would do", tuple(each.text for each in result.would_do))


def _not_chosen(result: PlanResult) -> list[Section]:
    if not result.skipped:
        return []
    rows = [[each.name, each.reason] for each in result.skipped]
    return [Section("Not among the choices", "", Table(["cluster", "why"], rows))]


def _job(result: PlanResult) -> list[Section]:
    if not result.choices:
        return []
    first = result.choices[0]
    text = " ".join(f"{key}={_text(value)}" for key, value in first.overrides.items())
    return [Section("The first choice as overrides of the job", text)]


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _picture(result: PlanResult) -> list[Section]:
    if not result.choices:
        return []
    name = spend_label(result)
    text = (
        f"Each point is a choice; the bars reach to both ends of its {COVERED} % band. The line "
        f"joins those that no other beats in both days and {name}."
    )
    knee = result.knee
    if knee is not None:
        text += (
            f" The knee is {knee.name}: on the left of it more GPUs save less time for their "
            f"{name}, on the right fewer GPUs save little."
        )
    return [Section(f"Days against {name}", text, figures=[("", figure_of_plan(result))])]


def figure_of_plan(result: PlanResult) -> dict[str, Any]:
    """Return the picture of a plan as a Plotly object."""
    spend, name = result.spend, spend_label(result)
    data = [
        _points(result, label, place)
        for place, label in enumerate(dict.fromkeys(each.label for each in result.choices))
    ]
    front = result.front
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "front",
            "x": [each.run.days for each in front],
            "y": [value_of(each, spend) for each in front],
            "line": {"color": SOFT, "width": 1.5, "shape": "hv"},
            "hoverinfo": "skip",
        }
    )
    if (knee := result.knee) is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "knee",
                "x": [knee.run.days],
                "y": [value_of(knee, spend)],
                "marker": {
                    "size": 20,
                    "symbol": "circle-open",
                    "color": INK,
                    "line": {"width": 1.5},
                },
                "hoverinfo": "skip",
            }
        )
    laid_out = plain_layout("time of the run, days", name)
    runs = [each.run for each in result.choices]
    spent = [value_of(each, spend) for each in result.choices]
    ranges = {
        "xaxis": ([run.days_low for run in runs] + [run.days_high for run in runs], days_number),
        "yaxis": (spent, usd if spend == COST else number),
    }
    for axis, (values, write) in ranges.items():
        ticks = _ticks(min(values) / ROOM, max(values) * ROOM)
        laid_out[axis] |= {
            "type": "log",
            "range": [math.log10(min(values) / ROOM), math.log10(max(values) * ROOM)],
            "tickvals": ticks,
            "ticktext": [write(tick) for tick in ticks],
        }
    return {"data": data, "layout": {**laid_out, "shapes": _limits(result)}}


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers in a range, few enough to be read."""
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if high < 6.0 * low else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        step * 10.0**decade
        for decade in decades
        for step in steps
        if low <= step * 10.0**decade <= high
    ]


def _points(result: PlanResult, label: str, place: int) -> dict[str, Any]:
    members = [each for each in result.choices if each.label == label]
    spent = [value_of(each, result.spend) for each in members]
    runs = [each.run for each in members]
    colour = PALETTE[place % len(PALETTE)]
    bar = {"type": "data", "symmetric": False, "thickness": 1, "width": 3}
    symbol = SYMBOLS[place % len(SYMBOLS)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": [run.days for run in runs],
        "y": spent,
        "text": [f"{each.name}, {each.layout}<br>{each.remark}" for each in members],
        "marker": {
            "color": colour,
            "size": 10,
            "symbol": [symbol if each.fits else f"{symbol}-open" for each in members],
        },
        "error_x": {
            **bar,
            "array": [run.days_high - run.days for run in runs],
            "arrayminus": [run.days - run.days_low for run in runs],
        },
        "hovertemplate": "%{x:,.1f} days, %{y:,.0f} " + spend_label(result) + "<br>%{text}"
        "<extra></extra>",
    }


def _limits(result: PlanResult) -> list[dict[str, Any]]:
    question = result.question
    line = {"color": INK, "width": 1, "dash": "dash"}
    shapes: list[dict[str, Any]] = []
    if (days := question.deadline_days) is not None:
        label = {
            "text": f"deadline, {days:,g} days",
            "textposition": "end",
            "textangle": 0,
            "xanchor": "left",
        }
        shapes.append(
            {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": days, "x1": days,
             "line": line, "label": label}
        )  # fmt: skip
    if (money := question.budget_usd) is not None and result.spend == COST:
        label = {"text": f"budget, {usd(money)}", "textposition": "end"}
        shapes.append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": money, "y1": money,
             "line": line, "label": label}
        )  # fmt: skip
    return shapes
