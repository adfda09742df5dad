"""Expressions may take neither for ever nor all memory, whatever they say and read."""

import contextlib
import math
import pickle
import random

import pytest

import projector as pj
from projector.config.space import LONGEST, MOST_BITS, Expression
from projector.errors import ConfigError

BASE = {
    "model": "llama3.1_8b",
    "cluster": {"device": "h100", "nodes": 1},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
}


def value_of(text, **values):
    return Expression(text, "constraints[0]")(values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 ** 63", 2**63),
        ("10 ** 63 // 10 ** 60", 1000),
        ("7 / 2 + 7 // 2 - 7 % 4 * 1.5", 2.0),
        ("round(2.675, 1)", 2.7),
        ("round(1234, -2)", 1200),
        ("round(2.5)", 2),
        ("ceil(log2(9)) + floor(-0.5) + abs(-3)", 6),
        ("min(3, 2, 4) + max([1, 5])", 7),
        ("-2 ** 2", -4),
        ("+True + 1", 2),
        ("'b' in ['a', 'b'] and 1 < 2 < 3 and not 0", True),
        ("1 if 'x' == 'x' else 1 / 0", 1),
        ("max('abc')", "c"),
    ],
)
def test_what_expressions_say(text, expected):
    found = value_of(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("((((((9**63)**63)**63)**63)**63)**63)**63 > 0", "an integer of more than 4096 bits"),
        ("round(10**63, -10**9) > 0", "round takes at most 400 places"),
        ("round(1.5, 10**9)", "round takes at most 400 places"),
        ("[1] * 10**18", r"arithmetic takes numbers, not \[1\]"),
        ("10**9 * (1, 2)", r"arithmetic takes numbers, not \(1, 2\)"),
        ("'x' * 10**12", "arithmetic takes numbers, not 'x'"),
        ("'%1000000000d' % 1", "arithmetic takes numbers, not '%1000000000d'"),
        ("'%*d' % (10**9, 1)", "arithmetic takes numbers"),
        ("b'x' * 10**12", "arithmetic takes numbers"),
        ("'a' + 'b' == 'ab'", "arithmetic takes numbers, not 'a'"),
        ("[1] + [2] == [1, 2]", "arithmetic takes numbers"),
        ("1j + 1", "arithmetic takes numbers"),
        ("abs('x')", "arithmetic takes numbers"),
        ("1e308 * 1e308 // 1", "nan"),
        ("floor(1e308 * 10)", "infinity"),
        ("1 / 0", "division by zero"),
        ("log2(0)", "math domain error|expected a positive input"),
    ],
)
def test_sizes_are_bounded(text, says):
    if says == "nan":
        assert isinstance(value_of(text), float)
        return
    with pytest.raises(ConfigError, match=says) as caught:
        value_of(text)
    assert caught.value.key == "constraints[0]"
    assert "cannot be computed: " in caught.value.message


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, [1] * 10**6, 1 << 10**6, None, {"a": 1}],
    ids=["text", "list", "integer", "nothing", "mapping"],
)
def test_values_that_are_read_are_bounded_too(value):
    for text in ("tp * 10**18 > 0", "tp % 3 == 0", "tp ** 63 > 0", "round(tp) > 0", "tp + tp > 0"):
        with pytest.raises(ConfigError, match=r"bits|numbers") as caught:
            value_of(text, tp=value)
        assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "text",
    [
        "-" * (LONGEST - 1) + "1",
        "not " * 240 + "1",
        "(" * 90 + "1" + ")" * 90,
        "[" * 90 + "]" * 90,
        "1" + "+1" * 490,
        "1" + "**1" * 300,
        "1" + " if 1 else 1" * 80,
        "1 " + "< 1 " * 240,
        "min(" * 190 + "1,2" + ")" * 190,
    ],
)
def test_deep_expressions_are_values_or_errors(text):
    # Whatever else comes out of it is no error of a user.
    with contextlib.suppress(ConfigError):
        value_of(text)


def test_operators_are_no_names():
    expression = Expression("tp * pp + min(tp, 2)", "c")
    assert expression.names == {"tp", "pp"}
    assert pickle.loads(pickle.dumps(expression))({"tp": 3, "pp": 4}) == 14
    # A field of the same name as a function does not stand in for it.
    with pytest.raises(ConfigError):
        Expression("__import__('os')", "c")


def test_random_arithmetic_is_that_of_python():
    draw = random.Random(5)
    numbers = ["2", "3", "7", "0.5", "tp", "pp", "(tp - pp)", "64", "-1"]
    for _ in range(2000):
        text = draw.choice(numbers)
        for _ in range(draw.randrange(1, 8)):
            step = draw.choice(["+", "-", "*", "/", "//", "%", "**"])
            other = str(draw.randrange(4)) if step == "**" else draw.choice(numbers)
            text = f"({text}) {step} {other}"
        values = {"tp": draw.randrange(9), "pp": draw.randrange(1, 9)}
        try:
            expected = eval(text, {}, dict(values))
        except ArithmeticError:
            expected = None
        try:
            found = value_of(text, **values)
        except ConfigError:
            found = None
        same = found == expected or (found != found and expected != expected)
        large = isinstance(expected, int) and expected.bit_length() > MOST_BITS
        assert same or large, text


@pytest.mark.parametrize(
    ("axes", "constraints"),
    [
        ({"cluster.nodes": [[1, 2]], "cluster.gpus_per_node": [10**10]}, ["gpus > 0"]),
        ({"cluster.nodes": ["ab"], "cluster.gpus_per_node": [10**10]}, ["gpus > 0"]),
        ({"parallelism.tp": [["a"] * 100], "parallelism.pp": [10**10]}, ["dp > 0"]),
        ({"training.micro_batch_size": [[1]]}, ["microbatches > 0"]),
        ({"training.global_batch_size": [10**390]}, ["microbatches > 0"]),
        ({"parallelism.tp": {"expression": "10**63 * 10**63 * 10**63"}}, []),
        ({"parallelism.tp": [1]}, ["((9**63)**63)**63 > tp"]),
    ],
)
def test_points_of_a_space_are_left_out(axes, constraints):
    space = pj.load_space({"base": BASE, "axes": axes, "constraints": constraints})
    result = pj.sweep(space, workers=1)
    assert result.rows == 0
    assert sum(result.totals.infeasible.values()) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"scale": [1e299]},
        {"scale": [1e290, 1.0]},
        {"range": [1, 1e299, 1e-299]},
        {"log": [1, 10, 0.5]},
        {"log": [1, 10, 2.5]},
        {"log": [1e-299, 1e299, 4]},
        {"log": [5e-324, 1e299, 4]},
        {"range": [1e299, 1e299, 1]},
        {"powers_of_two": [1e-299, 1e299]},
        {"powers_of_two": [3, 3]},
        {"range": [1 << 5000, 1]},
    ],
)
@pytest.mark.parametrize("field", ["training.global_batch_size", "cluster.device.hbm_gib"])
def test_progressions_of_extreme_numbers(field, given):
    try:
        space = pj.load_space({"base": BASE, "axes": {field: given}})
    except ConfigError:
        return
    for point in space.axes[0].points:
        assert isinstance(point[0], int) or math.isfinite(point[0])
