"""How measures show their numbers."""

PS_PER_NS = 1000


def to_ns(ps: float) -> int | float:
    """Return nanoseconds of picoseconds: a whole number where it is one."""
    if isinstance(ps, float):
        return ps / PS_PER_NS
    whole, rest = divmod(ps, PS_PER_NS)
    return ps / PS_PER_NS if rest else whole
