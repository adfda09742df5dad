"""``projector plan``."""

from collections.abc import Sequence
from datetime import datetime

import click

from projector.cli import output
from projector.cli.job import ASSIGNMENTS, EMIT, Emission, refuse_options
from projector.cli.options import command, option
from projector.errors import ConfigError


@command()
def plan(
    *,
    assignments: tuple[str, ...] = ASSIGNMENTS,
    config: str | None = option("FILE", "Job file, for a run that is described already."),
    model: str | None = option("NAME", "Model, where there is no job file."),
    tokens: str | None = option("N", "Tokens to train: 1e12, 300B, 15.6T."),
    devices: tuple[str, ...] = option(
        "NAME[@NETWORK]",
        "Device to choose from; may be repeated. Left out: that of the job, or a stated list.",
        names="--device",
    ),
    gpus: tuple[int, ...] = option(
        "N", "Size to choose from; may be repeated. Left out: sizes that answer the question."
    ),
    global_batch: str | None = option(
        "A..B", "Sequences of a step: a range or several, as A,B. Left out: the job's, or a rule's."
    ),
    deadline_days: float | None = option("N", "Days that the run may take."),
    deadline: str | None = option("DATE", "The same as a date, for a start today."),
    budget_usd: float | None = option("N", "USD that the run may cost."),
    prices: tuple[str, ...] = option(
        "[NAME=]X",
        "Price of an hour of a GPU, for all devices or for one; may be repeated.",
        names="--usd-per-gpu-hour",
    ),
    top: int = option("N", "Choices to show.", shown=10),
    fidelity: str = option("tiles|first-order", "Model of the step time.", shown="tiles"),
    plot: str | None = option("FIGURE", "Draw days against money as .png, .svg or .pdf."),
    html: str | None = option("FILE.html", "Write one page for the person who decides."),
    csv: str | None = output.CSV,
    job_out: str | None = option("FILE", "Write the first choice as a job file."),
    emit: tuple[str, ...] = EMIT,
    printer: output.Printer,
) -> int:
    """Rank clusters and layouts for a training run: days, GPU-hours, money, energy.

    Every size of every device is searched for its fastest layout that fits. With a deadline the
    cheapest that keeps it comes first, with a budget the fastest within it, without either the
    knee of days against money. Limits count with the upper end of a band. Without prices
    GPU-hours stand for money. --emit writes the first choice, and only layouts that the framework
    can run are chosen from.

    Exit code 3: nothing that was tried keeps the limits and fits. The nearest are printed, and
    what would do.

    \b
    Examples:
      projector plan --model llama3.1_70b --tokens 1T --deadline-days 30
      projector plan --model llama3.1_70b --tokens 1T --device h100 \\
        --budget-usd 1e6 --usd-per-gpu-hour 2.5
      projector plan --config job.yaml --tokens 300B --gpus 256 --gpus 512 --html plan.html
      projector plan --config job.yaml --tokens 300B --emit megatron=run.sh
    """  # noqa: D301  click looks for the backspace
    days, usd_per_gpu_hour = _deadline(deadline_days, deadline), _prices(prices)
    output.check_files(plot, html)
    emission = Emission.of(emit)
    output.check_files(job_out=job_out, csv=csv)
    if fidelity == "first-order":
        refuse_options(emit=emit or None)
    else:
        output.announce_compilation(quiet=printer.quiet)
        if click.get_current_context().obj:  # the process is ours alone
            from projector.sweeps.workers import take_over

            take_over()
    from projector.config.job import Job
    from projector.config.load import parse_override
    from projector.planning.plan import project_plan
    from projector.report.terminal.progress import SweepProgress

    with SweepProgress(quiet=printer.quiet, found="layouts") as progress:
        result = project_plan(
            model,
            tokens,
            job=config,
            devices=devices or None,
            gpus=gpus or None,
            deadline_days=days,
            budget_usd=budget_usd,
            usd_per_gpu_hour=usd_per_gpu_hour,
            top=top,
            fidelity=fidelity,
            overrides=dict(parse_override(text) for text in assignments),
            formats=emission.formats,
            global_batch=global_batch,
            progress=progress,
        )
    first = result.choices[0].job if result.choices else None
    emitted = emission.of_job(first) if isinstance(first, Job) else []
    from projector.report.plan import plan_document

    output.draw(plot, "plan.plan_figure", result)
    output.write_page(html, lambda: plan_document(result))
    if job_out is not None and result.choices:
        from projector.report.job_file import write_job

        write_job(result.choices[0].job, job_out, result.answer)
    elif job_out is not None:
        printer.warn([f"there is no choice: {job_out} is not written"])
    output.write_csv(result, csv, printer)
    printer.wrote(plot, html, job_out if result.choices else None)
    if printer.as_json:
        output.print_json(emission.add_to(result.to_dict(), emitted))
    elif not (emission.on_output and emitted):
        output.print_report([plan_document(result)])
    printer.warn_beside_report(result.warnings)
    if not emitted:
        emission.refuse("there is no choice")
    elif isinstance(first, Job) and not printer.as_json:
        emission.show(emitted, first, printer)
    return output.SUCCESS if result.met else output.DOES_NOT_FIT


def _deadline(days: float | None, deadline: str | None) -> float | None:
    if deadline is None:
        return days
    if days is not None:
        msg = "--deadline-days and --deadline say the same; give one of them"
        raise ConfigError(msg, key="deadline", value=deadline, allowed="one of both")
    from projector.planning.question import days_until

    return days_until(deadline, datetime.now().astimezone().date())


def _prices(texts: Sequence[str]) -> float | dict[str, float] | None:
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
