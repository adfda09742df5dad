"""Bands of the step time and of the memory of a job."""

import math
from dataclasses import replace
from typing import Any

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
from projector.projection.pairs import SEVERAL, name_of
from projector.projection.provenance import attention_basis, attention_evidence

ONE_SETTING = "one"
"""Pairs of runs that differ in any one setting, in `pairs` of the file."""


def time_band(job: Job, attention_share: float = 0.0, without: str | None = None) -> Band:
    """Return the band of the step time.

    Parameters
    ----------
    job : Job
        The job.
    attention_share : float
        Share of attention in the step; the band is wider where its kernel was not measured.
    without : str, optional
        A source of published rows: the band without them.
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
    """Return the band of the step time for a token of one job over that of another.

    Parameters
    ----------
    settings : tuple of str or None
        In what the jobs differ (`projector.projection.pairs.changed_settings`); None where model,
        device or framework differ. Then nothing cancels, and the errors count as independent.
    first, second : Band
        Bands of both step times; the ratio is that of the second over the first.
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
