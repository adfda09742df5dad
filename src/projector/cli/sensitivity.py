"""``projector sensitivity``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from projector.cli import output
from projector.cli.job import PRIMUS, JobRequest, config_option
from projector.cli.options import command, flag, group, option, refuse_idle
from projector.envelope import envelope
from projector.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from projector.config.job import Job
    from projector.searches.bottleneck import BottleneckMap
    from projector.searches.sensitivity import Sensitivity, SharedSensitivity
    from projector.searches.sobol import SobolIndices


@command()
def sensitivity(
    *,
    configs: tuple[str, ...] = config_option("; may be repeated"),
    request: JobRequest = group(without=("config", "defaults", *PRIMUS)),
    weights: tuple[float, ...] = option(
        "W",
        "Weight of each job in the geometric mean of their steps, in order; equal when left out.",
        names="--weight",
    ),
    change: float = option("SHARE", "A field is divided and multiplied by 1 + SHARE.", shown=0.1),
    step: float = option("SHARE", "The same for the elasticity at the point.", shown=0.001),
    fields: tuple[str, ...] = option(
        "DOTTED",
        "Field to vary; may be repeated; A+B change together; all of the hardware when left out.",
        names="--field",
    ),
    sobol: bool = flag("Add Sobol indices; needs the extra sensitivity."),
    samples: int = option(
        "N",
        "Base samples of --sobol, a power of two; N * (fields + 2) jobs are projected.",
        shown=512,
    ),
    seed: int = option("N", "Seed of --sobol.", shown=1),
    factor: float | None = option(
        "FACTOR",
        "--sobol and --map vary a field from 1/FACTOR to FACTOR times; 2 and 4 when left out.",
        names="--range",
    ),
    map_fields: str | None = option(
        "FIELD,FIELD",
        "Say what bounds the step over two fields: compute, memory, communication, latency or "
        "bubble.",
        names="--map",
    ),
    top: int = option("N", "Effects to show.", shown=15),
    plots: tuple[str, ...] = option(
        "[KIND=]FIGURE.png|.svg|.pdf",
        "Draw the effects (KIND tornado, which may be left out), the indices (sobol) or the map "
        "(map); may be repeated.",
        names="--plot",
    ),
    printer: output.Printer,
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
    if len(configs) == 1:
        refuse_idle("weights", needs="several --config")
    jobs = [replace(request, config=config).load_scheduled() for config in configs]
    output.announce_compilation(quiet=printer.quiet)
    from projector.searches.sensitivity import sensitivity_of, workloads_of

    named = fields or None
    ranges: dict[str, Any] = {} if factor is None else {"factor": factor}
    workloads = workloads_of(jobs, weights or None, configs)
    result = sensitivity_of(workloads, change=change, step=step, fields=named)
    indices, maps = None, list["BottleneckMap"]()
    if sobol:
        from projector.searches.sobol import sobol_indices

        indices = sobol_indices(workloads, fields=named, samples=samples, seed=seed, **ranges)
    if axes is not None:
        from projector.searches.bottleneck import bottleneck_map

        maps = [bottleneck_map(job, axes, **ranges) for job in jobs]
    answer = Answer(result, indices, maps)
    for kind, path in drawn:
        answer.draw(kind, path, top)
        printer.wrote(path)
    if printer.as_json:
        output.print_json(answer.to_dict(jobs))
        return output.SUCCESS
    output.print_report(answer.report(top))
    from projector.projection.provenance import provenance_of

    printer.warn(dict.fromkeys(warning for job in jobs for warning in provenance_of(job).warnings))
    return output.SUCCESS


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
            output.draw(path, "figures.sensitivity.map_figure", self.maps)
        elif kind == "sobol" and self.indices is not None:
            output.draw(path, "figures.sensitivity.sobol_figure", self.indices)
        else:
            output.draw(path, "figures.sensitivity.tornado_figure", self.sensitivity, top)

    def to_dict(self, jobs: "Sequence[Job]") -> dict[str, Any]:
        """Return the object of ``--json``; values of one of several jobs are under its workload."""
        from projector.projection.api import project_jobs

        # The band depends on the share of attention in a step.
        steps = project_jobs(jobs)
        envelopes = [envelope(step.provenance.warnings, step.uncertainty) for step in steps]
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
        from projector.report.terminal import sensitivity

        parts = sensitivity.sensitivity_report(self.sensitivity, top)
        if self.indices is not None:
            parts += sensitivity.sobol_report(self.indices)
        return parts + [part for each in self.maps for part in sensitivity.map_report(each)]


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
        output.check_files(path)
        figures.append((kind, path))
    return figures


def _axes(text: str) -> list[str]:
    fields = [part.strip() for part in text.split(",")]
    if len(fields) != 2 or not all(fields) or fields[0] == fields[1]:
        msg = f"--map takes two different fields as FIELD,FIELD, got {text!r}"
        raise ConfigError(msg, key="map", value=text, allowed="FIELD,FIELD")
    return fields
