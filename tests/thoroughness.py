"""How much one run does of what it need not do whole."""

import random
from collections.abc import Iterable
from typing import Any

from hypothesis import settings

PARTS = 4
"""In how many parts the cases of a rotated test are tried."""


def part_of(cases: Iterable[Any], part: int) -> list[Any]:
    """Return one of the parts. Cases that stand together are alike: each part has some of them."""
    listed = [*cases]
    return random.Random(0).sample(listed, len(listed))[part::PARTS]


def examples(number: int) -> int:
    """Return how many random examples a run draws where a thorough one draws ``number``."""
    return max(1, number * settings().max_examples // 100)
