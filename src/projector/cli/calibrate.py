"""``projector calibrate``."""

from typing import TYPE_CHECKING

import click

from projector.cli.given import refuse_idle
from projector.cli.job_options import output_options
from projector.cli.output import (
    announce_compilation,
    plain_envelope,
    print_json,
    print_report,
    print_warnings,
    say,
)
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.calibrate.profile import Calibration, OwnCalibration


@click.command("calibrate")
@click.argument("arguments", nargs=-1, metavar="[KIND FILE.csv | KEY=VALUE...]")
@click.option(
    "--from-run",
    "from_run",
    multiple=True,
    metavar="JOB.yaml",
    help="Job that you measured; repeat it, each with its --measured-ms.",
)
@click.option(
    "--measured-ms",
    "measured_ms",
    multiple=True,
    type=float,
    metavar="X",
    help="Time of one step of that job, in order.",
)
@click.option(
    "--from-runs",
    "from_runs",
    metavar="RUNS.csv",
    help="Table of such jobs: columns job and measured_ms.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="Shipped device to fit, or a profile that extends one; runs have one of their own.",
)
@click.option("--out", metavar="FILE.yaml", help="Profile to write; without it nothing is written.")
@click.option(
    "--fields",
    default="",
    metavar="A,B,...",
    help="Fields to fit to a table instead of the kind's own, such as hbm_efficiency.",
)
@click.option(
    "--holdout",
    type=float,
    default=0.0,
    metavar="FRACTION",
    help="Share of a table's rows to set aside for judging only, in whole groups.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@output_options
def command(
    arguments: tuple[str, ...],
    from_run: tuple[str, ...],
    measured_ms: tuple[float, ...],
    from_runs: str | None,
    device: str | None,
    out: str | None,
    fields: str,
    holdout: float,
    force: bool,
    as_json: bool,
    quiet: bool,
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
        _no_table_options(fields, holdout)
        paths, times_ms = _runs(from_run, measured_ms, from_runs)
        calibration = _from_runs(paths, times_ms, arguments, device, out, force=force, quiet=quiet)
    else:
        names = [name.strip() for name in fields.split(",") if name.strip()]
        calibration = _from_table(arguments, device, names, holdout, out, force=force, quiet=quiet)
    if as_json:
        warnings = {"warnings": calibration.warnings}
        print_json({**plain_envelope(), **calibration.to_dict(), "output": out, **warnings})
        return
    from projector.report.terminal.calibrate import report_of

    print_report(report_of(calibration))
    print_warnings(calibration.warnings, quiet=quiet)
    if out is not None and not quiet:
        say(f"wrote {out}")


def _from_table(
    arguments: tuple[str, ...],
    device: str | None,
    fields: list[str],
    holdout: float,
    out: str | None,
    *,
    force: bool,
    quiet: bool,
) -> "Calibration":
    from projector.calibrate.profile import check_target, load_base, write_profile
    from projector.calibrate.run import calibrate

    if len(arguments) != 2:
        msg = "calibrate needs KIND and FILE.csv, or --from-run with --measured-ms"
        raise ConfigError(msg, key="arguments", value=list(arguments), allowed="KIND FILE.csv")
    if device is None:
        msg = "device: --device names the device whose rows of the table count"
        raise ConfigError(msg, key="device", value=None, allowed="a shipped device or a profile")
    kind, file = arguments
    if out is not None:
        check_target(out, load_base(device), [file], force=force)
    announce_compilation(quiet=quiet)
    calibration = calibrate(
        kind, file, device, fields=fields, holdout=holdout, say=None if quiet else say
    )
    if out is not None:
        write_profile(calibration, out, table=file, force=force)
    return calibration


def _from_runs(
    paths: list[str],
    times_ms: list[float],
    assignments: tuple[str, ...],
    device: str | None,
    out: str | None,
    *,
    force: bool,
    quiet: bool,
) -> "OwnCalibration":
    from projector.calibrate.profile import check_target, write_own_profile
    from projector.calibrate.runs import calibrate_to_runs, load_runs
    from projector.config.load import parse_override

    overrides = dict(parse_override(text) for text in assignments)
    base, runs = load_runs(paths, times_ms, overrides, device)
    if out is not None:
        check_target(out, base, paths, force=force)
    announce_compilation(quiet=quiet)
    calibration = calibrate_to_runs(base, runs)
    if out is not None:
        write_own_profile(calibration, out, force=force)
    return calibration


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


def _no_table_options(fields: str, holdout: float) -> None:
    for name, value in (("fields", fields), ("holdout", holdout)):
        if value:
            msg = f"{name}: --{name} is for tables; runs move the constants of training"
            raise ConfigError(msg, key=name, value=value, allowed="without --from-run")
