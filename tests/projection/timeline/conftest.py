"""Every timeline of these tests is built from pieces that add up before they are rounded."""

import numpy as np
import pytest

from projector.projection.terms import BREAKDOWN
from projector.projection.timeline import ranks

ROUNDED_PS = 2.0
"""What terms may be off by where they are small."""


@pytest.fixture(autouse=True)
def pieces_add_up(monkeypatch):
    """Rounding spreads what is off over a term: it must have been next to nothing."""
    plain = ranks.apportioned

    def checked(weight, term, total_ps):
        if total_ps is not None:
            found = np.bincount(term, weight, len(BREAKDOWN))
            # Idle time is replayed in whole picoseconds, all other terms are sums of seconds.
            room = ROUNDED_PS + 1e-9 * total_ps + 1e-12 * total_ps.sum()
            off = {
                name: (given, wanted)
                for name, given, wanted, much in zip(
                    BREAKDOWN, found.tolist(), total_ps.tolist(), room.tolist(), strict=True
                )
                if abs(given - wanted) > much
            }
            assert not off
        return plain(weight, term, total_ps)

    monkeypatch.setattr(ranks, "apportioned", checked)
