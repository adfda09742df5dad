"""Choice of the fields to sample together: those with an effect of their own."""

import math
from collections.abc import Sequence

from projector.errors import ConfigError
from projector.searches.fields import levers_of
from projector.searches.multi_job import SharedEffect, Workload, check_fields, shared_sensitivity

MOST_FIELDS = 8
"""Most fields that are sampled by default, the most effective ones."""

MOST_NAMED = 64

SAME = 1e-6
"""Fields whose effects are closer are one number under two names: the variance would be split."""


def sampled_fields(
    workloads: Sequence[Workload], factor: float, fields: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the fields to sample together.

    Where no fields are named, every rate of the hardware is varied alone over the range first, and
    those with the largest effect are taken.

    Returns
    -------
    tuple of str, dict
        Fields, those that move together joined by ``+``; and fields that were not taken, with the
        reason.
    """
    if fields is not None:
        check_fields(workloads, fields)
        return _checked_names(fields), {}
    result = shared_sensitivity(workloads, change=factor - 1.0)
    # Of fields with the same effect, such as a rate and its efficiency, the rate comes first.
    ranked = sorted(
        result.effects, key=lambda effect: (-round(effect.swing, 6), "efficiency" in effect.field)
    )
    left_out = dict(result.illegal)
    chosen: dict[str, SharedEffect] = {}
    varied_by: dict[str, str] = {}
    for effect in ranked:
        parts = effect.field.split("+")
        others = [varied_by[part] for part in parts if part in varied_by]
        equal = [name for name, other in chosen.items() if _same_effect(effect, other)]
        missing = [workload.name for workload in workloads if not _has(workload, effect.field)]
        if others:
            left_out[effect.field] = f"is varied by {others[0]}"
        elif equal:
            left_out[effect.field] = f"does the same as {equal[0]}"
        elif missing:
            left_out[effect.field] = f"{missing[0]} does not have it"
        elif len(chosen) == MOST_FIELDS:
            left_out[effect.field] = "smaller effect than those that are sampled"
        else:
            chosen[effect.field] = effect
            varied_by |= dict.fromkeys(parts, effect.field)
    if not chosen:
        msg = "no field changes the step over this range; name others"
        raise ConfigError(msg, key="field", value=[], allowed="a dotted field")
    return tuple(chosen), left_out


def _same_effect(effect: SharedEffect, other: SharedEffect) -> bool:
    pairs = ((effect.low_s, other.low_s), (effect.high_s, other.high_s))
    return all(math.isclose(a, b, rel_tol=SAME) for a, b in pairs)


def _checked_names(fields: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(fields) <= MOST_NAMED:
        msg = f"field: 1 to {MOST_NAMED} fields can be sampled, got {len(fields)}"
        raise ConfigError(msg, key="field", value=len(fields), allowed=f"1 to {MOST_NAMED}")
    return tuple("+".join(part.strip() for part in name.split("+")) for name in fields)


def _has(workload: Workload, field: str) -> bool:
    try:
        levers_of(workload.job, [field])
    except ConfigError:
        return False
    return True
