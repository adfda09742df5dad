"""Bands around a projection: where the measured value of a comparable run lies.

``hardware/uncertainty.yaml`` holds them by class of job. docs/validation.md says how they are made.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from projector.config.device import attention_band
from projector.config.job import Job
from projector.config.resources import data_dir
from projector.config.yaml_file import read_yaml
from projector.projection.pairs import SEVERAL, name_of
from projector.projection.provenance import attention_basis, attention_evidence

SHARES = (68, 90)
"""Percent of comparable runs that the bands hold."""

ONE_SETTING = "one"
"""Pairs of runs that differ in any one setting, in `pairs` of the file."""

EIGHT_BITS_AND_LESS = "low_precision"
SIXTEEN_BITS_AND_MORE = "16_bit"


@dataclass(frozen=True, slots=True)
class Band:
    """Where the measured value lies, as factors of the projected one."""

    low_68: float | None
    """68 % of comparable runs lie between this factor and `high_68`; None if nothing is known."""
    high_68: float | None
    low_90: float | None
    high_90: float | None
    runs: int
    """Published rows that the band rests on."""
    basis: str
    """What the band rests on, as a sentence."""

    @property
    def relative(self) -> float | None:
        """The wider side of the 68 % band, as a fraction of the projected value."""
        if self.low_68 is None or self.high_68 is None:
            return None
        return round(max(1.0 - self.low_68, self.high_68 - 1.0), 3)

    def to_dict(self) -> dict[str, Any]:
        """Return ``uncertainty`` of ``--json``."""
        return {
            "relative": self.relative,
            "low": {"68": self.low_68, "90": self.low_90},
            "high": {"68": self.high_68, "90": self.high_90},
            "basis": self.basis,
        }


NOTHING = Band(None, None, None, None, 0, "no published run to compare with")


def time_band(job: Job, attention_share: float = 0.0) -> Band:
    """Return the band of the step time.

    Parameters
    ----------
    job : Job
        The job.
    attention_share : float
        Share of attention in the step; the band is wider where its kernel was not measured.
    """
    return _widened(_band(job, "time"), job, attention_share)


def memory_band(job: Job) -> Band:
    """Return the band of the peak of memory."""
    return _band(job, "memory")


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
    known = _bands().get("pairs", {})
    name = name_of(settings or ())
    if name not in known:
        name = ONE_SETTING
    if not settings or name not in known:
        return _independent(first, second)
    entry = known[name]
    words = {SEVERAL: "several settings", ONE_SETTING: "one setting"}.get(name, name)
    pairs = int(entry["pairs"])
    basis = f"68 % of {pairs} pairs of published runs that differ in {words} are within it"
    sides: dict[str, float] = {}
    for share in SHARES:
        width = 1.0 + float(entry[f"relative_{share}"])
        sides |= {f"low_{share}": round(1.0 / width, 3), f"high_{share}": round(width, 3)}
    return Band(**sides, runs=pairs, basis=basis.replace("_", " "))


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
    return _band(job, quantity).to_dict()


def classes_of(job: Job) -> tuple[str, ...]:
    """Return the names of the classes of a job, the narrowest first; the last is ``all``."""
    family = job.cluster.device.architecture.rstrip("0123456789")
    kind = "dense" if job.model.moe is None else "moe"
    precision = (
        SIXTEEN_BITS_AND_MORE
        if job.training.precision in {"bf16", "fp16", "fp32", "tf32"}
        else EIGHT_BITS_AND_LESS
    )
    return f"{family}.{kind}.{precision}", f"{family}.{kind}", kind, "all"


def _band(job: Job, quantity: str) -> Band:
    known = _bands().get(quantity, {})
    name = next((name for name in classes_of(job) if name in known), None)
    if name is None:
        return NOTHING
    unseen = known.get("unseen")
    if unseen is not None and job.cluster.device.name not in unseen["devices"]:
        text = f"published runs of {len(unseen['devices'])} other devices, each counting the same"
        return _wider(_read(unseen, text), _read(known[name], text))
    words = name.replace(".", ", ").replace("_", " ")
    return _read(known[name], f"published runs ({words})")


def _read(entry: dict[str, Any], basis: str) -> Band:
    runs = int(entry["runs"])
    return Band(
        low_68=float(entry["low_68"]),
        high_68=float(entry["high_68"]),
        low_90=float(entry["low_90"]),
        high_90=float(entry["high_90"]),
        runs=runs,
        basis=f"68 % of {runs} {basis} are within it",
    )


def _wider(first: Band, second: Band) -> Band:
    """Return a band that holds both, on the basis of the first."""
    return replace(
        first,
        low_68=_least(first.low_68, second.low_68),
        high_68=_most(first.high_68, second.high_68),
        low_90=_least(first.low_90, second.low_90),
        high_90=_most(first.high_90, second.high_90),
    )


def _least(first: float | None, second: float | None) -> float | None:
    known = [factor for factor in (first, second) if factor is not None]
    return min(known, default=None)


def _most(first: float | None, second: float | None) -> float | None:
    known = [factor for factor in (first, second) if factor is not None]
    return max(known, default=None)


def _widened(band: Band, job: Job, attention_share: float) -> Band:
    """Return a band of the step time, wider where the job's attention kernel has no rows.

    The errors of attention and of the rest are taken as independent: squares of logarithms add.
    """
    known = attention_band("width")
    passes = [attention_band(evidence) for evidence in attention_evidence(job)]
    # The backward takes about two thirds of attention.
    own = (passes[0] + 2.0 * passes[1]) / 3.0
    if band.relative is None or own <= known:
        return band
    extra = attention_share * own
    # 90 % of a normal error lie within 1.65 times what 68 % lie within.
    wide = 1.65 * extra
    return Band(
        low_68=_moved(band.low_68, -extra),
        high_68=_moved(band.high_68, extra),
        low_90=_moved(band.low_90, -wide),
        high_90=_moved(band.high_90, wide),
        runs=band.runs,
        basis=f"{band.basis}; wider for attention that is {attention_basis(job)}",
    )


def _moved(factor: float | None, error: float) -> float | None:
    """Return a side of a band with one more independent error, outwards by its sign."""
    if factor is None:
        return None
    return round(math.exp(math.copysign(math.hypot(math.log(factor), error), error)), 3)


@lru_cache(maxsize=1)
def _bands() -> dict[str, Any]:
    path = data_dir("hardware") / "uncertainty.yaml"
    return read_yaml(path) if path.is_file() else {}
