"""Options shared by all commands that project one job, and the job that they describe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from projector.cli.output import interpret_at_first, say

if TYPE_CHECKING:
    from projector.cli.profiling import ProfilingRequest
    from projector.config.first_order_job import AnyJob
    from projector.config.job import Job
    from projector.projection.memory import MemoryProjection
    from projector.projection.performance import PerformanceProjection

Command = TypeVar("Command", bound=Callable[..., Any])

ALL_SCHEDULES = "all"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as the command line describes it."""

    config: str
    assignments: tuple[str, ...] = ()
    target_nodes: int | None = None
    gpu_arch: str | None = None
    gpu_clock_mhz: float | None = None
    hardware_config: str | None = None
    schedule: str | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    list_ignored: bool = False
    target_ep_size: int | None = None
    virtual_stages: int | None = None
    enable_zero_bubble: bool = False
    enable_deepep: bool = False
    sync_free_stage: int | None = None

    def load(self) -> "Job":
        """Read the job file and apply what the command line changes."""
        from projector.config.load import load_job

        overrides, warnings = self.overrides()
        job = load_job(self.config, overrides)
        self._list_ignored(job.ignored)
        if job.model.moe is None and (self.enable_deepep or self.sync_free_stage):
            option = "--enable-deepep" if self.enable_deepep else "--sync-free-stage"
            warnings.append(f"{option} changes nothing: {job.model.name} has no experts")
        return job.model_copy(update={"notes": (*job.notes, *warnings)}) if warnings else job

    def load_scheduled(self) -> "Job":
        """Read the job; where all schedules are asked for, under the fastest that fits."""
        if self.schedule != ALL_SCHEDULES:
            return self.load()
        return self.project_performance(quiet=True).job

    def load_first_order(self) -> "AnyJob":
        """Return the job for the first-order model, which takes devices without compute units."""
        from projector.config.first_order_job import load_first_order_job

        overrides, warnings = self.overrides()
        job = load_first_order_job(self.config, overrides)
        self._list_ignored(job.ignored)
        return job.model_copy(update={"notes": (*job.notes, *warnings)}) if warnings else job

    def overrides(self) -> tuple[dict[str, Any], list[str]]:
        """Return what the command line changes, dotted field -> value, and warnings.

        The device comes first, so that a hardware file and overrides of its fields apply to it;
        then the hardware file, the options, and last ``key=value``.
        """
        from projector.config.load import parse_override
        from projector.config.names import in_full

        given = in_full(dict(parse_override(text) for text in self.assignments))
        schedule = None if self.schedule == ALL_SCHEDULES else self.schedule
        if schedule is None and self.enable_zero_bubble and self.schedule is None:
            schedule = "zerobubble"
        whole_sections = {"cluster.device": self.gpu_arch}
        whole_sections |= {
            key: given[key] for key in ("cluster.device", "cluster.network") if key in given
        }
        hardware, warnings = self._hardware()
        options = {
            "cluster.nodes": self.target_nodes,
            "cluster.gpu_clock_mhz": self.gpu_clock_mhz,
            "parallelism.ep": self.target_ep_size,
            "parallelism.vpp": self.virtual_stages,
            "training.schedule": schedule,
            "training.moe.dispatcher": "deepep" if self.enable_deepep else None,
            **self._sync_free(),
            "training.micro_batch_size": self.micro_batch_size,
            "training.global_batch_size": self.global_batch_size,
        }
        return {
            **{key: value for key, value in whole_sections.items() if value is not None},
            **hardware,
            **{key: value for key, value in options.items() if value is not None},
            **{key: value for key, value in given.items() if key not in whole_sections},
        }, warnings

    def _sync_free(self) -> dict[str, Any]:
        """Return what the stage of Primus-Turbo's synchronisation-free experts sets."""
        if self.sync_free_stage is None:
            return {}
        from projector.config.formats.megatron_settings.training import sync_free

        return sync_free(self.sync_free_stage)

    def project_memory(
        self, *, quiet: bool, profiling: "ProfilingRequest | None" = None
    ) -> "MemoryProjection":
        """Project memory; with every schedule compared, that of the one that is chosen."""
        if self.schedule == ALL_SCHEDULES:
            return self.project_performance(quiet=quiet, profiling=profiling).memory
        job = self.load()
        interpret_at_first(quiet=quiet)
        from projector.projection.api import project_from, project_memory

        source = None if profiling is None else profiling.source(job, quiet=quiet)
        if source is None or source.record is None:
            return project_memory(job)
        return project_from(job, source).memory

    def project_performance(
        self, *, quiet: bool, profiling: "ProfilingRequest | None" = None
    ) -> "PerformanceProjection":
        """Project one training step, from measurements where the profiling says so."""
        job = self.load()
        schedule = ALL_SCHEDULES if self.schedule == ALL_SCHEDULES else None
        interpret_at_first(quiet=quiet)
        from projector.projection.api import project_from, project_performance

        if profiling is None:
            return project_performance(job, schedule=schedule)
        return project_from(job, profiling.source(job, quiet=quiet), schedule=schedule)

    def _list_ignored(self, names: tuple[str, ...]) -> None:
        """Name the settings of the file that change nothing, where it was asked for."""
        if self.list_ignored:
            listed = ", ".join(names) if names else "none"
            say(f"settings of {self.config} that change nothing ({len(names)}): {listed}")

    def _hardware(self) -> tuple[dict[str, Any], list[str]]:
        if self.hardware_config is None:
            return {}, []
        from projector.config.formats.primus_hardware import read_hardware_config

        return read_hardware_config(self.hardware_config)


