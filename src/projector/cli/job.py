"""A job as the command line describes it: its options, where times come from, its files."""

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from projector.cli.options import argument, flag, option
from projector.cli.output import Printer, interpret_at_first, keep_worker, say, write
from projector.errors import ConfigError, MeasurementError

if TYPE_CHECKING:
    from projector.config.first_order_job import AnyJob
    from projector.config.formats.emit.emitted import Emitted
    from projector.config.job import Job
    from projector.projection.memory import MemoryProjection
    from projector.projection.performance import PerformanceProjection
    from projector.projection.profiling import Source

ALL_SCHEDULES = "all"

IDLE = {
    "--data_path": "a projection reads no data",
    "--backend_path": "a projection imports no framework",
    "--gemm-backend": "GEMMs are modelled by tiles as in Origami anyway",
}
"""Options of Primus' projection that change nothing, and why."""

PRIMUS = (
    "target_ep_size", "virtual_stages", "enable_zero_bubble", "enable_deepep", "sync_free_stage",
    "data_path", "backend_path", "gemm_backend",
)  # fmt: skip
"""Options of Primus' projection that are of one job."""

ASSIGNMENTS = argument("[KEY=VALUE]...", default=())

FIDELITY = option(
    "tiles|first-order",
    "Tile models and replays, or closed forms alone (docs/first_order.md).",
    default="tiles",
)

EMIT = option(
    "FORMAT[=FILE]",
    "Write the job as the configuration of a framework (megatron, primus, torchtitan, "
    "deepspeed): to a file, or to standard output in place of the report. Reading it again "
    "gives the same job.",
    default=(),
)


def config_option(more: str = "", *, required: bool = True) -> Any:
    """Declare ``--config`` of a job."""
    return option(
        "FILE",
        "Job file: native YAML, or the file of another tool such as a Primus experiment, a script "
        f"of Megatron-LM, torchtitan's TOML or DeepSpeed's JSON (docs/formats.md){more}.",
        names=("--config", "--exp"),
        required=required,
    )


