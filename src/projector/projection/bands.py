"""Bands of the step time and of the memory of a job, and whether a job fits by them.

A job whose peak would fit at the upper end of the band fits. One whose peak would not fit at the
lower end does not. What lies between is at risk: it may run out of memory, or may not.

What two jobs have in common (model, device, framework) is off by about as much in both, so the
ratio of their step times is known better than either. How well depends on the settings that differ.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from projector.arrays import Floats, Ints32
from projector.config import bands
from projector.config.bands import NOTHING, Band, table
from projector.config.device_file import attention_band
from projector.config.framework import profile_named
from projector.config.job import Job
from projector.config.resources import hardware_table
from projector.kernels.grouping import group_rows
from projector.lower.batch import JobBatch, data_parallel
from projector.projection.provenance import attention_basis, attention_evidence, release_drift
from projector.schedule.replay.run import MemoryBand
from projector.units import to_gib

ONE_SETTING = "one"
"""Pairs of runs that differ in any one setting, in `pairs` of the file."""


def time_band(job: Job, attention_share: float = 0.0, without: str | None = None) -> Band:
    """Return the band of the step time; ``without`` names a source of published rows to leave out.

    The band is wider where the attention kernel was not measured, by its share in the step.
    """
    band = bands.band_of("time", classes_of(job), job.cluster.device.name, without)
    band = replace(band, unknown=unfamiliar(job))
    months, drift = release_drift(job)
    if months:
        later = f"{band.basis}; wider for a release {months} months after the newest known one"
        band = replace(band.with_error(months * float(drift["spread"])), basis=later)
    passes = [attention_band(evidence) for evidence in attention_evidence(job)]
    # The backward takes about two thirds of attention.
    own = (passes[0] + 2.0 * passes[1]) / 3.0
    if band.relative is None or attention_share <= 0.0 or own <= attention_band("width"):
        return _calibrated(job, band)
    wider = band.with_error(attention_share * own)
    basis = f"{band.basis}; wider for attention that is {attention_basis(job)}"
    return _calibrated(job, replace(wider, runs=band.runs, basis=basis))


def _calibrated(job: Job, band: Band) -> Band:
    """Return the band of a device that was calibrated to a run like the job, where narrower."""
    entry = table("anchored").get("dense" if job.model.moe is None else "moe")
    if entry is None or run_class(job) not in job.cluster.device.calibrated_to:
        return band
    words = "published runs, with the device calibrated to another of their group,"
    anchored = _both_sides(entry, int(entry["runs"]), f"{entry['runs']} {words}")
    return anchored if _width(anchored) < _width(band) else band


def _width(band: Band) -> float:
    """Return the 90 % band's upper side over its lower one."""
    if band.low_90 is None or band.high_90 is None:
        return math.inf
    return band.high_90 / band.low_90


def run_class(job: Job) -> str:
    """Return what runs share that one of them can stand for: model and precision."""
    return f"{job.model.name}, {job.training.precision}"


def memory_band(job: Job, without: str | None = None) -> Band:
    """Return the band of the peak of memory; ``without`` as in `time_band`."""
    return bands.band_of("memory", classes_of(job, "memory"), without=without)


def ratio_band(
    settings: tuple[str, ...] | None, first: Band = NOTHING, second: Band = NOTHING
) -> Band:
    """Return the band of the step time for a token of the second job over that of the first.

    ``settings`` are those in which the jobs differ (`projector.projection.bands.changed_settings`).
    None says that model, device or framework differ: then nothing cancels, and the errors count as
    independent.
    """
    if settings == ():
        return Band(1.0, 1.0, 1.0, 1.0, 0, "the same settings twice")
    known = table("pairs")
    name = name_of(settings or ())
    if name not in known:
        name = ONE_SETTING
    if not settings or name not in known:
        return _independent(first, second)
    entry = known[name]
    words = {SEVERAL: "several settings", ONE_SETTING: "one setting"}.get(name, name)
    basis = f"{entry['pairs']} pairs of published runs that differ in {words}"
    return _both_sides(entry, int(entry["pairs"]), basis.replace("_", " "))


def _both_sides(entry: dict[str, Any], runs: int, basis: str) -> Band:
    """Return a band that is as wide below as above, in logarithms."""
    sides: dict[str, Any] = {}
    for share in bands.SHARES:
        width = 1.0 + float(entry[f"relative_{share}"])
        sides |= {f"low_{share}": round(1.0 / width, 3), f"high_{share}": round(width, 3)}
    return Band(**sides, runs=runs, basis=f"68 % of {basis} are within it")


