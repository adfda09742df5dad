"""``projector sensitivity``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from projector.cli.given import refuse_idle
from projector.cli.job_options import JobRequest, output_options, several_job_options
from projector.cli.output import (
    SUCCESS,
    announce_compilation,
    print_json,
    print_report,
    print_warnings,
    say,
)
from projector.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from projector.config.job import Job
    from projector.searches.bottleneck import BottleneckMap
    from projector.searches.multi_job import SharedSensitivity
    from projector.searches.sensitivity import Sensitivity
    from projector.searches.sobol import SobolIndices


@click.command("sensitivity")
@several_job_options
@click.option(
    "--weight",
    "weights",
    type=float,
    multiple=True,
    metavar="W",
    help="Weight of each job in the geometric mean of their steps, in order; equal when left out.",
)
@click.option(
    "--change",
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="A field is divided and multiplied by 1 + SHARE.",
)
@click.option(
    "--step",
    default=0.001,
    show_default=True,
    metavar="SHARE",
    help="The same for the elasticity at the point.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="DOTTED",
    help="Field to vary; may be repeated; A+B change together; all of the hardware when left out.",
)
@click.option("--sobol", is_flag=True, help="Add Sobol indices; needs the extra sensitivity.")
@click.option(
    "--samples",
    default=512,
    show_default=True,
    metavar="N",
    help="Base samples of --sobol, a power of two; N * (fields + 2) jobs are projected.",
)
@click.option("--seed", default=1, show_default=True, metavar="N", help="Seed of --sobol.")
@click.option(
    "--range",
    "factor",
    type=float,
    metavar="FACTOR",
    help="--sobol and --map vary a field from 1/FACTOR to FACTOR times; 2 and 4 when left out.",
)
@click.option(
    "--map",
    "map_fields",
    metavar="FIELD,FIELD",
    help="Say what bounds the step over two fields: compute, memory, communication, latency or "
    "bubble.",
)
@click.option("--top", default=15, show_default=True, metavar="N", help="Effects to show.")
@click.option(
    "--plot",
    "plots",
    multiple=True,
    metavar="[KIND=]FIGURE.png|.svg|.pdf",
    help="Draw the effects (KIND tornado, which may be left out), the indices (sobol) or the map "
    "(map); may be repeated.",
)
@output_options
def command(
    weights: tuple[float, ...],
    change: float,
    step: float,
    fields: tuple[str, ...],
    sobol: bool,
    factor: float | None,
    map_fields: str | None,
    top: int,
    plots: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **request: Any,
) -> int:
    """Vary hardware numbers and rank their effect on the step of one or several jobs.

    One number at a time gives an elasticity at the point and the effect of a larger change. All
    together, with --sobol, give the share of the variance of the step that each one explains.
    Several --config are ranked by the geometric mean of their steps. The configurations stay;
    ``search`` finds the best ones for other hardware.

    \b
    Examples:
      projector sensitivity --config job.yaml --plot tornado.svg
      projector sensitivity --config a.yaml --config b.yaml --weight 3 --weight 1 --sobol
      projector sensitivity --config job.yaml --plot map=map.png \\
        --map cluster.device.hbm_peak_tb_per_s,cluster.network.nic_gbit_per_s
    """  # noqa: D301  click looks for the backspace
    drawn = _figures(plots, {"tornado": True, "sobol": sobol, "map": map_fields is not None})
    axes = None if map_fields is None else _axes(map_fields)
    if not sobol:
        refuse_idle("samples", "seed", needs="--sobol")
        if axes is None:
            refuse_idle("factor", needs="--sobol or --map")
    sampling = {name: request.pop(name) for name in ("samples", "seed")}
    configs = request.pop("config")
    if len(configs) == 1:
        refuse_idle("weights", needs="several --config")
    jobs = [JobRequest(config=config, **request).load_scheduled() for config in configs]
    announce_compilation(quiet=quiet)
    from projector.searches.multi_job import sensitivity_of, workloads_of

    named = fields or None
    ranges: dict[str, Any] = {} if factor is None else {"factor": factor}
    workloads = workloads_of(jobs, weights or None, configs)
    result = sensitivity_of(workloads, change=change, step=step, fields=named)
    indices, maps = None, list["BottleneckMap"]()
    if sobol:
        from projector.searches.sobol import sobol_indices

        indices = sobol_indices(workloads, fields=named, **sampling, **ranges)
    if axes is not None:
        from projector.searches.bottleneck import bottleneck_map

        maps = [bottleneck_map(job, axes, **ranges) for job in jobs]
    answer = Answer(result, indices, maps)
    for kind, path in drawn:
        answer.draw(kind, path, top)
        if not quiet:
            say(f"wrote {path}")
    if as_json:
        print_json(answer.to_dict(jobs))
        return SUCCESS
    print_report(answer.report(top))
    from projector.projection.provenance import provenance_of

    warnings = dict.fromkeys(warning for job in jobs for warning in provenance_of(job).warnings)
    print_warnings(warnings, quiet=quiet)
    return SUCCESS


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that one call has found."""

    sensitivity: "Sensitivity | SharedSensitivity"
    indices: "SobolIndices | None"
    maps: "Sequence[BottleneckMap]"
    """One for each job, or none."""

    def draw(self, kind: str, path: str, top: int) -> None:
        """Write one figure."""
        if kind == "map":
            from projector.report.figures.bottleneck import write_maps

            write_maps(self.maps, path)
        elif kind == "sobol" and self.indices is not None:
            from projector.report.figures.sobol import write_sobol

            write_sobol(self.indices, path)
        else:
            from projector.report.figures.tornado import write_tornado

            write_tornado(self.sensitivity, path, top)

    def to_dict(self, jobs: "Sequence[Job]") -> dict[str, Any]:
        """Return the object of ``--json``; values of one of several jobs are under its workload."""
        from projector.projection.api import project_jobs
        from projector.projection.provenance import envelope

        # The band depends on the share of attention in a step.
        envelopes = [envelope(step.provenance, step.uncertainty) for step in project_jobs(jobs)]
        maps = [{"map": job_map.to_dict()} for job_map in self.maps] or [{}] * len(jobs)
        result = {**envelopes[0], **self.sensitivity.to_dict()}
        if self.indices is not None:
            result["sobol"] = self.indices.to_dict()
        if len(jobs) == 1:
            return {**result, **maps[0]}
        result["uncertainty"] = {"relative": None, "basis": "each workload has its own"}
        for entry, job_envelope, drawn in zip(result["workloads"], envelopes, maps, strict=True):
            entry |= {
                "warnings": job_envelope["warnings"],
                "uncertainty": job_envelope["uncertainty"],
                **drawn,
            }
        warnings = (warning for job_envelope in envelopes for warning in job_envelope["warnings"])
        result["warnings"] = list(dict.fromkeys(warnings))
        return result

    def report(self, top: int) -> "list[RenderableType]":
        """Return the parts of the report, in the order of printing."""
        from projector.report.terminal.sensitivity import sensitivity_report

        parts = sensitivity_report(self.sensitivity, top)
        if self.indices is not None:
            from projector.report.terminal.sobol import sobol_report

            parts += sobol_report(self.indices)
        if self.maps:
            from projector.report.terminal.bottleneck import map_report

            parts += [part for job_map in self.maps for part in map_report(job_map)]
        return parts


def _figures(plots: Sequence[str], asked: Mapping[str, bool]) -> list[tuple[str, str]]:
    """Split ``KIND=FILE``; refuse figures that cannot be drawn or written."""
    figures = []
    for text in plots:
        kind, equals, path = text.partition("=")
        if not equals or kind not in asked:
            kind, path = "tornado", text
        if not asked[kind]:
            msg = f"--plot {text}: there is nothing to draw without --{kind}"
            raise ConfigError(msg, key="plot", value=text, allowed=f"together with --{kind}")
        from projector.report.figures.figure import check_figure

        check_figure(path)
        figures.append((kind, path))
    return figures


def _axes(text: str) -> list[str]:
    fields = [part.strip() for part in text.split(",")]
    if len(fields) != 2 or not all(fields) or fields[0] == fields[1]:
        msg = f"--map takes two different fields as FIELD,FIELD, got {text!r}"
        raise ConfigError(msg, key="map", value=text, allowed="FIELD,FIELD")
    return fields
