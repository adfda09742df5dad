"""The report of `projector schedule`: one row a schedule, the fastest that fits first."""

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.job import Job
from projector.projection.bands import COVERED, FITS, WORDS
from projector.projection.bands import DOES_NOT_FIT as NOT
from projector.report.terminal.grid import Grid, listing, milliseconds, pairs, percent
from projector.report.terminal.job import STYLES, risk, title
from projector.schedule.compare import DOES_NOT_FIT, OK, Candidate, ScheduleComparison
from projector.schedule.registry import SCHEDULES


def schedule_report(comparison: ScheduleComparison, job: Job | None = None) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    parts: list[RenderableType] = [] if job is None else [title(job)]
    numbers = (
        ("PP", f"{comparison.pp:,}"),
        ("VPP", f"{comparison.vpp:,}"),
        ("microbatches", f"{comparison.microbatches:,}"),
    )
    lines: list[RenderableType] = []
    for candidate in comparison.candidates:
        search = None if candidate.run is None else candidate.run.search
        if search is not None:
            lines.append(
                Text(
                    f"{candidate.schedule}: {search.status} after {search.seconds:.2g} s; a better "
                    f"order could save {percent(search.gap)} of the {search.objective} at most"
                )
            )

    def status(candidate: Candidate) -> str:
        if candidate.status == DOES_NOT_FIT:
            return "does not fit"
        return "not tried" if SCHEDULES[candidate.schedule].on_request else "cannot run"

    unable = [each for each in comparison.candidates if each.run is None]
    table = Grid.of("not_scheduled", unable, status=status)
    return [
        *parts,
        Padding(pairs(numbers), (0, 0, 0, 2)),
        _verdict(comparison),
        Text(),
        *_table(comparison, job is not None),
        *([Text(), *lines] if lines else []),
        *listing("Left out", "", table),
    ]


def _verdict(comparison: ScheduleComparison) -> Text:
    best = comparison.best
    if best is None:
        unfit = any(candidate.status == DOES_NOT_FIT for candidate in comparison.candidates)
        return Text("NOTHING FITS" if unfit else "NO SCHEDULE CAN RUN", style="bold red")
    compared = sum(candidate.run is not None for candidate in comparison.candidates) > 1
    if comparison.fits:
        line = Text("FASTEST THAT FITS" if compared else "FITS", style="bold green")
        band = None if best.run is None else best.run.memory_band
        if band is not None and band.verdict != FITS:
            line = Text(WORDS[band.verdict].upper(), style=f"bold {STYLES[band.verdict]}")
    else:
        line = Text("NOTHING FITS" if compared else "DOES NOT FIT", style="bold red")
    name = best.schedule if comparison.fits or not compared else f"the fastest is {best.schedule}"
    return line.append(f"  {name}, {_time(best)}", style="not bold default")


def _time(candidate: Candidate) -> str:
    if candidate.iteration_s is not None:
        return f"{milliseconds(candidate.iteration_s)} ms a step"
    return f"{candidate.time_s:.6g} s"


def _table(comparison: ScheduleComparison, of_a_job: bool) -> list[RenderableType]:
    best = comparison.best
    table = Grid.of(
        "schedules_of_a_job" if of_a_job else "schedules",
        [each for each in comparison.candidates if each.run is not None],
        style=lambda each: "bold" if each.status == OK and each is best else None,
        in_flight=lambda each: max(each.run.peak_in_flight),
        status=_status,
    )
    note = "bubble: idle time of the busiest rank over its work; "
    note += "in flight: microbatch-chunks that the fullest rank holds"
    if of_a_job:
        note += f"; to GiB: where the {COVERED} % band of the peak ends"
    else:
        note += "; microbatches: over all its chunks"
    return listing("Schedules", note, table)


def _status(candidate: Candidate) -> Text:
    """Say whether a schedule fits; one whose peak fits may be at risk."""
    band = None if candidate.run is None else candidate.run.memory_band
    if candidate.status == DOES_NOT_FIT:
        return Text("does not fit", style=STYLES[NOT])
    return risk(band.verdict) if band is not None and band.verdict != FITS else Text("ok")
