"""What a probe of the machine at hand measures, and the profile that its fit starts from.

The numbers of a profile come from four places, and each says from which: read off a copy or a
large GEMM, told by the operating system, fitted to small training jobs
(`projector.calibrate.probed`), or assumed. ``hardware/probe.yaml`` has the sizes, ``docs/probe.md``
the meaning of each number on a CPU.
"""

import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from projector.config import resources
from projector.config._base import Config, merge
from projector.config.device_file import load_device
from projector.config.device_kernels import MatrixType
from projector.config.job import Job
from projector.config.load import load_job
from projector.config.yaml_file import read_yaml
from projector.distribution import package_version
from projector.errors import ConfigError, MeasurementError
from projector.measure import task as tasks
from projector.measure.devices import profile_of
from projector.measure.keys import OperationKey
from projector.measure.process import run_task
from projector.measure.programs import layers_of, lower_job, task_of
from projector.measure.reduction import reduce_job
from projector.measure.smi import text_of
from projector.units import GIB, MEGA, TERA

FILE = "probe.yaml"

SWEPT = "probe.gemm"
"""Label of the GEMMs that belong to no job."""

MEASURED, FITTED, TOLD = "measured", "fitted", "told"
"""Keys of the sources of a profile; what is assumed has those of ``hardware/probe.yaml``."""

DIGITS = 4
"""Significant digits of a number in a profile."""

UNKNOWN = {"bf16": TERA, "fp32": TERA}
"""Rates of GEMMs before any is measured; what is measured does not depend on them."""

UNKNOWN_COPIES = [(1, 0.01 * TERA)]
"""Bytes of a copy and their rate, likewise."""


class ProbeSettings(Config):
    """How devices of one backend are probed: an entry of ``hardware/probe.yaml``."""

    pace: tasks.Pace
    copies: list[int]
    """Bytes of each copy, read and written."""
    gemms: dict[MatrixType, list[tuple[int, int, int]]]
    """m, n, k of GEMMs that are swept, by matrix type."""
    common: dict[str, Any]
    jobs: dict[str, dict[str, Any]]
    """Small jobs that the rest is fitted to."""
    fields: list[str]
    """Fields of the device that are fitted."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Times that the fit leaves out, as the models do not describe them: how their name begins,
    and why."""
    evaluations: int
    """Points at which the fit takes slopes, at most."""
    start: dict[str, Any] = Field(default_factory=dict)
    """Fields of the device that nothing reads off; empty where a shipped one is extended."""


class Processor(Config):
    """What the operating system tells of a processor; None where it does not."""

    clock_mhz: float | None = None
    core_cache_kib: float | None = None
    """Largest cache of one core."""
    shared_cache_mib: float | None = None
    """Largest cache that cores share."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A device, and what is measured of it."""

    environment: tasks.Environment
    settings: ProbeSettings
    data: dict[str, Any]
    """Its profile as a mapping, before anything is read off or fitted."""
    base: str | None
    """The shipped device that it extends; None for a CPU."""
    jobs: tuple[Job, ...]
    task: tasks.Task


@cache
def settings_of(backend: str) -> ProbeSettings:
    """Return how devices of a backend of torch are probed: ``cpu``, ``cuda`` or ``rocm``."""
    entry = "cpu" if backend == "cpu" else "gpu"
    data = read_yaml(resources.data_dir("hardware") / FILE)[entry]
    return ProbeSettings.parse(data, path=f"{FILE}: {entry}")