def _independent(first: Band, second: Band) -> Band:
    """Return the band of second over first where squares of logarithms add."""
    if first.relative is None or second.relative is None:
        return NOTHING
    sides: dict[str, Any] = {
        f"{side}_{share}": round(
            math.exp(
                sign
                * math.hypot(
                    math.log(getattr(second, f"{side}_{share}")),
                    math.log(getattr(first, f"{other}_{share}")),
                )
            ),
            3,
        )
        for share in bands.SHARES
        for side, other, sign in (("low", "high", -1.0), ("high", "low", 1.0))
    }
    basis = "the bands of both jobs, taken as independent"
    return Band(**sides, runs=min(first.runs, second.runs), basis=basis)


def uncertainty(job: Job, quantity: str) -> dict[str, Any]:
    """Return the band of ``time`` or ``memory`` as ``--json`` has it."""
    return (time_band(job) if quantity == "time" else memory_band(job)).to_dict()


def classes_of(job: Job, quantity: str = "time") -> tuple[str, ...]:
    """Return the names of the classes of a job, the narrowest first; the last is ``all``."""
    family = bands.family_of_device(job.cluster.device)
    kind = "dense" if job.model.moe is None else "moe"
    precision = bands.width_of_type(job.training.precision)
    if unfamiliar(job, quantity):
        return (bands.UNFAMILIAR,)
    return f"{family}.{kind}.{precision}", f"{family}.{kind}", kind, bands.ALL


def unfamiliar(job: Job, quantity: str = "time") -> str:
    """Return what hardly any published run has of a job: framework, layers, experts on a network.

    Constants of one source alone stand behind the time or memory of such a job. Of others it
    returns ``""``.
    """
    framework, has_experts = job.training.framework, job.model.moe is not None
    few = "none" if framework is None else profile_named(framework.name).few_runs
    if framework is not None and (few == "all" or (few == "experts" and has_experts)):
        return f"{framework.name} with experts" if few == "experts" else framework.name
    if job.model.has_unfamiliar_layers:
        return "its kinds of layers"
    if quantity == "memory":
        return ""
    split, network = job.parallelism, job.cluster.network
    spread = split.ep > 1 and split.ep * split.expert_tp > network.scale_up_gpus
    waits = has_experts and spread and network.exchange_wait_us > 0.0
    return f"experts spread over {network.name.partition(':')[0]}" if waits else ""


VERDICTS = FITS, AT_RISK, DOES_NOT_FIT = "fits", "at_risk", "does_not_fit"
"""From good to bad; a code is a position."""

WORDS = {name: name.replace("_", " ") for name in VERDICTS}
"""What reports call them."""

COVERED = 90
"""Percent of comparable runs that the band of a verdict covers."""


def memory_factors(batch: JobBatch) -> tuple[Floats, Floats]:
    """Return both ends of the band of memory of each of n jobs, float64[n]; 1 lies between them.

    They are factors of the projected peak. One look-up serves each class.
    """
    sections = batch.model, batch.parallelism, batch.training, batch.cluster
    keys = [section.band_key for section in sections]
    # Most batches have one class; to group them would take longer than all the rest.
    keys = [key for key in keys if len(key) and key.min() < key.max()]
    if not keys:
        low, high = _factors(batch.job(0)) if len(batch) else (1.0, 1.0)
        return np.full(len(batch), low), np.full(len(batch), high)
    first, of_job = group_rows(*keys)
    low, high = np.array([_factors(batch.job(row)) for row in first.tolist()], np.float64).T
    return low[of_job], high[of_job]


def verdict_codes(low: Floats, high: Floats, usable: Floats) -> Ints32:
    """Return int32[n]: the position of each job's verdict in `VERDICTS`.

    Both ends of the band of the peak and what may be allocated are in the same unit.
    """
    return (~(high <= usable)).astype(np.int32) + (low > usable)


def verdict_of(
    job: Job, peak_bytes: float, usable_bytes: float, band: Band | None = None
) -> MemoryBand:
    """Return the verdict of one job with a peak, and both ends of its band or of another."""
    low, high = (peak_bytes * factor for factor in _factors(job, band))
    (code,) = verdict_codes(*(np.array([number]) for number in (low, high, usable_bytes)))
    return MemoryBand(VERDICTS[code], low, high)


def _factors(job: Job, band: Band | None = None) -> tuple[float, float]:
    band = memory_band(job) if band is None else band
    if band.low_90 is None or band.high_90 is None:
        return 1.0, 1.0
    # A band that leaves out the projection itself would call fitting what does not fit.
    return min(band.low_90, 1.0), max(band.high_90, 1.0)


def band_text(low_bytes: float, high_bytes: float) -> str:
    """Write both ends of a band in GiB."""
    return f"{to_gib(low_bytes):,.1f} to {to_gib(high_bytes):,.1f}"


