"""Options that say where times come from: the models, a record, or a device measured now."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from projector.cli.output import say

if TYPE_CHECKING:
    from projector.config.job import Job
    from projector.projection.profiling import Source

MODES = "auto|simulate|benchmark|both"

_OPTIONS = (
    click.option(
        "--profiling-mode",
        "--memory-mode",
        "profiling_mode",
        default="auto",
        metavar=MODES,
        help="Where times come from. simulate: the models alone. benchmark: a record or this "
        "machine, and the models for the rest. both: the two side by side. auto: a record if one "
        "is given, else a GPU of the job's type if this machine has one, else simulate "
        "(docs/measure.md).",
    ),
    click.option(
        "--benchmark-gpus",
        type=int,
        metavar="N",
        help="Measure on so many GPUs of this machine. Without it, as many as a node of the job "
        "has, if there are so many.",
    ),
    click.option(
        "--save-benchmark",
        "--save-profiling",
        "save_benchmark",
        metavar="FILE",
        help="Measure, and write the result as a record: one JSON file.",
    ),
    click.option(
        "--load-benchmark",
        multiple=True,
        metavar="FILE",
        help="Take times from a record, and measure nothing. May be repeated: of the records that "
        "hold for the job, the one of most GPUs counts.",
    ),
)


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """Where times come from, as the command line says it."""

    profiling_mode: str = "auto"
    benchmark_gpus: int | None = None
    save_benchmark: str | None = None
    load_benchmark: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse options that contradict each other, before any work."""
        from projector.measure.options import check_options

        check_options(
            self.profiling_mode, self.load_benchmark, self.benchmark_gpus, self.save_benchmark
        )

    def source(self, job: "Job", *, quiet: bool) -> "Source":
        """Return the record that applies to a job, measured now where it has to be."""
        from projector.projection.profiling import choose_source

        return choose_source(
            job,
            self.profiling_mode,
            self.load_benchmark,
            benchmark_gpus=self.benchmark_gpus,
            save=self.save_benchmark,
            tell=None if quiet else say,
        )

    @property
    def measuring(self) -> dict[str, Any]:
        """Options that ask for measurements, under their names."""
        mode = None if self.profiling_mode in {"auto", "simulate"} else self.profiling_mode
        options = {
            "profiling_mode": mode,
            "benchmark_gpus": self.benchmark_gpus,
            "save_benchmark": self.save_benchmark,
            "load_benchmark": self.load_benchmark or None,
        }
        return {name: value for name, value in options.items() if value is not None}


def profiling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command takes them as keywords of `ProfilingRequest`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_profiling(options: dict[str, Any]) -> ProfilingRequest:
    """Take the options out of the keywords of a command."""
    names = ("profiling_mode", "benchmark_gpus", "save_benchmark", "load_benchmark")
    return ProfilingRequest(**{name: options.pop(name) for name in names})
