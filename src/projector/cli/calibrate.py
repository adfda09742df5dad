"""``projector calibrate``."""

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    announce_compilation,
    plain_envelope,
    print_json,
    print_report,
    print_warnings,
    say,
)


@click.command("calibrate")
@click.argument("kind")
@click.argument("file", metavar="FILE.csv")
@click.option(
    "--device",
    required=True,
    metavar="NAME",
    help="Shipped device to fit, or a profile that extends one.",
)
@click.option("--out", metavar="FILE.yaml", help="Profile to write; without it nothing is written.")
@click.option(
    "--fields",
    default="",
    metavar="A,B,...",
    help="Fields to fit instead of the kind's own, such as hbm_efficiency.",
)
@click.option(
    "--holdout",
    type=float,
    default=0.0,
    metavar="FRACTION",
    help="Share of the rows to set aside for judging only, in whole groups.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@output_options
def command(
    kind: str,
    file: str,
    device: str,
    out: str | None,
    fields: str,
    holdout: float,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fit a device's constants to a measurement table and write a new profile.

    KIND is gemm_measured, attention_measured or collectives_measured. The profile extends the
    device; use it with --gpu-arch FILE.yaml or cluster.device. Shipped profiles are never written.
    The fit is repeated without each fifth of the shapes, which shows whether it carries over to
    shapes it has not seen.
    """
    from projector.calibrate.profile import check_target, load_base, write_profile
    from projector.calibrate.run import calibrate

    names = [name.strip() for name in fields.split(",") if name.strip()]
    if out is not None:
        check_target(out, load_base(device), file, force=force)
    announce_compilation(quiet=quiet)
    calibration = calibrate(
        kind, file, device, fields=names, holdout=holdout, say=None if quiet else say
    )
    if out is not None:
        write_profile(calibration, out, table=file, force=force)
    if as_json:
        warnings = {"warnings": calibration.warnings}
        print_json({**plain_envelope(), **calibration.to_dict(), "output": out, **warnings})
        return
    from projector.report.terminal.calibrate import calibration_report

    print_report(calibration_report(calibration))
    print_warnings(calibration.warnings, quiet=quiet)
    if out is not None and not quiet:
        say(f"wrote {out}")
