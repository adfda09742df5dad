"""``projector probe``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    from projector.calibrate.probed import Probed

SUFFIXES = (".yaml", ".yml")


@click.command("probe")
@click.option("--out", metavar="FILE.yaml", help="Profile to write; without it nothing is written.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What to probe: a GPU if torch sees one, else the CPU. cuda is torch's name for GPUs of "
    "both vendors.",
)
@click.option(
    "--threads", type=click.IntRange(1), help="Threads of a CPU; all cores unless stated."
)
@click.option(
    "--base", metavar="NAME", help="Shipped device that a GPU's profile extends, if not its own."
)
@click.option(
    "--timeout-s", type=click.FloatRange(min=0.0, min_open=True), default=1800.0,
    show_default=True, help="Seconds after which the measurement is ended.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@output_options
def command(
    out: str | None,
    device: Literal["auto", "cpu", "cuda"],
    threads: int | None,
    base: str | None,
    timeout_s: float,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure this machine and write its device profile.

    torch runs GEMMs, attention, memory-bound operators, layers and steps of small training jobs in
    a process of its own. A profile is fitted to all of them. Every number says where it comes from.
    A CPU gets a whole profile. The profile of a GPU extends the shipped one and holds what differs.
    Commands take the file in place of a device's name, as cluster.device or --gpu-arch.

    It takes a few minutes. Leave the machine alone meanwhile: a busy one is measured as busy.
    """
    if out is None:
        refuse_idle("force", needs="--out FILE.yaml")
    else:
        _check_place(out, force=force)
    announce_compilation(quiet=quiet)
    probed = _probe(device, threads, base, timeout_s, quiet=quiet)
    warnings = _warnings(probed)
    if out is not None:
        from projector.files import write_whole

        write_whole(Path(out), probed.text().encode(), key="out")
    if as_json:
        result: dict[str, Any] = {**plain_envelope(), **probed.to_dict(), "output": out}
        print_json({**result, "warnings": warnings})
        return
    from projector.report.terminal.probe import probe_report

    print_report(probe_report(probed))
    print_warnings(warnings, quiet=quiet)
    if out is not None and not quiet:
        say(f"wrote {out}")


def _probe(
    device: Literal["auto", "cpu", "cuda"],
    threads: int | None,
    base: str | None,
    timeout_s: float,
    *,
    quiet: bool,
) -> "Probed":
    from projector.calibrate.probed import fit_probe
    from projector.measure.probe import identify, plan_probe
    from projector.measure.process import run_task
    from projector.measure.progress import Sparing

    environment = identify(device, threads, timeout_s=timeout_s)
    probe = plan_probe(environment, base)
    if not quiet:
        say(f"{environment.device}: measuring {len(probe.task.programs)} programs ...")
    progress = None if quiet else Sparing(say)
    answer = run_task(probe.task, timeout_s=timeout_s, progress=progress)
    if not quiet:
        say(f"fitting {len(probe.settings.fields)} numbers of the profile ...")
    return fit_probe(probe, answer)


def _check_place(out: str, *, force: bool) -> None:
    from projector.files import check_place

    target = Path(out)
    if target.suffix not in SUFFIXES:
        msg = f"out: the name of a profile must end in {' or '.join(SUFFIXES)}"
        raise ConfigError(msg, key="out", value=out, allowed=list(SUFFIXES))
    check_place(target, key="out")
    if target.exists() and not force:
        msg = f"out: {target} exists; choose another file, or overwrite it with --force"
        raise ConfigError(msg, key="out", value=out, allowed="a new file")


def _warnings(probed: "Probed") -> list[str]:
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
    return warnings
