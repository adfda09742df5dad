"""How many ranks or domains the experts of one token lie on, for uniform routing.

A token picks distinct experts, so the number it reaches follows the hypergeometric law. With
group-limited routing it first picks some groups of experts (DeepSeek-V3: 4 of 8).
"""

from functools import lru_cache
from math import comb


@lru_cache(maxsize=4096)
def expected_parts(
    parts: float, experts: int, topk: int, groups: int = 0, group_topk: int = 0
) -> float:
    """Return the expected number of distinct parts on which a token's experts lie.

    Parameters
    ----------
    parts : float
        Ranks or domains that share the experts evenly and in order. A fraction, as of 12 ranks
        over domains of 8, is taken as that many parts of a whole part's size.
    experts, topk : int
        Experts of a layer, and those that a token picks, all distinct.
    groups, group_topk : int
        Groups of experts and how many of them a token visits; 0 routes freely.

    Notes
    -----
    ``parts * (1 - P)`` with P the probability that a part has none of the picked experts. Freely
    that is ``C(experts - share, topk) / C(experts, topk)``, where ``share = experts / parts``.
    """
    if parts <= 1.0:
        return 1.0
    if not 0 < group_topk < groups:
        return parts * (1.0 - _missed(experts, experts / parts, topk))
    eligible, group = experts * group_topk / groups, experts / groups
    if parts >= groups:
        # A part lies inside one group, which is visited or not.
        return parts * group_topk / groups * (1.0 - _missed(eligible, experts / parts, topk))
    held = groups / parts
    if not held.is_integer():
        # Groups straddle parts: at least as many as the visited groups would fill.
        return min(parts * (1.0 - _missed(experts, experts / parts, topk)), float(group_topk))
    whole = int(held)
    missed = sum(
        comb(whole, visited)
        * comb(groups - whole, group_topk - visited)
        / comb(groups, group_topk)
        * _missed(eligible, visited * group, topk)
        for visited in range(min(whole, group_topk) + 1)
    )
    return parts * (1.0 - missed)


def _missed(experts: float, share: float, topk: int) -> float:
    """Return the probability that none of ``topk`` distinct experts lies among ``share``."""
    missed = 1.0
    for picked in range(topk):
        if experts - share - picked <= 0.0:
            return 0.0
        missed *= (experts - share - picked) / (experts - picked)
    return missed
