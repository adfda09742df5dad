"""``projector search``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from projector.cli import output
from projector.cli.job import ALL_SCHEDULES, EMIT, PRIMUS, Emission, JobRequest
from projector.cli.options import command, flag, group, option
from projector.envelope import envelope
from projector.errors import ConfigError, shown

if TYPE_CHECKING:
    from projector.searches.result import SearchResult


@command()
def search(
    *,
    asked: JobRequest = group(without=(*PRIMUS, "defaults")),
    top: int = option("N", "Configurations to show.", shown=20),
    headroom_gib: float = option("G", "Memory that must stay free on every rank.", default=0.0),
    allow_risk: bool = output.ALLOW_RISK,
    most_seconds: float | None = option(
        "S", "Begin nothing after S seconds; what was left out is counted."
    ),
    objective: str = option(
        "time|cost|energy|co2",
        "What is made small: time of a step, or USD, MWh or CO2 of the run (run.tokens).",
        shown="time",
    ),
    tp_across_nodes: bool = flag("Let tensor parallelism leave the scale-up domain."),
    recompute: tuple[str, ...] = option(
        "none|selective|full", "Recompute to try; may be repeated; all three when left out."
    ),
    schedules: tuple[str, ...] = option(
        "NAME",
        "Schedule to try; may be repeated; --pipeline-schedule-algorithm when left out.",
        names="--schedule",
    ),
    plots: tuple[str, ...] = option(
        "pareto=FIGURE", "Draw speed against memory as .png, .svg or .pdf.", names="--plot"
    ),
    html: str | None = option("FILE.html", "Write one interactive page that works offline."),
    csv: str | None = output.CSV,
    emit: tuple[str, ...] = EMIT,
    printer: output.Printer,
) -> int:
    """Rank every legal configuration of a job: the fastest that fit, and their memory.

    Model, cluster, sequence length and global batch are those of the job. The search tries all
    legal combinations of tensor, pipeline, virtual pipeline, context and expert degrees,
    micro-batch size, recompute and ZeRO stage. Nothing is sampled. What the command line states of
    these, as tp=8 or --micro-batch-size 2, is kept and not searched. With --emit only those are
    legal that the framework can run. Configurations of one group differ by less than a projection
    can tell. Orders that are planned for each configuration (seaailab, zbv-greedy) are planned the
    most promising first, until no other can matter.

    Exit code 3: nothing fits, or without --allow-risk nothing but what is at risk. Exit code 4:
    --most-seconds ended the search; what was found is printed. So it is after an interrupt, with
    exit code 130.

    \b
    Examples:
      projector search --config job.yaml --top 5
      projector search --config job.yaml --objective energy run.tokens=1e12
      projector search --config job.yaml --target-nodes 32 --headroom-gib 8 --recompute none
      projector search --config job.yaml --plot pareto=front.png --html ranked.html
      projector search --config job.yaml --emit megatron=winner.sh
    """  # noqa: D301  click looks for the backspace
    pictures = output.read_pictures(plots, html, "OF_SEARCH")
    output.check_files(csv=csv)
    emission = Emission.of(emit)
    job = asked.load()
    fixed = _fixed(asked, {"recompute": recompute, "schedule": schedules})
    from projector.report.terminal.progress import SearchProgress
    from projector.searches.configurations import search
    from projector.searches.limits import RECOMPUTE, Limits

    limits = Limits(
        headroom_gib=headroom_gib,
        allow_risk=allow_risk,
        tp_inside_node=not tp_across_nodes,
        recompute=recompute or RECOMPUTE,
        schedules=schedules or _schedules(asked),
        fixed=fixed,
        formats=emission.formats,
    )
    with (
        output.compiling_steps(quiet=printer.quiet),
        SearchProgress(quiet=printer.quiet, say=output.say) as progress,
    ):
        result = search(
            job,
            top=top,
            limits=limits,
            objective=objective,
            most_seconds=most_seconds,
            progress=progress.see,
            keep_interrupted=True,
        )
    emitted = emission.of_job(result.best[0].job) if result.best else []
    output.write_pictures(pictures, result, printer)
    if html is not None:
        from projector.report.search import write_search_page

        write_search_page(result, html)
        printer.wrote(html)
    output.write_csv(result, csv, printer)
    from projector.projection.provenance import provenance_of

    provenance = provenance_of(result.job)
    if printer.as_json:
        whole = {**envelope(provenance.warnings, result.uncertainty), **result.to_dict()}
        output.print_json(emission.add_to(whole, emitted))
    elif not (emission.on_output and emitted):
        from projector.report.search import search_report

        output.print_report([search_report(result)])
    printer.warn_beside_report(provenance.warnings)
    if not printer.as_json and emitted:
        emission.show(emitted, result.best[0].job, printer)
    if not emitted:
        emission.refuse("no configuration is within the limits")
    return _exit_code(result)


def _exit_code(result: "SearchResult") -> int:
    from projector.searches.limits import INTERRUPTED as BY_USER

    if result.stopped:
        return output.INTERRUPTED if result.stopped == BY_USER else output.OUT_OF_TIME
    return output.SUCCESS if result.configurations else output.DOES_NOT_FIT


def _schedules(asked: JobRequest) -> tuple[str, ...]:
    if asked.schedule != ALL_SCHEDULES:
        return ("auto",)
    from projector.schedule.registry import SCHEDULES

    return tuple(name for name, entry in SCHEDULES.items() if not entry.on_request)


def _fixed(asked: JobRequest, tried: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the searched fields that the command line states, and that the search keeps."""
    from projector.searches.limits import PLACED, SEARCHED

    given, _ = asked.overrides()
    fixed = []
    for field, value in given.items():
        name = ".".join(field.split(".")[:2])
        if field in PLACED and value is not None:
            msg = f"{field}: a search derives it, so that {shown(value)} has no effect"
            raise ConfigError(
                msg, key=field, value=value, allowed="performance projects one layout"
            )
        if name not in SEARCHED:
            continue
        option = name.partition(".")[2]
        if tried.get(option):
            msg = f"{field} and --{option} both say what is tried; give one of them"
            raise ConfigError(msg, key=field, value=value, allowed=f"without --{option}")
        fixed.append(name)
    if asked.schedule == ALL_SCHEDULES and (tried["schedule"] or "training.schedule" in fixed):
        msg = "--pipeline-schedule-algorithm all tries every schedule; name none beside it"
        raise ConfigError(msg, key="schedule", value=ALL_SCHEDULES, allowed="one of the two")
    return tuple(dict.fromkeys(fixed))