_ASSIGNMENTS = click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")


def _config(*, required: bool, multiple: bool = False) -> Callable[[Any], Any]:
    more = "; may be repeated" if multiple else ""
    return click.option(
        "--config",
        required=required,
        multiple=multiple,
        metavar="FILE",
        help="Job file: native YAML, or the file of another tool such as a Primus experiment, a "
        f"script of Megatron-LM, torchtitan's TOML or DeepSpeed's JSON (docs/formats.md){more}.",
    )


_CLUSTER_OPTIONS = (
    click.option(
        "--target-nodes",
        "--target-num-nodes",
        "target_nodes",
        type=int,
        metavar="N",
        help="Number of nodes; replaces the job's.",
    ),
    click.option(
        "--gpu-arch",
        metavar="NAME",
        help="Device; replaces the job's. The network follows it unless the job names one. gfx942 "
        "and gfx950 mean MI300X and MI355X, as in Primus.",
    ),
    click.option(
        "--gpu-clock-mhz", type=float, metavar="F", help="Clock to assume for every type."
    ),
    click.option(
        "--hardware-config",
        metavar="FILE",
        help="Device and network numbers to change: a Primus hardware file, or our own fields.",
    ),
)

_SCHEDULE = click.option(
    "--pipeline-schedule-algorithm",
    "schedule",
    metavar="auto|all|NAME",
    help="Pipeline schedule; all compares those that can run and takes the fastest that fits.",
)

_BATCH_OPTIONS = (
    click.option("--micro-batch-size", type=int, metavar="N", help="Sequences of a microbatch."),
    click.option("--global-batch-size", type=int, metavar="N", help="Sequences of a step."),
)

_LIST_IGNORED = click.option(
    "--list-ignored",
    is_flag=True,
    help="Name the settings of the job file that change nothing, such as learning rates.",
)
_PRIMUS_OPTIONS = (
    click.option("--target-ep-size", type=int, metavar="N", help="As parallelism.ep=N."),
    click.option(
        "--num-virtual-stages-per-pipeline-rank",
        "virtual_stages",
        type=int,
        metavar="N",
        help="As parallelism.vpp=N.",
    ),
    click.option(
        "--enable-zero-bubble",
        is_flag=True,
        help="As --pipeline-schedule-algorithm zerobubble, where none is given.",
    ),
    click.option("--enable-deepep", is_flag=True, help="As training.moe.dispatcher=deepep."),
    click.option(
        "--sync-free-stage",
        type=int,
        metavar="0|1|2|3",
        help="Primus-Turbo's experts: 1 fuses permutation; from 2 on also DeepEP, and the host "
        "does not wait.",
    ),
)
"""Options of Primus' projection that change one job."""

_JOB_OPTIONS = (
    _ASSIGNMENTS,
    _config(required=True),
    *_CLUSTER_OPTIONS,
    _SCHEDULE,
    *_BATCH_OPTIONS,
    _LIST_IGNORED,
)

_SEVERAL_JOB_OPTIONS = (
    _ASSIGNMENTS,
    _config(required=True, multiple=True),
    *_CLUSTER_OPTIONS,
    _SCHEDULE,
    *_BATCH_OPTIONS,
    _LIST_IGNORED,
)

_OPTIONAL_JOB_OPTIONS = (
    _ASSIGNMENTS,
    _config(required=False),
    *_CLUSTER_OPTIONS,
    *_BATCH_OPTIONS,
)

_FIDELITY = click.option(
    "--fidelity",
    default="tiles",
    metavar="tiles|first-order",
    help="Tile models and replays, or closed forms alone (docs/first_order.md).",
)

_OUTPUT_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
    click.option("--quiet", is_flag=True, help="Print no warnings and no progress."),
)


def job_options(command: Command) -> Command:
    """Add everything that describes a job; the command takes it as keywords of `JobRequest`."""
    return _add(command, _JOB_OPTIONS)


def primus_options(command: Command) -> Command:
    """Add the options of Primus' projection that change one job, as keywords of `JobRequest`."""
    return _add(command, _PRIMUS_OPTIONS)


def fidelity_option(command: Command) -> Command:
    """Add ``--fidelity``."""
    return _FIDELITY(command)


def several_job_options(command: Command) -> Command:
    """Add options for one or more jobs: ``config`` is a tuple, the others apply to all jobs."""
    return _add(command, _SEVERAL_JOB_OPTIONS)


def optional_job_options(command: Command) -> Command:
    """Add the options of a job to a command that also works without one and picks schedules."""
    return _add(command, _OPTIONAL_JOB_OPTIONS)


def output_options(command: Command) -> Command:
    """Add ``--json`` and ``--quiet``."""
    return _add(command, _OUTPUT_OPTIONS)


def _add(command: Command, options: tuple[Callable[[Any], Any], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