def _idle(metavar: str, name: str, **settings: Any) -> Any:
    return option(metavar, f"As in Primus; changes nothing: {IDLE[name]}.", names=name, **settings)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as the command line describes it."""

    config: str = config_option()
    assignments: tuple[str, ...] = ASSIGNMENTS
    target_nodes: int | None = option(
        "N", "Number of nodes; replaces the job's.", names=("--target-nodes", "--target-num-nodes")
    )
    gpu_arch: str | None = option(
        "NAME",
        "Device; replaces the job's. The network follows it unless the job names one. gfx942 "
        "and gfx950 mean MI300X and MI355X, as in Primus.",
    )
    gpu_clock_mhz: float | None = option("F", "Clock to assume for every type.")
    hardware_config: str | None = option(
        "FILE", "Device and network numbers to change: a Primus hardware file, or our own fields."
    )
    schedule: str | None = option(
        "auto|all|NAME",
        "Pipeline schedule; all compares those that can run and takes the fastest that fits.",
        names="--pipeline-schedule-algorithm",
    )
    micro_batch_size: int | None = option("N", "Sequences of a microbatch.")
    global_batch_size: int | None = option("N", "Sequences of a step.")
    list_ignored: bool = flag(
        "Name the settings of the job file that change nothing, such as learning rates."
    )
    defaults: bool = flag("List the values that the job leaves out.")
    target_ep_size: int | None = option("N", "As parallelism.ep=N.")
    virtual_stages: int | None = option(
        "N", "As parallelism.vpp=N.", names="--num-virtual-stages-per-pipeline-rank"
    )
    enable_zero_bubble: bool = flag(
        "As --pipeline-schedule-algorithm zerobubble, where none is given."
    )
    enable_deepep: bool = flag("As training.moe.dispatcher=deepep.")
    sync_free_stage: int | None = option(
        "0|1|2|3",
        "Primus-Turbo's experts: 1 fuses permutation; from 2 on also DeepEP, and the host "
        "does not wait.",
    )
    data_path: str | None = _idle("FOLDER", "--data_path")
    backend_path: str | None = _idle("FOLDER", "--backend_path")
    gemm_backend: str | None = _idle("origami", "--gemm-backend", type=click.Choice(["origami"]))

    def load(self) -> "Job":
        """Read the job file and apply what the command line changes."""
        from projector.config.load import load_job

        overrides, warnings = self.overrides()
        job = load_job(self.config, overrides)
        self._list_ignored(job.ignored)
        if job.model.moe is None and (self.enable_deepep or self.sync_free_stage):
            idle = "--enable-deepep" if self.enable_deepep else "--sync-free-stage"
            warnings.append(f"{idle} changes nothing: {job.model.name} has no experts")
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
        hardware, warnings = dict[str, Any](), list[str]()
        if self.hardware_config is not None:
            from projector.config.formats.primus_files import read_hardware_config

            hardware, warnings = read_hardware_config(self.hardware_config)
        for name, why in IDLE.items():
            if getattr(self, name[2:].replace("-", "_")) is not None:
                warnings.append(f"{name} changes nothing: {why}")
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
        if self.sync_free_stage is None:
            return {}
        from projector.config.formats.megatron_settings.training import sync_free

        return sync_free(self.sync_free_stage)

    def project_memory(self, profiling: "ProfilingRequest", *, quiet: bool) -> "MemoryProjection":
        """Project memory; with every schedule compared, that of the one that is chosen."""
        if self.schedule == ALL_SCHEDULES:
            return self.project_performance(profiling, quiet=quiet).memory
        job = self.load()
        interpret_at_first(quiet=quiet)
        from projector.projection.api import project_from, project_memory

        source = profiling.source(job, quiet=quiet)
        return project_memory(job) if source.record is None else project_from(job, source).memory

    def project_performance(
        self, profiling: "ProfilingRequest | None" = None, *, quiet: bool
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
        if self.list_ignored:
            listed = ", ".join(names) if names else "none"
            say(f"settings of {self.config} that change nothing ({len(names)}): {listed}")


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """Where times come from: the models, a record, or a device measured now."""

    profiling_mode: str = option(
        "auto|simulate|benchmark|both",
        "Where times come from. simulate: the models alone. benchmark: a record or this "
        "machine, and the models for the rest. both: the two side by side. auto: a record if one "
        "is given, else a GPU of the job's type if this machine has one, else simulate "
        "(docs/measure.md).",
        default="auto",
        names=("--profiling-mode", "--memory-mode"),
    )
    benchmark_gpus: int | None = option(
        "N",
        "Measure on so many GPUs of this machine. Without it, as many as a node of the job "
        "has, if there are so many.",
    )
    save_benchmark: str | None = option(
        "FILE",
        "Measure, and write the result as a record: one JSON file.",
        names=("--save-benchmark", "--save-profiling"),
    )
    load_benchmark: tuple[str, ...] = option(
        "FILE",
        "Take times from a record, and measure nothing. May be repeated: of the records that "
        "hold for the job, the one of most GPUs counts.",
        default=(),
    )

    def check(self) -> None:
        """Refuse options that contradict each other, before any work."""
        from projector.measure.options import check_options

        check_options(
            self.profiling_mode, self.load_benchmark, self.benchmark_gpus, self.save_benchmark
        )

    def begin(self) -> None:
        """Start what measures, if that is asked for: it imports torch while the job is read."""
        asked = self.profiling_mode in {"benchmark", "both"} or self.save_benchmark is not None
        if self.load_benchmark or not (asked or self.benchmark_gpus):
            return
        worker = keep_worker()
        from projector.measure.devices import gpus_at_hand
        from projector.measure.task import Task

        hand = gpus_at_hand()
        if (self.benchmark_gpus or (hand.gpus if hand else 1)) == 1:
            # Where it cannot start, the measurement says why.
            with suppress(MeasurementError):
                worker.start(Task(programs=[]))

    def source(self, job: "Job", *, quiet: bool) -> "Source":
        """Return the record that applies to a job, measured now where it has to be."""
        from projector.projection.profiling import choose_source

        source = choose_source(
            job,
            self.profiling_mode,
            self.load_benchmark,
            benchmark_gpus=self.benchmark_gpus,
            save=self.save_benchmark,
            tell=None if quiet else say,
        )
        if source.record is not None and not self.load_benchmark:
            from projector.measure.process import dismiss_worker

            dismiss_worker()
        return source

    def refuse_measuring(self) -> None:
        """Refuse options that ask for measurements, of which closed forms take none."""
        simulated = self.profiling_mode in {"auto", "simulate"}
        given = asdict(self) | ({"profiling_mode": None} if simulated else {})
        for name, value in given.items():
            if value not in {None, ()}:
                msg = f"{name}: closed forms take nothing that is measured; leave out --fidelity"
                raise ConfigError(msg, key=name, value=value, allowed="--fidelity tiles")


@dataclass(frozen=True, slots=True)
class Emission:
    """What ``--emit`` asks for: formats, each with its file or none for standard output."""

    wanted: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Emission":
        """Read the texts of the option, and refuse what could not be written."""
        wanted = []
        for text in texts:
            from projector.config.formats.emit.emitted import check_target

            name, equals, file = text.partition("=")
            check_target(name, file if equals else None)
            wanted.append((name, file if equals else None))
        return cls(tuple(wanted))

    @property
    def on_output(self) -> bool:
        """Whether a file takes the place of the report."""
        return any(file is None for _, file in self.wanted)

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.wanted))

    def of_job(self, job: "Job") -> "list[Emitted]":
        """Return the files of a job, and write those that have a name."""
        if not self.wanted:
            return []
        from projector.config.formats.emit.emitted import write_job
        from projector.files import written_whole

        emitted = [write_job(job, name) for name, _ in self.wanted]
        with ExitStack() as files:  # All take their names at the end, or none does.
            for (_, file), each in zip(self.wanted, emitted, strict=True):
                if file is not None:
                    stream = files.enter_context(written_whole(Path(file), key="emit"))
                    stream.write(each.text.encode())
        return emitted

    def show(self, emitted: "list[Emitted]", job: "Job", printer: Printer) -> None:
        """Write to standard output what has no file, and report the others."""
        for (_, file), each in zip(self.wanted, emitted, strict=True):
            if file is None:
                write(each.text)
            else:
                printer.wrote(file)
                from projector.config.formats.emit.emitted import unsaid

                said = unsaid(each, job)
                if said:
                    printer.say(f"{said}; {file} carries it for projector, and a run may differ")

    def refuse(self, why: str) -> None:
        """Say on standard error that there is no job to write."""
        if self.wanted:
            say(f"--emit wrote nothing: {why}")

    def add_to(self, result: dict[str, Any], emitted: "list[Emitted]") -> dict[str, Any]:
        """Return a JSON object with the key ``emitted``, where anything was asked for."""
        if not self.wanted:
            return result
        files = [
            {"format": each.format, "file": file, "text": each.text, "carried": dict(each.carried)}
            for (_, file), each in zip(self.wanted, emitted, strict=False)
        ]
        return {**result, "emitted": files}


def is_first_order(fidelity: str) -> bool:
    """Whether a fidelity is that of closed forms alone."""
    from projector.config.first_order import by_closed_forms

    return by_closed_forms(fidelity)


def refuse_options(**options: Any) -> None:
    """Refuse options that show what closed forms do not have."""
    for name, value in options.items():
        if value is not None:
            msg = f"{name}: closed forms have no operations to show; leave out --fidelity"
            raise ConfigError(msg, key=name, value=value, allowed="--fidelity tiles")
