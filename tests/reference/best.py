"""The best row of each group, by sorting."""

import math


def best_rows(group, fits, safe, rate, peak):
    """Return the best row of each group, groups as they first appear."""

    def merit(row):
        deciding = -rate[row] if fits[row] else peak[row]
        numbers = (x if math.isfinite(x) else math.inf for x in (deciding, peak[row]))
        return (not fits[row], not safe[row], *numbers, row)

    groups = dict.fromkeys(group)
    return [min((r for r in range(len(group)) if group[r] == g), key=merit) for g in groups]