SEVERAL = "several"
"""Name of pairs that differ in more than one setting."""

SWITCHES = "switches"
"""Every setting of parallelism or training that has no name of its own."""

MOST_TOKENS = 2.0
"""Longer sequences come in smaller microbatches: these go with them where the tokens of a
microbatch stay within this factor."""

_TABLE = hardware_table("settings/compared.yaml")
_NAMED = {name: tuple(fields) for name, fields in _TABLE["named"].items()}
_FOLLOWS: Mapping[str, list[str]] = _TABLE["follows"]

SETTINGS = (*_NAMED, SWITCHES)
"""Settings of which one or more differ in a pair."""

_DERIVED = ("parallelism.dp", "model.max_position_embeddings")
"""Fields that follow from others, or that hardly change a step."""

_NETWORK = "cluster.network."
_EXCHANGE = _NETWORK + "exchange_"
"""What a dispatcher's library makes of a network."""


def changed_settings(first: Job, second: Job) -> tuple[str, ...] | None:
    """Return the settings in which two jobs differ, in the order of `SETTINGS`.

    A global batch that follows from another setting counts with it: the same number of
    microbatches, of tokens, or of sequences on each device. None where model, device, framework or
    software differ, so that nothing cancels.
    """
    fields = _changed_fields(first, second)
    if fields is None:
        return None
    changed = {*settings_of(fields)}
    if "sequence" in changed and _tokens_stay(first, second):
        changed.discard("micro_batch")
    if changed - {"global_batch"} and _batch_follows(first, second):
        changed.discard("global_batch")
    return tuple(name for name in SETTINGS if name in changed)


def settings_of(fields: Collection[str]) -> tuple[str, ...]:
    """Return the settings that dotted fields of parallelism and training belong to, in order."""
    changed = {_setting_of(field) for field in fields if not _of(field, _FOLLOWS)}
    for field in fields:
        owners = _of(field, _FOLLOWS)
        if owners and not changed.intersection(owners):
            changed.add(_setting_of(field))
    return tuple(name for name in SETTINGS if name in changed)


def name_of(settings: tuple[str, ...]) -> str:
    """Return the name of pairs that differ in these settings; ``""`` where none does."""
    return settings[0] if len(settings) == 1 else SEVERAL if settings else ""


def _changed_fields(first: Job, second: Job) -> list[str] | None:
    """Return the dotted fields that differ; None where they are of different machines or models."""
    if first.model.name != second.model.name or first.cluster.device != second.cluster.device:
        return None
    words = {"name", "sources"}
    one, other = (job.cluster.network.model_dump(exclude=words) for job in (first, second))
    changed = _differences(one, other, _NETWORK)
    fields = [name for name in changed if name.startswith(_EXCHANGE)]
    if len(fields) < len(changed) and first.cluster.gpus == second.cluster.gpus:
        return None
    for section in ("model", "parallelism", "training", "cluster"):
        one, other = getattr(first, section), getattr(second, section)
        exclude = {"device", "network"} if section == "cluster" else {"name", "source"}
        if one != other:
            fields += _differences(
                one.model_dump(exclude=exclude), other.model_dump(exclude=exclude), f"{section}."
            )
    fields = [field for field in fields if not field.startswith(_DERIVED)]
    alike = ("parallelism.", "training.", "cluster.nodes", "cluster.gpus_per_node", _EXCHANGE)
    named = [field for field in fields if field.startswith(alike)]
    is_other = len(named) < len(fields) or any("framework" in field for field in named)
    return None if is_other else named


def _differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str) -> list[str]:
    fields: list[str] = []
    for name in dict.fromkeys([*first, *second]):
        one, other = first.get(name), second.get(name)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            fields += _differences(one, other, f"{prefix}{name}.")
        else:
            fields.append(f"{prefix}{name}")
    return fields


def _of(field: str, table: Mapping[str, list[str]]) -> list[str]:
    return next((value for prefix, value in table.items() if field.startswith(prefix)), [])


def _setting_of(field: str) -> str:
    return next((name for name, each in _NAMED.items() if field.startswith(each)), SWITCHES)


def _tokens_stay(first: Job, second: Job) -> bool:
    one, other = (
        job.training.micro_batch_size * job.training.seq_length for job in (first, second)
    )
    return max(one, other) <= MOST_TOKENS * min(one, other)


def _batch_follows(first: Job, second: Job) -> bool:
    def counts(job: Job) -> tuple[float, ...]:
        training = job.training
        batch = training.global_batch_size
        replica = training.micro_batch_size * data_parallel(job)
        return batch / replica, float(batch * training.seq_length), batch / job.cluster.gpus

    return any(one == other for one, other in zip(counts(first), counts(second), strict=True))
