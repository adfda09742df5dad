"""Report of `search`: the best configurations, their trade-offs, and illegal ones."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.projection.bands import COVERED, FITS
from projector.report.terminal.grid import Grid
from projector.report.terminal.lines import Pasted, assignments
from projector.report.terminal.tables import DIM, Fitting, add_row, gib, grid, percent, section
from projector.searches.ranking import NAMES, TIME, UNITS, Configuration
from projector.searches.result import SearchResult

SHOWN_PARETO = 10
LARGE = 100.0
"""Values from here on are written without decimals."""
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp")


def search_report(result: SearchResult) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    job = result.job
    title = Text(
        f"{job.model.name} on {job.cluster.gpus:,} x {job.cluster.device.name}, global batch "
        f"{job.training.global_batch_size:,}, sequence {job.training.seq_length:,}",
        style="bold",
    )
    counts = Text(
        f"{result.evaluated:,} legal configurations in {result.seconds:.1f} s: {counts_of(result)}"
    )
    return [
        title,
        Padding(counts, (0, 0, 0, 2)),
        *(Padding(Text(line), (0, 0, 0, 2)) for line in unseen_of(result)),
        Text(),
        *_best(result),
        *_pareto(result),
        *_illegal(result),
    ]


def counts_of(result: SearchResult) -> str:
    """Say how many configurations fit, are at risk, and leave too little memory."""
    return (
        f"{result.fitting:,} fit, {result.at_risk:,} are at risk, {result.too_large:,} leave too "
        f"little memory"
    )


def unseen_of(result: SearchResult) -> list[str]:
    """Say which configurations were not evaluated, and what is known of them."""
    lines = []
    if result.ruled_out:
        lines.append(
            f"{result.ruled_out:,} more are proven to be slower than the best, or not to fit; "
            "their orders were not planned"
        )
    if result.stopped:
        known = ""
        if result.left_out_s is not None and result.best:
            gain = result.best[0].iteration_time_s / result.left_out_s - 1.0
            known = (
                f"; none is faster than the first by more than {gain:.1%}"
                if gain > 0.0
                else "; none is faster than the first"
            )
        lines.append(f"STOPPED, {result.stopped}: {result.left_out:,} were left out{known}")
    return lines


def nothing_ranked(result: SearchResult) -> str:
    """Say why nothing is ranked, and what would rank something."""
    if result.stopped:
        return f"The search was stopped, {result.stopped}: nothing that was looked at is ranked."
    if not result.evaluated:
        kept = ", ".join(result.limits.fixed)
        return f"No configuration is legal{f' with the value given for {kept}' if kept else ''}."
    if not result.at_risk:
        return "No configuration leaves enough memory."
    one = result.at_risk == 1
    return (
        f"{result.at_risk:,} {'configuration is' if one else 'configurations are'} at risk: the "
        f"projected peak fits, the upper end of its band does not. --allow-risk ranks "
        f"{'it' if one else 'them'}."
    )


def ways_out(result: SearchResult) -> list[tuple[str, str]]:
    """Return the closest layout and the least devices that would do, each with its overrides."""
    found = []
    near, least = result.closest, result.least
    if near is not None:
        usable = near.peak_bytes + near.headroom_bytes
        text = (
            f"The closest has a peak of {gib(near.peak_bytes)} GiB (to {gib(near.peak_high_bytes)}"
            f"), and {gib(usable)} are usable:"
        )
        found.append((text, command_of(result, near)))
    if least is not None:
        text = f"{least.gpus:,} GPUs on {least.nodes:,} hosts would do, the least that were tried:"
        found.append((text, assignments(result.least_overrides)))
    elif not result.stopped:
        found.append(("No number of hosts that was tried would do.", ""))
    return found


def command_of(result: SearchResult, candidate: Configuration) -> str:
    """Return the overrides that turn the job that was searched into a configuration."""
    return assignments(result.overrides(candidate))


def _best(result: SearchResult) -> list[RenderableType]:
    if not result.best:
        text = Text("NOTHING FITS", style="bold red")
        told: list[RenderableType] = [
            text.append(f"  {nothing_ranked(result)}", style="not bold default"),
            Text(),
        ]
        for sentence, overrides in ways_out(result):
            told += [Text(sentence), *([Pasted(overrides)] if overrides else []), Text()]
        return told
    table = Fitting(_ranked(result, is_wide=True), _ranked(result, is_wide=False))
    title = "Fastest" if result.objective == TIME else f"Least {NAMES[result.objective]}"
    lines = section(title, f"to GiB: where the {COVERED} % band of the peak ends", table)
    return [
        *lines,
        Text(groups_text(result)),
        Text(f"The first is limited by {result.best[0].bound}."),
        Text("The first as overrides of the job:", style=DIM),
        Pasted(command_of(result, result.configurations[0])),
        Text(),
    ]


def _ranked(result: SearchResult, *, is_wide: bool) -> Grid:
    """Return the table of the best; a narrow one leaves out the schedule and MFU."""
    shown = {
        "#": [str(index + 1) for index in range(len(result.best))],
        "group": [str(group) for group in result.groups],
    }
    steps = result.best
    for name in DEGREES:
        shown[name.upper()] = [f"{step.degrees[name]:,}" for step in steps]
    shown["MBS"] = [str(step.job.training.micro_batch_size) for step in steps]
    shown["=recompute"] = [step.job.training.recompute.granularity for step in steps]
    shown["ZeRO"] = [str(step.job.parallelism.sharding_stage) for step in steps]
    if is_wide:
        shown["=schedule"] = [step.schedule for step in steps]
    rates = [f"{step.tokens_per_s_per_gpu:,.0f}" for step in steps]
    shown["tokens/s/GPU" if is_wide else "tok/s/GPU"] = rates
    if result.objective != TIME:
        values = [each.value for each in result.configurations[: len(steps)]]
        shown[UNITS[result.objective]] = [_digits(value) for value in values]
    if is_wide:
        shown["MFU"] = [percent(step.mfu) for step in steps]
    shown["peak GiB"] = [gib(step.memory.peak_bytes) for step in steps]
    shown["to GiB"] = [gib(step.memory.peak_high_bytes) for step in steps]
    if result.limits.allow_risk:
        shown["=risk"] = ["" if step.memory.verdict == FITS else "yes" for step in steps]
    table = grid(*shown, gap=1)
    for index in range(len(steps)):
        cells = (column[index] for column in shown.values())
        add_row(table, *cells, style="bold" if index == 0 else None)
    return table


def groups_text(result: SearchResult) -> str:
    """Say how many configurations are as fast as the fastest, as far as can be told."""
    same = result.groups.count(1)
    first = "fastest" if result.objective == TIME else "first"
    if same == 1:
        return f"No other configuration is within the noise of the {first}."
    return (
        f"Group 1: {same:,} configurations that differ from the {first} by less than the noise of "
        f"a comparison. Choose among them by memory, or measure."
    )


def _pareto(result: SearchResult) -> list[RenderableType]:
    """Show the cost of less memory: evenly chosen points of the front."""
    front = result.pareto
    if len(front) < 2:
        return []
    is_time = result.objective == TIME
    value = "tokens/s/GPU" if is_time else UNITS[result.objective]
    table = grid("peak GiB", value, "of the best", "=configuration")
    last = len(front) - 1
    shown = sorted({round(last * k / (SHOWN_PARETO - 1)) for k in range(SHOWN_PARETO)})
    tokens = result.job.training.global_batch_size * result.job.training.seq_length
    for candidate in (front[index] for index in shown):
        rate = tokens / candidate.iteration_time_s / result.job.cluster.gpus
        add_row(
            table,
            gib(candidate.peak_bytes),
            f"{rate:,.0f}" if is_time else _digits(candidate.value),
            percent(front[0].value / candidate.value),
            _short(candidate.overrides),
        )
    note = f"{len(front)} configurations that no other beats in both"
    return section(f"{_capital(NAMES[result.objective])} against memory", note, table)


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def _digits(value: float) -> str:
    """Write USD, MWh or tonnes: whole numbers where they are large."""
    return f"{value:,.0f}" if value >= LARGE else f"{value:,.3g}"


def _short(overrides: Mapping[str, Any]) -> str:
    names = ("tp", "pp", "vpp", "cp", "ep")
    degrees = [f"{name}{overrides[f'parallelism.{name}']}" for name in names]
    split = [
        text
        for text, name in zip(degrees, names, strict=True)
        if overrides[f"parallelism.{name}"] > 1
    ]
    return " ".join(
        [
            *(split or ["dp only"]),
            f"mbs{overrides['training.micro_batch_size']}",
            f"zero{overrides['parallelism.zero_stage']}",
            _granularity(overrides["training.recompute"]),
        ]
    )


def _granularity(recompute: Any) -> str:
    """Return recompute in a word, also where a job states more of it."""
    return str(recompute["granularity"] if isinstance(recompute, Mapping) else recompute)


def _illegal(result: SearchResult) -> list[RenderableType]:
    if not result.illegal:
        return []
    table = grid("=field that refuses", "configurations")
    for key, count in sorted(result.illegal.items(), key=lambda item: -item[1]):
        add_row(table, key, f"{count:,}")
    return section("Cannot exist", "", table)
