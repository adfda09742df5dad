"""Report of `plan`: the answer, the choices, what would do, and what everything rests on."""

from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.planning.choice import MEETS, MISSES, UNCERTAIN, Choice
from projector.planning.fidelity import FIRST_ORDER
from projector.planning.plan import PlanResult
from projector.planning.question import days_number, number, usd
from projector.planning.words import KEEPS, OF_RUN
from projector.projection.bands import COVERED, WORDS
from projector.report.terminal.first_order import PLAIN_WORDS
from projector.report.terminal.grid import Grid
from projector.report.terminal.tables import (
    DIM,
    Fitting,
    add_row,
    gib,
    grid,
    heading,
    percent,
    section,
)

_STYLES = {MEETS: "bold green", UNCERTAIN: "bold yellow", MISSES: "bold red"}


def plan_report(result: PlanResult) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    return [
        *_answer(result),
        *_choices(result),
        *_layouts(result),
        *_would_do(result),
        *_not_chosen(result),
        *_assumptions(result),
    ]


def _answer(result: PlanResult) -> list[RenderableType]:
    status = result.choices[0].status if result.choices else MISSES
    return [
        Text(result.answer, style=_STYLES[status if result.met else max(status, MISSES)]),
        *([Text(PLAIN_WORDS, style="bold yellow")] if _is_plain(result) else []),
        Text(f"{result.layouts:,} layouts projected in {result.seconds:.1f} s", style=DIM),
        Text(),
    ]


def _is_plain(result: PlanResult) -> bool:
    return result.question.fidelity == FIRST_ORDER


def _choices(result: PlanResult) -> list[RenderableType]:
    if not result.choices:
        return []
    table = Fitting(_table(result, is_wide=True), _table(result, is_wide=False))
    note = f"to: where the {COVERED} % bands end; group: told apart from others"
    if _is_plain(result):
        note = "no bands"
    shown = len(result.choices[: result.top])
    if shown < len(result.choices):
        note = f"{shown} of {len(result.choices)}; {note}"
    return section("Choices", note, table)


def _table(result: PlanResult, *, is_wide: bool) -> Grid:
    """Return the table of choices; a narrow one leaves out rates, energy and the peak."""
    choices = result.choices[: result.top]
    columns: dict[str, Sequence[str]] = {
        "#": [str(place + 1) for place in range(len(choices))],
        "group": [str(each.group) for each in choices],
        "GPUs": [f"{each.gpus:,}" for each in choices],
        "=device": [each.label for each in choices],
        "days": [days_number(each.run.days) for each in choices],
        "to": [days_number(each.run.days_high) for each in choices],
        "GPU-h": [number(each.run.gpu_hours) for each in choices],
    }
    columns |= _known("USD", choices, lambda each: each.run.cost_usd, usd)
    if is_wide:
        columns |= _known("MWh", choices, lambda each: each.run.energy_mwh, _three)
        columns |= _known("t CO2", choices, lambda each: each.run.co2_t, _three)
        columns |= _known("goodput", choices, lambda each: each.run.goodput, percent)
        columns["MFU"] = [percent(each.mfu) for each in choices]
        columns["GiB"] = [gib(each.peak_bytes) for each in choices]
    columns["to GiB"] = [gib(each.peak_high_bytes) for each in choices]
    columns["=memory"] = [WORDS[each.verdict] for each in choices]
    if _limited(result):
        columns["=keeps"] = [KEEPS[each.status] for each in choices]
    elif is_wide:
        columns["=front"] = [_place(each) for each in choices]
    table = grid(*columns, gap=1)
    for place in range(len(choices)):
        style = "bold" if place == 0 else None
        add_row(table, *(column[place] for column in columns.values()), style=style)
    return table


def _limited(result: PlanResult) -> bool:
    return result.question.deadline_days is not None or result.question.budget_usd is not None


def _place(choice: Choice) -> str:
    return "knee" if choice.is_knee else "yes" if choice.on_front else ""


def _known(
    name: str,
    choices: Sequence[Choice],
    value: Callable[[Choice], float | None],
    write: Callable[[float], str],
) -> dict[str, Sequence[str]]:
    """Return a column of what is known of some choices; none where nothing is."""
    values = [value(each) for each in choices]
    if all(each is None for each in values):
        return {}
    return {name: ["" if each is None else write(each) for each in values]}


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _layouts(result: PlanResult) -> list[RenderableType]:
    if not result.choices:
        return []
    table = grid("#", "<layout", "<why it is there", gap=2)
    for place, each in enumerate(result.choices[: result.top]):
        add_row(table, str(place + 1), each.layout, each.remark)
    lines = section("Layouts", "the fastest of each cluster", table)
    knee = result.knee
    if knee is not None:
        text = (
            f"The knee of days against {'USD' if result.spend == 'cost_usd' else 'GPU-hours'}: "
            f"{knee.name}, {days_number(knee.run.days)} days."
        )
        lines[-1:] = [Padding(table, (0, 0, 0, 2)), Text(text), Text()]
    return lines


def _would_do(result: PlanResult) -> list[RenderableType]:
    if not result.would_do:
        return []
    lines = [_sentence(each.text) for each in result.would_do]
    return [heading("What would do", "each is a projection"), *lines, Text()]


def _sentence(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, 2))


def _not_chosen(result: PlanResult) -> list[RenderableType]:
    if not result.skipped:
        return []
    table = grid("=cluster", "<why it offers no choice")
    for each in result.skipped:
        add_row(table, each.name, each.reason)
    return section("Not among the choices", "", table)


def _assumptions(result: PlanResult) -> list[RenderableType]:
    """Show what the plan assumes in full, what runs assume by name and value."""
    of_run = result.choices[0].run.assumptions if result.choices else ()
    shown = [text for text in result.assumptions if not text.startswith(OF_RUN)]
    if of_run:
        short = "; ".join(text.removeprefix("run.").partition(":")[0] for text in of_run)
        shown.append(f"{OF_RUN} {short} (sources: --json, --html).")
    return [heading("Assumed"), *(_sentence(text) for text in shown)]
