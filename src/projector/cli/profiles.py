"""Commands that write the profile of a device: ``calibrate`` and ``probe``."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from projector.cli.options import argument, command, flag, option, refuse_idle
from projector.cli.output import Printer, announce_compilation, keep_worker, say
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.calibrate.profile import Calibration, OwnCalibration


@command()
def calibrate(
    *,
    arguments: tuple[str, ...] = argument("[KIND FILE.csv | KEY=VALUE...]"),
    from_run: tuple[str, ...] = option(
        "JOB.yaml", "Job that you measured; repeat it, each with its --measured-ms."
    ),
    measured_ms: tuple[float, ...] = option("X", "Time of one step of that job, in order."),
    from_runs: str | None = option("RUNS.csv", "Table of such jobs: columns job and measured_ms."),
    device: str | None = option(
        "NAME", "Shipped device to fit, or a profile that extends one; runs have one of their own."
    ),
    out: str | None = option("FILE.yaml", "Profile to write; without it nothing is written."),
    fields: str = option(
        "A,B,...",
        "Fields to fit to a table instead of the kind's own, such as hbm_efficiency.",
        default="",
    ),
    holdout: float = option(
        "FRACTION",
        "Share of a table's rows to set aside for judging only, in whole groups.",
        default=0.0,
    ),
    force: bool = flag("Overwrite an existing file."),
    printer: Printer,
) -> None:
    """Fit a device's constants to a measurement table or to your own runs; write a new profile.

    KIND is gemm_measured, attention_measured or collectives_measured. The fit is repeated without
    each fifth of the shapes, which shows whether it carries over to shapes it has not seen.

    With --from-run, constants of training move within their priors until the jobs take what you
    measured; KEY=VALUE overrides a field of every job. The report says how far each one moved, and
    what the runs say nothing about.

    The profile extends the device; use it with --gpu-arch FILE.yaml or cluster.device. Shipped
    profiles are never written.
    """
    if out is None:
        refuse_idle("force", needs="--out FILE.yaml")
    calibration: Calibration | OwnCalibration
    if from_run or from_runs or measured_ms:
        for name, value in (("fields", fields), ("holdout", holdout)):
            if value:
                msg = f"{name}: --{name} is for tables; runs move the constants of training"
                raise ConfigError(msg, key=name, value=value, allowed="without --from-run")
        paths, times_ms = _runs(from_run, measured_ms, from_runs)
        from projector.calibrate.profile import check_target, write_own_profile
        from projector.calibrate.runs import calibrate_to_runs, load_runs
        from projector.config.load import parse_override

        overrides = dict(parse_override(text) for text in arguments)
        base, runs = load_runs(paths, times_ms, overrides, device)
        if out is not None:
            check_target(out, [*base.files, *paths], force=force)
        announce_compilation(quiet=printer.quiet)
        calibration = calibrate_to_runs(base, runs)
        if out is not None:
            write_own_profile(calibration, out, force=force)
    else:
        names = [name.strip() for name in fields.split(",") if name.strip()]
        from projector.calibrate.profile import check_target, load_base, write_profile
        from projector.calibrate.run import calibrate

        if len(arguments) != 2:
            msg = "calibrate needs KIND and FILE.csv, or --from-run with --measured-ms"
            raise ConfigError(msg, key="arguments", value=list(arguments), allowed="KIND FILE.csv")
        if device is None:
            msg = "device: --device names the device whose rows of the table count"
            raise ConfigError(
                msg, key="device", value=None, allowed="a shipped device or a profile"
            )
        kind, file = arguments
        if out is not None:
            check_target(out, [*load_base(device).files, file], force=force)
        announce_compilation(quiet=printer.quiet)
        calibration = calibrate(
            kind, file, device, fields=names, holdout=holdout, say=printer.progress
        )
        if out is not None:
            write_profile(calibration, out, table=file, force=force)
    from projector.report.terminal.measure import report_of

    told = {**calibration.to_dict(), "output": out, "warnings": calibration.warnings}
    printer.show(told, lambda _: report_of(calibration), calibration.warnings, out)


def _runs(
    from_run: tuple[str, ...], measured_ms: tuple[float, ...], from_runs: str | None
) -> tuple[list[str], list[float]]:
    """Return the jobs of the options, then those of the table, with their times."""
    from projector.calibrate.runs import read_table

    paths, times_ms = list(from_run), list(measured_ms)
    if len(paths) != len(times_ms):
        msg = (
            f"measured-ms: {len(paths)} --from-run and {len(times_ms)} --measured-ms; each run "
            f"needs its time"
        )
        raise ConfigError(msg, key="measured-ms", value=len(times_ms), allowed=len(paths))
    if from_runs is not None:
        more, their_ms = read_table(from_runs)
        paths += more
        times_ms += their_ms
    return paths, times_ms


@command()
def probe(
    *,
    out: str | None = option("FILE.yaml", "Profile to write; without it nothing is written."),
    device: Literal["auto", "cpu", "cuda"] = option(
        None,
        "What to probe: a GPU if torch sees one, else the CPU. cuda is torch's name for GPUs of "
        "both vendors.",
        shown="auto",
    ),
    threads: int | None = option(
        None, "Threads of a CPU; all cores unless stated.", type=click.IntRange(1)
    ),
    base: str | None = option(
        "NAME", "Shipped device that a GPU's profile extends, if not its own."
    ),
    timeout_s: float = option(
        None,
        "Seconds after which the measurement is ended.",
        shown=1800.0,
        type=click.FloatRange(min=0.0, min_open=True),
    ),
    force: bool = flag("Overwrite an existing file."),
    printer: Printer,
) -> None:
    """Measure this machine and write its device profile.

    torch runs GEMMs, attention, memory-bound operators, layers and steps of small training jobs in
    a process of its own. A profile is fitted to all of them. Every number says where it comes from.
    A CPU gets a whole profile. The profile of a GPU extends the shipped one and holds what differs.
    Commands take the file in place of a device's name, as cluster.device or --gpu-arch.

    It takes about a minute on a CPU. Leave the machine alone meanwhile: a busy one is measured as
    busy.
    """
    if out is None:
        refuse_idle("force", needs="--out FILE.yaml")
    else:
        from projector.calibrate.profile import check_target
        from projector.files import check_place

        check_place(check_target(out, force=force), key="out")
    announce_compilation(quiet=printer.quiet)
    from projector.calibrate.probed import fit_probe
    from projector.measure.probe import identify, plan_probe
    from projector.measure.process import run_task
    from projector.measure.task import Sparing

    worker = keep_worker()
    environment = identify(device, threads, timeout_s=timeout_s)
    probe = plan_probe(environment, base)
    printer.say(f"{environment.device}: measuring {len(probe.task.programs)} programs ...")
    progress = None if printer.quiet else Sparing(say)
    answer = run_task(probe.task, timeout_s=timeout_s, progress=progress)
    worker.dismiss()
    printer.say(f"fitting {len(probe.settings.fields)} numbers of the profile ...")
    probed = fit_probe(probe, answer)
    warnings = []
    if probed.missing:
        name, why = next(iter(probed.missing.items()))
        warnings.append(
            f"{len(probed.missing)} programs have no time, and nothing was fitted to them; "
            f"{name}: {why}"
        )
    if probed.unsettled:
        warnings.append(
            f"{probed.unsettled} programs did not settle: the machine was busy, or its clock moved"
        )
    if out is not None:
        from projector.files import write_whole

        write_whole(Path(out), probed.text().encode(), key="out")
    from projector.report.terminal.measure import probe_report

    told = {**probed.to_dict(), "output": out, "warnings": warnings}
    printer.show(told, lambda _: probe_report(probed), warnings, out)
