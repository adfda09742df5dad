"""Where the times of a projection come from: the models, a record, or a device measured now."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

from projector.config.job import Job
from projector.config.load import load_job
from projector.config.model import refuse_diffusion
from projector.errors import ConfigError, MeasurementError
from projector.measure.devices import cpu_name, gpus_at_hand, stands_for
from projector.measure.options import AUTO, BENCHMARK, BOTH, SIMULATE, check_options

if TYPE_CHECKING:  # Loading it takes as long as a projection; most look and measure nothing.
    from projector.measure.record import Record

Tell = Callable[[str], None]

RecordLike = Union["Record", str, Path]


@dataclass(frozen=True, slots=True)
class Source:
    """What the times of one job are taken from."""

    mode: str
    """``simulate``, ``benchmark`` or ``both``."""
    record: "Record | None"
    why: str
    """Why this mode, in one sentence; empty where it was asked for."""
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in ``provenance``; nothing where models alone were asked for."""
        if self.record is None and not self.why:
            return {}
        return {"profiling_mode": self.mode, "why": self.why}


def choose_source(
    job: Job,
    mode: str = AUTO,
    records: Sequence[RecordLike] = (),
    *,
    benchmark_gpus: int | None = None,
    save: str | Path | None = None,
    tell: Tell | None = None,
) -> Source:
    """Return what a job's times come from: the nearest record, or a measurement if asked for."""
    check_options(mode, records, benchmark_gpus, save)
    if mode == SIMULATE:
        return Source(SIMULATE, None, "")
    if records:
        record = _nearest(job, records)
        if mode == AUTO and tell is not None:
            where = f"{record.environment.ranks} x {record.environment.device}"
            tell(
                f"times from a record of {where}; --profiling-mode simulate takes the models alone"
            )
        why = "a record was given" if mode == AUTO else ""
        return Source(BOTH if mode == BOTH else BENCHMARK, record, why)
    asked = mode != AUTO or benchmark_gpus is not None or save is not None
    return _measured(job, mode, benchmark_gpus, save, tell, asked=asked)


def measure_job(
    job: Job | Mapping[str, Any] | str | Path,
    benchmark_gpus: int | None = None,
    *,
    progress: Tell | None = None,
) -> "Record":
    """Measure the layers of a job on the devices of this machine.

    The job is reduced to so many devices (``docs/measure.md``). Torch runs in a process of its own.

    Args:
        job (Job, mapping, str or Path): A job, or anything that `load_job` reads; however many
            devices it takes.
        benchmark_gpus (int, optional): Devices to measure on; those of a node of the job, or as
            many of them as there are. One on a processor.
        progress (callable, optional): Called with each line of progress.

    Returns:
        A `Record`, for ``project_performance(job, records=record)``; ``record.save(path)`` keeps
            it.

    Raises:
        ProjectorError: If the job cannot be reduced so far, what is at hand is another device than
            the job's, or torch cannot measure it.
    """
    check_options(BENCHMARK, (), benchmark_gpus)
    loaded = job if isinstance(job, Job) else load_job(job)
    hand = at_hand(loaded)
    if isinstance(hand, str):
        raise _nothing_to_measure(loaded, hand)
    return _measure(loaded, hand, benchmark_gpus, progress)


def _nearest(job: Job, records: Sequence[RecordLike]) -> "Record":
    """Return the record for a job, parts put together: the one that most devices measured."""
    from projector.measure.record import load_record, merge_records

    refusal: ConfigError | None = None
    found: list[Record] = []
    for given in records:
        record = load_record(given) if isinstance(given, str | Path) else given
        try:
            record.check(job)
        except ConfigError as error:
            refusal = refusal or error
        else:
            found.append(record)
    if not found:
        assert refusal is not None
        raise refusal
    nearest = max(found, key=lambda record: record.environment.ranks)
    return merge_records([record for record in found if record.job == nearest.job])


def _measured(
    job: Job,
    mode: str,
    benchmark_gpus: int | None,
    save: str | Path | None,
    tell: Tell | None,
    *,
    asked: bool,
) -> Source:
    """Measure on what is at hand, or say why not; where nobody asked, simulate instead."""
    hand = at_hand(job, look_at_processor=asked)
    if isinstance(hand, str):
        if asked:
            raise _nothing_to_measure(job, hand)
        if hand and tell is not None:
            tell(f"{hand}: simulated")
        return Source(SIMULATE, None, hand)
    if tell is not None:
        tell(f"measuring on {hand.name or 'the GPU'}, which is at hand; --profiling-mode simulate "
             "measures nothing")  # fmt: skip
    try:
        record = _measure(job, hand, benchmark_gpus, tell)
    except (MeasurementError, ConfigError) as error:
        if asked:
            raise
        why = f"simulated, because the GPU at hand was not measured: {error.message}"
        return Source(SIMULATE, None, why, (why,))
    if save is not None:
        record.save(save)
        if tell is not None:
            tell(f"wrote {save}; --load-benchmark takes it")
    why = "" if mode != AUTO else f"measured on {record.environment.device}, which is at hand"
    return Source(BOTH if mode == BOTH else BENCHMARK, record, why)


class AtHand(NamedTuple):
    """What a job can be measured on, on this machine."""

    device: Literal["cpu", "cuda"]
    """As `projector.measure.task.Task` names it."""
    name: str
    """As its runtime gives it, ``""`` where it gives none."""
    gpus: int


def at_hand(job: Job, *, look_at_processor: bool = True) -> AtHand | str:
    """Return what stands for a job's device here, or why nothing does (empty without a device)."""
    profile, found = job.cluster.device, gpus_at_hand()
    if found is not None and (not found.name or stands_for(profile, found.name)):
        return AtHand("cuda", found.name, found.gpus)
    if look_at_processor and stands_for(profile, cpu_name()):
        return AtHand("cpu", cpu_name(), 1)
    if found is not None:
        return f"the GPU at hand is {found.name}, and the job's device is {profile.name}"
    return f"no GPU is at hand, and the job's device is {profile.name}" if look_at_processor else ""


def _nothing_to_measure(job: Job, why: str) -> MeasurementError:
    refuse_diffusion(job.model, "its layers are not measured")
    msg = (
        f"nothing can be measured here: {why}; --load-benchmark takes a record of such a device, "
        "and --profiling-mode simulate takes the models alone"
    )
    return MeasurementError(
        msg, key="profiling_mode", value=job.cluster.device.name, allowed=SIMULATE
    )


def _measure(job: Job, hand: AtHand, benchmark_gpus: int | None, tell: Tell | None) -> "Record":
    from projector.measure.process import check_torch
    from projector.measure.programs import benchmark_record

    check_torch()
    node = job.cluster.gpus_per_node
    if hand.device == "cpu":
        # Ranks on one processor share its cores and slow each other down.
        offered = benchmark_gpus or 1
    elif benchmark_gpus is not None and benchmark_gpus > hand.gpus:
        msg = f"benchmark_gpus: {benchmark_gpus} are asked for, and {hand.gpus} are at hand"
        allowed = f"at most {hand.gpus}"
        raise ConfigError(msg, key="benchmark_gpus", value=benchmark_gpus, allowed=allowed)
    else:
        offered = benchmark_gpus or min(hand.gpus, node)
    return benchmark_record(job, offered, device=hand.device, tell=tell)
