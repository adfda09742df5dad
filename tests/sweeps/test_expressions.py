"""Whole columns give what Python gives for each of their values."""

import inspect
import math
import random
import sys

import numpy as np
import pytest

from projector.config.space import Expression
from projector.errors import ConfigError
from projector.sweeps.computed import Unsupported, Values, evaluate

INTEGERS = [-(2**62), -7, -1, 0, 1, 2, 3, 8, 10**9, 2**53 - 1, 2**53, 2**53 + 1, 2**80]
FRACTIONS = [-math.inf, -2.5, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.5, 1e300, math.inf, math.nan]
COLUMNS = {
    "i": INTEGERS,
    "j": INTEGERS,
    "x": FRACTIONS,
    "y": FRACTIONS,
    "b": [True, False],
    "s": ["none", "full", ""],
    "o": [None, 1, 2.5, "full", [1, 2], [3, 4]],
}


def columns(draw, rows):
    return {name: [draw.choice(values) for _ in range(rows)] for name, values in COLUMNS.items()}


def assert_same(text, given, *, truth):
    """Whether all that is sure is Python's; return how many rows columns could say."""
    expression = Expression(text, "c")
    rows = len(next(iter(given.values())))
    names = {name: Values.of(values) for name, values in given.items()}
    try:
        found = evaluate(expression, names, truth=truth)
    except Unsupported:
        return 0
    values = np.broadcast_to(found.array, rows).tolist()
    unsure = np.broadcast_to(found.unsure, rows).tolist()
    for row, (value, doubt) in enumerate(zip(values, unsure, strict=True)):
        try:
            expected = expression({name: of[row] for name, of in given.items()})
        except ConfigError:
            assert doubt, (text, row)
            continue
        if not doubt:
            expected = bool(expected) if truth else expected
            assert type(value) is type(expected), (text, value, expected)
            assert repr(value) == repr(expected), (text, {n: of[row] for n, of in given.items()})
    return rows - sum(unsure)


def text_of(draw, depth):
    """Return a random expression."""
    if depth == 0:
        return draw.choice([*"iijxyb", "0", "1", "3", "2.5", "True", "-4"])
    part = [text_of(draw, depth - draw.randrange(1, depth + 1)) for _ in range(3)]
    form = draw.choice(
        [
            *(f"({part[0]}) {sign} ({part[1]})" for sign in ("+", "-", "*", "/", "//", "%")),
            *(f"({part[0]}) {sign} ({part[1]})" for sign in ("<", "<=", ">", ">=", "==", "!=")),
            f"({part[0]}) < ({part[1]}) <= ({part[2]})",
            f"({part[0]}) and ({part[1]})",
            f"({part[0]}) or ({part[1]}) or ({part[2]})",
            f"not ({part[0]})",
            f"({part[0]}) if ({part[1]}) else ({part[2]})",
            f"({part[0]}) in (1, 2.5, True)",
            f"({part[0]}) ** {draw.randrange(4)}",
            f"min(({part[0]}), ({part[1]}))",
            f"max(({part[0]}), ({part[1]}), ({part[2]}))",
            *(f"{name}({part[0]})" for name in ("abs", "round", "ceil", "floor", "log2")),
            "s == 'full'",
            "s not in ['none', 'half']",
            "o != 1",
            "-(i)",
        ]
    )
    return f"+({form})" if draw.random() < 0.1 else form


@pytest.mark.parametrize("truth", [True, False])
def test_random_expressions(truth):
    draw, said = random.Random(2), 0
    for _ in range(1500):
        said += assert_same(text_of(draw, draw.randrange(1, 4)), columns(draw, 12), truth=truth)
    assert said > 4000  # columns say most of what they are asked


@pytest.mark.parametrize(
    "text",
    [
        "i * j >= 1 and (i * j) % 3 == 0",
        "i // j > 0 or i % j == 1",
        "x // y == x % y",
        "1 / i > 0 if i != 0 else False",
        "i == 0 or 8 % i == 0",
        "log2(i) % 1 == 0",
        "s == 'full' and b",
        "o in (None, 'full')",
        "round(x) == ceil(x) and abs(x) <= y",
        "1 < 2",
    ],
)
def test_constraints_are_said_by_columns(text):
    assert assert_same(text, columns(random.Random(3), 4000), truth=True) > 1000


@pytest.mark.parametrize(
    "text",
    ["'a' in s", "x ** 2", "round(x, 1)", "i if b else x", "min([i, j])", "s < 'x'", "s + s"],
)
def test_python_is_asked_for_the_rest(text):
    names = {name: Values.of(values) for name, values in columns(random.Random(4), 9).items()}
    with pytest.raises(Unsupported):
        evaluate(Expression(text, "c"), names, truth=False)


@pytest.mark.parametrize("value", ["bf16", "", [1, 2], (0.5, 1.5), None])
@pytest.mark.parametrize("text", ["c < 3", "c % 2", "abs(c)", "c + x", "c and i"])
def test_one_value_for_all_rows_is_no_number_unless_it_is_one(text, value):
    names = {"c": Values.constant(value), "x": Values.of([0.5]), "i": Values.of([1])}
    with pytest.raises(Unsupported):
        evaluate(Expression(text, "c"), names, truth=False)
    equal = evaluate(Expression("c == x", "c"), names, truth=True)
    assert equal.array.tolist() == [False]


def test_what_nests_too_deep_is_left_to_python():
    def deeper(depth):
        return deeper(depth - 1) if depth else evaluate(expression, names, truth=False)

    expression, names = Expression("-" * 150 + "i", "c"), {"i": Values.of([1, 2])}
    assert deeper(0).array.tolist() == [1, 2]
    with pytest.raises(Unsupported):
        deeper(sys.getrecursionlimit() - len(inspect.stack()) - 200)
