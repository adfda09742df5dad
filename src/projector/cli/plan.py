"""``projector plan``."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    announce_compilation,
    print_json,
    print_report,
    print_warnings,
)
from projector.cli.pictures import say_written
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.planning.plan import PlanResult


@click.command("plan")
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--config", metavar="FILE", help="Job file, for a run that is described already.")
@click.option("--model", metavar="NAME", help="Model, where there is no job file.")
@click.option("--tokens", metavar="N", help="Tokens to train: 1e12, 300B, 15.6T.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME[@NETWORK]",
    help="Device to choose from; may be repeated. Left out: that of the job, or a stated list.",
)
@click.option(
    "--gpus",
    multiple=True,
    type=int,
    metavar="N",
    help="Size to choose from; may be repeated. Left out: sizes that answer the question.",
)
@click.option("--deadline-days", type=float, metavar="N", help="Days that the run may take.")
@click.option("--deadline", metavar="DATE", help="The same as a date, for a start today.")
@click.option("--budget-usd", type=float, metavar="N", help="USD that the run may cost.")
@click.option(
    "--usd-per-gpu-hour",
    "prices",
    multiple=True,
    metavar="[NAME=]X",
    help="Price of an hour of a GPU, for all devices or for one; may be repeated.",
)
@click.option("--top", default=10, show_default=True, metavar="N", help="Choices to show.")
@click.option(
    "--fidelity",
    default="tiles",
    show_default=True,
    metavar="tiles|first-order",
    help="Model of the step time.",
)
@click.option("--plot", metavar="FIGURE", help="Draw days against money as .png, .svg or .pdf.")
@click.option("--html", metavar="FILE.html", help="Write one page for the person who decides.")
@click.option("--job-out", metavar="FILE", help="Write the first choice as a job file.")
@output_options
def command(
    assignments: tuple[str, ...],
    config: str | None,
    model: str | None,
    tokens: str | None,
    devices: tuple[str, ...],
    gpus: tuple[int, ...],
    deadline_days: float | None,
    deadline: str | None,
    budget_usd: float | None,
    prices: tuple[str, ...],
    top: int,
    fidelity: str,
    plot: str | None,
    html: str | None,
    job_out: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Rank clusters and layouts for a training run: days, GPU-hours, money, energy.

    Every size of every device is searched for its fastest layout that fits. With a deadline the
    cheapest that keeps it comes first, with a budget the fastest within it, without either the
    knee of days against money. Limits count with the upper end of a band. Without prices
    GPU-hours stand for money.

    Exit code 3: nothing that was tried keeps the limits and fits. The nearest are printed, and
    what would do.

    \b
    Examples:
      projector plan --model llama3.1_70b --tokens 1T --deadline-days 30
      projector plan --model llama3.1_70b --tokens 1T --device h100 \\
        --budget-usd 1e6 --usd-per-gpu-hour 2.5
      projector plan --config job.yaml --tokens 300B --gpus 256 --gpus 512 --html plan.html
    """  # noqa: D301  click looks for the backspace
    days = _deadline(deadline_days, deadline)
    question: dict[str, Any] = {
        "job": config,
        "devices": devices or None,
        "gpus": gpus or None,
        "deadline_days": days,
        "budget_usd": budget_usd,
        "usd_per_gpu_hour": _prices(prices),
        "top": top,
    }
    _check_files(plot, html, job_out)
    if fidelity != "first-order":
        announce_compilation(quiet=quiet)
    from projector.config.load import parse_override
    from projector.planning.plan import project_plan
    from projector.report.terminal.progress import SweepProgress

    with SweepProgress(quiet=quiet, unit="clusters", found="layouts") as progress:
        result = project_plan(
            model,
            tokens,
            **question,
            fidelity=fidelity,
            overrides=dict(parse_override(text) for text in assignments),
            progress=progress,
        )
    _write_files(result, plot, html, job_out, quiet=quiet)
    if as_json:
        print_json(result.to_dict())
    else:
        from projector.report.plan import plan_document

        print_report([plan_document(result)])
    print_warnings(result.warnings, quiet=quiet or as_json)
    return SUCCESS if result.met else DOES_NOT_FIT


def _deadline(days: float | None, deadline: str | None) -> float | None:
    if deadline is None:
        return days
    if days is not None:
        msg = "--deadline-days and --deadline say the same; give one of them"
        raise ConfigError(msg, key="deadline", value=deadline, allowed="one of both")
    from projector.planning.question import days_until

    return days_until(deadline, datetime.now().astimezone().date())


def _prices(texts: Sequence[str]) -> float | dict[str, float] | None:
    """Read ``X``, or ``NAME=X`` for each device."""
    if not texts:
        return None
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if name in found:
            msg = f"usd_per_gpu_hour: {name or 'the price of all devices'} is given twice"
            raise ConfigError(msg, key="usd_per_gpu_hour", value=text, allowed="each once")
        try:
            found[name] = float(value)
        except ValueError:
            msg = f"usd_per_gpu_hour is a number, or NAME=number for one device; got {text!r}"
            raise ConfigError(
                msg, key="usd_per_gpu_hour", value=text, allowed="X or NAME=X"
            ) from None
    if "" not in found:
        return found
    if len(found) > 1 or len(texts) > 1:
        msg = "usd_per_gpu_hour: one price for all devices, or NAME=X for each, not both"
        raise ConfigError(msg, key="usd_per_gpu_hour", value=list(texts), allowed="X or NAME=X")
    return found[""]


def _check_files(plot: str | None, html: str | None, job_out: str | None) -> None:
    """Refuse files that could not be written, before anything is computed."""
    if plot is not None:
        from projector.report.figures.figure import check_figure

        check_figure(plot)
    if html is not None:
        from projector.report.pages.page import check_page

        check_page(html)
    if job_out is not None:
        from projector.files import check_place

        check_place(job_out, key="job_out")


def _write_files(
    result: "PlanResult", plot: str | None, html: str | None, job_out: str | None, *, quiet: bool
) -> None:
    written: list[Any] = []
    if plot is not None:
        from projector.report.plan import write_plan_figure

        write_plan_figure(result, plot)
        written.append(plot)
    if html is not None:
        from projector.report.plan import write_plan_page

        write_plan_page(result, html)
        written.append(html)
    if job_out is not None and result.choices:
        from projector.report.job_file import write_job

        write_job(result.choices[0].job, job_out, result.answer)
        written.append(job_out)
    elif job_out is not None:
        print_warnings([f"there is no choice: {job_out} is not written"], quiet=quiet)
    for path in written:
        say_written(path, quiet=quiet)
