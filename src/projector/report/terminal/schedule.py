"""The report of `projector schedule`: one row a schedule, the fastest that fits first."""

from rich.console import RenderableType
from rich.text import Text

from projector.config.job import Job
from projector.report.terminal.job import title
from projector.report.terminal.tables import DIM, add_row, gib, grid, milliseconds, percent, section
from projector.schedule.compare import DOES_NOT_FIT, OK, Candidate, ScheduleComparison
from projector.schedule.registry import SCHEDULES


def schedule_report(found: ScheduleComparison, job: Job | None = None) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    parts: list[RenderableType] = [] if job is None else [title(job)]
    return [
        *parts,
        _pipeline(found),
        _verdict(found),
        Text(),
        *_table(found, job is not None),
        *_searches(found),
        *_left_out(found),
    ]


def _pipeline(found: ScheduleComparison) -> Text:
    text = Text()
    for name, value in (
        ("PP", f"{found.pp:,}"),
        ("VPP", f"{found.vpp:,}"),
        ("microbatches", f"{found.microbatches:,}"),
    ):
        text.append("  ").append(f"{name} ", style=DIM).append(value)
    return text


def _verdict(found: ScheduleComparison) -> Text:
    best = found.best
    if best is None:
        unfit = any(each.status == DOES_NOT_FIT for each in found.candidates)
        return Text("NOTHING FITS" if unfit else "NO SCHEDULE CAN RUN", style="bold red")
    several = sum(each.run is not None for each in found.candidates) > 1
    if found.fits:
        line = Text("FASTEST THAT FITS" if several else "FITS", style="bold green")
    else:
        line = Text("NOTHING FITS" if several else "DOES NOT FIT", style="bold red")
    name = best.schedule if found.fits or not several else f"the fastest is {best.schedule}"
    return line.append(f"  {name}, {_time(best)}", style="not bold default")


def _time(each: Candidate) -> str:
    if each.iteration_s is not None:
        return f"{milliseconds(each.iteration_s)} ms a step"
    return f"{each.time_s:.6g} s"


def _table(found: ScheduleComparison, of_a_job: bool) -> list[RenderableType]:
    times = ("step ms", "pipeline ms") if of_a_job else ("time s",)
    memory = "peak GiB" if of_a_job else "microbatches"
    table = grid("=schedule", "vpp", *times, "bubble", "in flight", memory, "=status")
    ran = [(each, each.run) for each in found.candidates if each.run is not None]
    if not ran:
        return []
    for each, run in ran:
        makespan = milliseconds(run.makespan_s) if of_a_job else f"{run.makespan_s:.6g}"
        fits = each.status == OK
        add_row(
            table,
            each.schedule,
            str(each.vpp),
            *([] if each.iteration_s is None else [milliseconds(each.iteration_s)]),
            makespan,
            percent(run.bubble_fraction),
            f"{max(run.peak_in_flight):,}",
            gib(each.peak) if of_a_job else f"{each.peak:,.6g}",
            Text("ok") if fits else Text("does not fit", style="red"),
            style="bold" if fits and each is found.best else None,
        )
    note = "in flight: microbatch-chunks that the fullest rank holds"
    if not of_a_job:
        note += "; microbatches: over all its chunks"
    return section("Schedules", note, table)


def _searches(found: ScheduleComparison) -> list[RenderableType]:
    """Say of each schedule that was searched for how far it may be from the best."""
    lines: list[RenderableType] = []
    for each in found.candidates:
        search = None if each.run is None else each.run.search
        if search is not None:
            lines.append(
                Text(
                    f"{each.schedule}: {search.status} after {search.seconds:.2g} s; a better "
                    f"order could save {percent(search.gap)} of the {search.objective} at most"
                )
            )
    return [Text(), *lines] if lines else []


def _left_out(found: ScheduleComparison) -> list[RenderableType]:
    """Say of each schedule that did not run why not."""
    table = grid("=schedule", "=status", "<why")
    without = [each for each in found.candidates if each.run is None]
    for each in without:
        status = "does not fit" if each.status == DOES_NOT_FIT else "cannot run"
        if SCHEDULES[each.schedule].on_request:
            status = "not tried"
        add_row(table, each.schedule, status, each.reason)
    return section("Left out", "", table) if without else []
