"""Bands of the step time and of the memory of a job, and whether a job fits by them.

A job whose peak would fit at the upper end of the band fits. One whose peak would not fit at the
lower end does not. What lies between is at risk: it may run out of memory, or may not.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints32
from projector.config.bands import (
    ALL,
    NOTHING,
    SHARES,
    Band,
    band_of,
    family_of_device,
    table,
    width_of_type,
)
from projector.config.device_file import attention_band
from projector.config.job import Job
from projector.kernels.grouping import group_rows
from projector.lower.batch import JobBatch
from projector.projection.pairs import SEVERAL, name_of
from projector.projection.provenance import attention_basis, attention_evidence
from projector.schedule.replay.run import MemoryBand
from projector.units import to_gib

ONE_SETTING = "one"
"""Pairs of runs that differ in any one setting, in `pairs` of the file."""


def time_band(job: Job, attention_share: float = 0.0, without: str | None = None) -> Band:
    """Return the band of the step time; ``without`` names a source of published rows to leave out.

    The band is wider where the attention kernel was not measured, by its share in the step.
    """
    band = band_of("time", classes_of(job), job.cluster.device.name, without)
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
    return band_of("memory", classes_of(job), without=without)


def ratio_band(
    settings: tuple[str, ...] | None, first: Band = NOTHING, second: Band = NOTHING
) -> Band:
    """Return the band of the step time for a token of the second job over that of the first.

    ``settings`` are those in which the jobs differ (`projector.projection.pairs.changed_settings`).
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
    sides: dict[str, float] = {}
    for share in SHARES:
        width = 1.0 + float(entry[f"relative_{share}"])
        sides |= {f"low_{share}": round(1.0 / width, 3), f"high_{share}": round(width, 3)}
    return Band(**sides, runs=runs, basis=f"68 % of {basis} are within it")


def _independent(first: Band, second: Band) -> Band:
    """Return the band of second over first where squares of logarithms add."""
    if first.relative is None or second.relative is None:
        return NOTHING
    sides = {
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
        for share in SHARES
        for side, other, sign in (("low", "high", -1.0), ("high", "low", 1.0))
    }
    basis = "the bands of both jobs, taken as independent"
    return Band(**sides, runs=min(first.runs, second.runs), basis=basis)


def uncertainty(job: Job, quantity: str) -> dict[str, Any]:
    """Return the band of ``time`` or ``memory`` as ``--json`` has it."""
    return (time_band(job) if quantity == "time" else memory_band(job)).to_dict()


def classes_of(job: Job) -> tuple[str, ...]:
    """Return the names of the classes of a job, the narrowest first; the last is ``all``."""
    family = family_of_device(job.cluster.device)
    kind = "dense" if job.model.moe is None else "moe"
    precision = width_of_type(job.training.precision)
    return f"{family}.{kind}.{precision}", f"{family}.{kind}", kind, ALL


VERDICTS = FITS, AT_RISK, DOES_NOT_FIT = "fits", "at_risk", "does_not_fit"
"""From good to bad; a code is a position."""

WORDS = {name: name.replace("_", " ") for name in VERDICTS}
"""What reports call them."""

COVERED = 90
"""Percent of comparable runs that the band of a verdict covers."""


class Factors(NamedTuple):
    """Both ends of the band of memory, as factors of the projected peak; 1 lies between them."""

    low: Floats
    high: Floats


def memory_factors(batch: JobBatch) -> Factors:
    """Return the band of memory of each of n jobs, float64[n] each; one look-up for each class."""
    sections = batch.model, batch.parallelism, batch.training, batch.cluster
    keys = [section.band_key for section in sections]
    # Most batches have one class; to group them would take longer than all the rest.
    keys = [key for key in keys if len(key) and key.min() < key.max()]
    if not keys:
        low, high = _factors(batch.job(0)) if len(batch) else (1.0, 1.0)
        return Factors(np.full(len(batch), low), np.full(len(batch), high))
    first, of_job = group_rows(*keys)
    ends = np.array([_factors(batch.job(row)) for row in first.tolist()], np.float64)
    return Factors(*ends.T[:, of_job])


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


def at_risk_text(low_bytes: float, high_bytes: float, usable_bytes: float) -> str:
    """Say what is at risk, for a warning."""
    return (
        f"memory is at risk: {COVERED} % of comparable runs peak at "
        f"{band_text(low_bytes, high_bytes)} GiB, and {to_gib(usable_bytes):,.1f} are usable"
    )
