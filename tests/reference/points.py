"""Points of a factorial space in plain Python: which are legal, and what they have."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence


def choose(
    points: Sequence[int],
    sizes: Sequence[int],
    lookups: Sequence[tuple[Sequence[int], Mapping[tuple[int, ...], int | None], set[int]]],
) -> tuple[list[int], list[tuple[int, ...]], list[list[int]], Counter, set]:
    """Ask look-ups in turn: axes, value of each combination of their places, refused values.

    Returns the positions of legal points, their places, the values of each look-up, how many each
    value of a look-up refuses, and the combinations that have no value yet.
    """
    every = list(itertools.product(*map(range, sizes)))
    legal, places, values = [], [], []
    refused, wanted = Counter(), set()
    for position, point in enumerate(points):
        place, found = every[point], []
        for number, (axes, value_of, illegal) in enumerate(lookups):
            combination = tuple(place[axis] for axis in axes)
            value = value_of[combination]
            if value is None:
                wanted.add((number, combination))
                break
            if value in illegal:
                refused[number, value] += 1
                break
            found.append(value)
        else:
            legal.append(position)
            places.append(place)
            values.append(found)
    return legal, places, values, refused, wanted
