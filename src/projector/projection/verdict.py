"""Whether a job fits once the error of its memory counts: three verdicts from one band.

A job whose peak would fit at the upper end of the band fits. One whose peak would not fit at the
lower end does not. What lies between is at risk: it may run out of memory, or may not.
"""

from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints32
from projector.config.bands import Band
from projector.config.job import Job
from projector.kernels.grouping import group_rows
from projector.lower.batch import JobBatch
from projector.projection.bands import memory_band
from projector.schedule.replay.run import MemoryBand
from projector.units import to_gib

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

    Parameters
    ----------
    low, high, usable : float64[n]
        Both ends of the band of the peak, and what may be allocated, in the same unit.
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
