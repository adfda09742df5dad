"""Numbers as plans write them."""


def number(value: float) -> str:
    """Write a large number as people say it: ``1 T``, ``15.6 T``, ``300 B``."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.4g} {letter}"
    return f"{value:,.0f}"


def days_number(days: float) -> str:
    """Write days in three digits or more."""
    return f"{days:,.1f}" if days >= 9.95 else f"{days:.2f}" if days >= 0.995 else f"{days:.3g}"


def usd(value: float) -> str:
    """Write money in three or four digits."""
    if value >= 1e6:
        return f"${value / 1e6:,.2f} M"
    return f"${value:,.0f}"
