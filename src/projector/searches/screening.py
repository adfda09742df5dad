"""Which fields are worth sampling together: those that do something alone, once each."""

import math
from collections.abc import Sequence

from projector.errors import ConfigError
from projector.searches.fields import levers_of
from projector.searches.multi_job import SharedEffect, Workload, check_fields, shared_sensitivity

MOST_FIELDS = 8
"""Fields that are sampled where none are named, the most effective ones."""

MOST_NAMED = 64

SAME = 1e-6
"""Fields whose effects are closer are one number under two names: the variance would be split."""


def sampled_fields(
    workloads: Sequence[Workload], factor: float, fields: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose what is sampled together.

    Where no fields are named, every rate of the hardware is varied alone over the range first, and
    those with the largest effect are taken.

    Returns
    -------
    tuple of str, dict
        Fields, those that move together joined by ``+``; and fields that were not taken, with the
        reason.

    Raises
    ------
    ConfigError
        If a named field is not a number above 0 in every workload, or no field has an effect.
    """
    if fields is not None:
        check_fields(workloads, fields)
        return _named(fields), {}
    found = shared_sensitivity(workloads, change=factor - 1.0)
    # Of fields that do the same, such as a rate and the share of it that is reached, the rate.
    ranked = sorted(
        found.effects, key=lambda each: (-round(each.swing, 6), "efficiency" in each.field)
    )
    left_out = dict(found.illegal)
    chosen: dict[str, SharedEffect] = {}
    taken: dict[str, str] = {}
    for effect in ranked:
        parts = effect.field.split("+")
        others = [taken[part] for part in parts if part in taken]
        same = [name for name, other in chosen.items() if _same(effect, other)]
        missing = [each.name for each in workloads if not _has(each, effect.field)]
        if others:
            left_out[effect.field] = f"is varied by {others[0]}"
        elif same:
            left_out[effect.field] = f"does the same as {same[0]}"
        elif missing:
            left_out[effect.field] = f"{missing[0]} does not have it"
        elif len(chosen) == MOST_FIELDS:
            left_out[effect.field] = "smaller effect than those that are sampled"
        else:
            chosen[effect.field] = effect
            taken |= dict.fromkeys(parts, effect.field)
    if not chosen:
        msg = "no field changes the step over this range; name others"
        raise ConfigError(msg, key="field", value=[], allowed="a dotted field")
    return tuple(chosen), left_out


def _same(effect: SharedEffect, other: SharedEffect) -> bool:
    ends = ((effect.low_s, other.low_s), (effect.high_s, other.high_s))
    return all(math.isclose(one, another, rel_tol=SAME) for one, another in ends)


def _named(fields: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(fields) <= MOST_NAMED:
        msg = f"field: 1 to {MOST_NAMED} fields can be sampled, got {len(fields)}"
        raise ConfigError(msg, key="field", value=len(fields), allowed=f"1 to {MOST_NAMED}")
    return tuple("+".join(part.strip() for part in each.split("+")) for each in fields)


def _has(workload: Workload, field: str) -> bool:
    try:
        levers_of(workload.job, [field])
    except ConfigError:
        return False
    return True