def processor(root: Path = Path("/")) -> Processor:
    """Return what Linux tells of the first processor of this machine."""
    cpu = root / "sys/devices/system/cpu/cpu0"
    khz = _number(text_of(cpu / "cpufreq/base_frequency"))
    found = re.search(r"^cpu MHz\s*:\s*([\d.]+)", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    clock_mhz = khz / 1e3 if khz else (float(found[1]) if found else None)
    alone, shared = [0.0], [0.0]
    for folder in sorted((cpu / "cache").glob("index*")):
        size = _number(text_of(folder / "size"))
        level = _number(text_of(folder / "level"))
        if size is None or text_of(folder / "type") == "Instruction":
            continue
        (shared if level is not None and level >= 3 else alone).append(size)
    return Processor(
        clock_mhz=clock_mhz,
        core_cache_kib=max(alone) or None,
        shared_cache_mib=max(shared) / 1024 or None,
    )


def identify(
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    *,
    timeout_s: float | None = None,
) -> tasks.Environment:
    """Return what a worker finds that is asked to measure nothing."""
    task = tasks.Task(device=device, threads=threads, programs=[])
    return run_task(task, timeout_s=timeout_s).environment


def plan_probe(
    environment: tasks.Environment,
    base: str | None = None,
    host: Processor | None = None,
    settings: ProbeSettings | None = None,
) -> Probe:
    """Return what is measured of a device, from the environment of a worker that ran nothing yet.

    ``base`` is the shipped device or profile that a GPU's own extends, by default that of its name.
    ``host`` is what the system tells of the processor. The settings are those of its backend unless
    given.
    """
    settings = settings or settings_of(environment.backend)
    if environment.backend == "cpu":
        if base is not None:
            msg = "base: a CPU extends no shipped device; leave it out"
            raise ConfigError(msg, key="base", value=base, allowed="a GPU")
        data = _cpu_data(environment, settings, processor() if host is None else host)
    else:
        base = base or profile_of(environment.device)
        if base is None:
            msg = f"base: no shipped device is {environment.device!r}; name one it is like"
            raise ConfigError(msg, key="base", value=environment.device, allowed="a shipped device")
        data = {"extends": base, "name": environment.device}
    data = merge({"sources": _sources(environment)}, data)
    known = data if base is not None else merge(_of_cpu(data, UNKNOWN_COPIES, UNKNOWN), data)
    jobs = tuple(_jobs(settings, load_device(known)))
    device = "cpu" if environment.backend == "cpu" else "cuda"
    task = tasks.Task(
        device=device,
        threads=environment.threads,
        pace=settings.pace,
        programs=list(_programs(settings, jobs)),
    )
    return Probe(environment, settings, data, base, jobs, task)


def read_off(probe: Probe, answer: tasks.Answer) -> dict[str, Any]:
    """Return the profile with the rates that copies and large GEMMs show by themselves."""
    pairs = list(zip(probe.task.programs, answer.outcomes, strict=True))
    copies = [
        (program.bytes, program.bytes / seconds)
        for program, outcome in pairs
        if isinstance(program, tasks.CopyProgram) and (seconds := seconds_of(outcome))
    ]
    rates = dict(_gemm_rates(pairs))
    if not copies or "bf16" not in rates:
        failed = next((each.message for each in answer.outcomes if each.message), "no outcome")
        msg = f"neither copies nor GEMMs could be measured: {failed}"
        raise MeasurementError(msg, key="device", value=probe.environment.device)
    if probe.base is not None:
        peak = load_device(probe.data).hbm_peak_tb_per_s * TERA
        share = number(min(1.0, max(copies)[1] / peak), MEASURED, "largest copy")
        return merge(probe.data, {"hbm_efficiency": share})
    data = merge(_of_cpu(probe.data, copies, rates), probe.data)
    return merge(data, _first_guesses(pairs, max(rate for _, rate in copies), rates, data))


def seconds_of(outcome: tasks.Outcome, part: str = "time") -> float:
    """Return the median of a part, 0 where it was not measured."""
    timing = outcome.times.get(part) if outcome.status == "ok" else None
    return 0.0 if timing is None else timing.median_s


def threads_of(environment: tasks.Environment) -> str:
    """Return the threads of a CPU as they follow its name, ``""`` of a GPU."""
    count = environment.threads
    return f", {count} thread{'s' * (count > 1)}" if count else ""


def number(value: float, source: str, note: str = "") -> dict[str, Any]:
    """Return a number of a profile with where it comes from."""
    entry: dict[str, Any] = {"value": float(f"{value:.{DIGITS}g}"), "source": source}
    return {**entry, "note": note} if note else entry


def _sources(environment: tasks.Environment) -> dict[str, str]:
    where = (
        f"{environment.device}{threads_of(environment)}, torch {environment.torch}"
        f"{', ' + environment.runtime if environment.runtime else ''}"
    )
    by = f"projector {package_version()} probe"
    return {
        MEASURED: f"measured by {by} on {where}",
        FITTED: f"fitted by {by} to GEMMs, attention, memory-bound operators, layers and steps of "
        f"small training jobs on {where}",
        TOLD: f"told by the operating system of {where}",
    }


def _cpu_data(
    environment: tasks.Environment, settings: ProbeSettings, host: Processor
) -> dict[str, Any]:
    """Return everything of a CPU but its rates; a rate of 1 stands for those until then."""
    assumed, core = "assumed", host.core_cache_kib
    source = TOLD if host.clock_mhz else assumed
    note = "rates are per clock of it; it decides nothing by itself"
    clock = number(host.clock_mhz or 2000.0, source, note)
    shared = host.shared_cache_mib or (core / 1024 if core else None)
    threads = environment.threads or 1
    of_types = {kind: {**clock, "note": "as peak_clock_mhz"} for kind in settings.gemms}
    return merge(
        settings.start,
        {
            "name": environment.device,
            "compute_units": {"value": threads, "source": MEASURED, "note": "threads of torch"},
            "peak_clock_mhz": clock,
            "sustained_clock_mhz": of_types,
            "lds_kib_per_cu": number(core, TOLD) if core else number(1024.0, assumed),
            "l2_mib": number(shared, TOLD) if shared else number(16.0, assumed),
            "hbm_gib": number(environment.memory_bytes / GIB, TOLD),
        },
    )


def _jobs(settings: ProbeSettings, device: Any) -> Iterator[Job]:
    for name, job in settings.jobs.items():
        machine = {"cluster": {"device": device, "nodes": 1, "gpus_per_node": 1}}
        data = merge(merge(settings.common, job), machine)
        # The models are asked about what a worker runs: eager operators, for one.
        yield reduce_job(load_job(merge(data, {"model": {"name": f"probe {name}"}})), 1).job


def _programs(settings: ProbeSettings, jobs: tuple[Job, ...]) -> Iterator[tasks.Program]:
    """Return each program once, a job's whole step last."""
    for size in settings.copies:
        yield tasks.CopyProgram(bytes=size)
    for kind, extents in settings.gemms.items():
        for m, n, k in extents:
            key = OperationKey(label=SWEPT, phase="forward", kind="gemm", dtype=kind, m=m, n=n, k=k)
            yield tasks.OperationProgram(key=key)
    known: set[OperationKey] = set()
    for job in jobs:
        for program in task_of(reduce_job(job, 1)).programs:
            match program:
                case tasks.OperationProgram():
                    if program.key not in known:
                        known.add(program.key)
                        yield program
                case tasks.LayerProgram():
                    yield program
                case tasks.StepProgram():
                    yield whole_step(job)
                case _:
                    pass


def whole_step(job: Job) -> tasks.StepProgram:
    """Return the step of all layers of a job of one stage, embedding first and head last."""
    workloads = lower_job(job).workloads
    layers = layers_of(workloads)
    runs = zip(workloads.run_workload.tolist(), workloads.run_count.tolist(), strict=True)
    order = sorted(runs, key=lambda run: layers[run[0]].kind == "head")
    return tasks.StepProgram(layers=[layers[place] for place, count in order for _ in range(count)])


def _gemm_rates(pairs: list[tuple[tasks.Program, tasks.Outcome]]) -> Iterator[tuple[str, float]]:
    best: dict[str, float] = {}
    for program, outcome in pairs:
        if isinstance(program, tasks.OperationProgram) and program.key.label == SWEPT:
            key, seconds = program.key, seconds_of(outcome)
            if seconds:
                rate = 2.0 * key.m * key.n * key.k / seconds
                best[key.dtype] = max(best.get(key.dtype, 0.0), rate)
    yield from best.items()


def _of_cpu(
    data: Mapping[str, Any], copies: list[tuple[int, float]], rates: Mapping[str, float]
) -> dict[str, Any]:
    units, clock_hz = data["compute_units"]["value"], data["peak_clock_mhz"]["value"] * MEGA
    fastest, largest = max(rate for _, rate in copies), max(copies)[1]
    gemm = "fastest GEMM of a sweep"
    copy_gb = number(largest / 1e9, MEASURED, "a copy: gloo moves through memory")
    return {
        "matrix_flop_per_clk_per_cu": {
            kind: number(rate / (units * clock_hz), MEASURED, gemm) for kind, rate in rates.items()
        },
        "matrix_peak_tflops": {
            kind: number(rate / TERA, MEASURED, gemm) for kind, rate in rates.items()
        },
        "vector_tflops": number(
            rates.get("fp32", rates["bf16"]) / TERA, MEASURED, f"{gemm} in FP32: vector units"
        ),
        "l2_tb_per_s": number(fastest / TERA, MEASURED, "fastest copy of any size"),
        "hbm_peak_tb_per_s": number(fastest / TERA, MEASURED, "fastest copy of any size"),
        "hbm_efficiency": number(largest / fastest, MEASURED, "largest copy over the fastest"),
        "scale_up_gb_per_s": copy_gb,
        "scale_up_peer_gb_per_s": copy_gb,
        "host_link_gb_per_s": copy_gb,
    }


def _first_guesses(
    pairs: list[tuple[tasks.Program, tasks.Outcome]],
    bytes_per_s: float,
    rates: Mapping[str, float],
    data: Mapping[str, Any],
) -> dict[str, Any]:
    """Return where the fit of a CPU starts, from single operators.

    A rate that limits nothing at the start would never move, as no time depends on it there.
    """
    timed = [
        (program.key, seconds)
        for program, outcome in pairs
        if isinstance(program, tasks.OperationProgram) and (seconds := seconds_of(outcome))
    ]
    clocks = data["compute_units"]["value"] * data["peak_clock_mhz"]["value"] * MEGA
    guesses: dict[str, Any] = {
        "gemm_overhead_us": number(min(s for key, s in timed if key.kind == "gemm") * 1e6, FITTED)
    }
    exponentials = [
        key.exponentials / seconds for key, seconds in timed if key.label.endswith(".act")
    ]
    if any(exponentials):
        guesses["transcendental_per_clk_per_cu"] = number(max(exponentials) / clocks, FITTED)
    streams = [key.bytes / seconds for key, seconds in timed if key.kind == "memory"]
    if streams:
        share = min(1.0, statistics.median(streams) / bytes_per_s)
        guesses["elementwise_efficiency"] = number(share, FITTED)
    for phase, name in (("forward", "forward_efficiency"), ("backward", "backward_efficiency")):
        shares = [
            _attention_flop(key) / seconds / rates["bf16"]
            for key, seconds in timed
            if key.kind == "attention" and key.phase == phase
        ]
        if shares:
            guesses.setdefault("attention", {})[name] = number(min(1.0, 2.0 * max(shares)), FITTED)
    return guesses


def _attention_flop(key: OperationKey) -> float:
    products = 3.0 * key.k + 2.0 * key.d_v if key.phase == "backward" else key.k + key.d_v
    pairs = key.batch * key.heads * key.m * key.n * (0.5 if key.causal else 1.0)
    return 2.0 * products * pairs


def _number(text: str) -> float | None:
    found = re.match(r"\s*([\d.]+)", text)
    return float(found[1]) if found else None
