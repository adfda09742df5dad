"""Spaces of jobs: axes, expressions, numbering."""

import itertools

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.config.space import Expression
from projector.errors import ConfigError
from projector.sweeps.table import load_space
from sweeps.grid import excluded

BASE = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 4},
}


def space(axes, constraints=(), base=None):
    return load_space({"base": base or BASE, "axes": axes, "constraints": list(constraints)})


def values(axis):
    found = space({"training.seq_length": axis})
    return [found.overrides(i)["training.seq_length"] for i in range(found.size)]


def test_the_last_axis_is_the_fastest():
    found = space({"parallelism.tp": [1, 2, 4], "parallelism.pp": [1, 2]})
    points = [tuple(found.overrides(index).values()) for index in range(found.size)]
    assert points == list(itertools.product([1, 2, 4], [1, 2]))
    assert found.fields == ("parallelism.tp", "parallelism.pp")
    with pytest.raises(IndexError):
        found.overrides(6)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_points_are_all_combinations_in_order(lengths):
    fields = ["parallelism.tp", "parallelism.pp", "cluster.nodes", "training.seq_length"]
    axes = {f: list(range(1, n + 1)) for f, n in zip(fields, lengths, strict=False)}
    found = space(axes)
    points = [tuple(found.overrides(index).values()) for index in range(found.size)]
    assert points == list(itertools.product(*axes.values()))


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ([1024, 2048], [1024, 2048]),
        ({"values": [512]}, [512]),
        ({"range": [1024, 3000, 1024]}, [1024, 2048]),
        ({"range": [1, 3]}, [1, 2, 3]),
        ({"powers_of_two": [3, 33]}, [4, 8, 16, 32]),
        ({"scale": [0.5, 1, 2]}, [2048, 4096, 8192]),
    ],
)
def test_values_of_an_axis(axis, expected):
    assert values(axis) == expected


def test_logarithmic_values_meet_their_ends():
    found = space({"cluster.device.hbm_peak_tb_per_s": {"log": [1.0, 8.0, 4]}})
    points = [found.overrides(i)["cluster.device.hbm_peak_tb_per_s"] for i in range(4)]
    assert (points[0], points[-1]) == (1.0, 8.0)
    assert points[1:3] == pytest.approx([2.0, 4.0])


def test_a_device_goes_before_its_fields():
    axes = {"cluster.device.hbm_gib": [80.0, 141.0], "cluster.device": ["a100", "h100"]}
    found = space(axes)
    assert list(found.overrides(3)) == ["cluster.device", "cluster.device.hbm_gib"]
    job = load_job(found.base, found.overrides(3))
    assert job.cluster.device.hbm_gib == 141.0
    assert "H100" in job.cluster.device.name


def test_tied_and_computed_fields():
    found = space(
        {
            "parallelism.tp, parallelism.sequence_parallel": [[1, False], [8, True]],
            "cluster.nodes": [4, 8],
            "training.global_batch_size": {"expression": "64 * cluster.nodes"},
        }
    )
    assert found.size == 4
    assert found.overrides(3) == {
        "parallelism.tp": 8,
        "parallelism.sequence_parallel": True,
        "cluster.nodes": 8,
        "training.global_batch_size": 512,
    }


def test_constraints_read_points_base_and_what_follows_from_them():
    found = space(
        {"parallelism.tp": [1, 2, 8], "parallelism.pp": [1, 4]},
        ["tp * pp <= 8", "dp >= 2 and microbatches % 1 == 0", "model.num_layers % pp == 0"],
    )
    kept = [i for i in range(found.size) if excluded(found, found.overrides(i)) is None]
    assert [tuple(found.overrides(i).values()) for i in kept] == [(1, 1), (1, 4), (2, 1), (2, 4),
                                                                  (8, 1)]  # fmt: skip
    assert excluded(found, {"parallelism.tp": 8, "parallelism.pp": 4}) == "tp * pp <= 8"


def test_constraints_see_the_fields_of_another_model():
    found = space({"model": ["llama3.1_8b", "llama3.1_70b"]}, ["model.num_layers > 40"])
    assert excluded(found, found.overrides(0)) == "model.num_layers > 40"
    assert excluded(found, found.overrides(1)) is None


def test_short_names_are_those_of_fields_not_of_their_sources():
    found = space({"cluster.network.nic_gbit_per_s": [200.0, 400.0]}, ["nic_gbit_per_s > 300"])
    assert excluded(found, found.overrides(0)) == "nic_gbit_per_s > 300"
    assert excluded(found, found.overrides(1)) is None


def test_files_and_equal_spaces(tmp_path):
    axes = {"parallelism.tp": {"powers_of_two": [1, 4]}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(BASE))
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump({"base": "job.yaml", "axes": axes}))
    written, same = load_space(path), space({"parallelism.tp": [1, 2, 4]})
    assert written.digest == same.digest == load_space(written).digest
    assert written.base == load_job(BASE)
    assert space({"parallelism.tp": [1, 2]}).digest != same.digest
    assert "3 points: parallelism.tp (3)" in repr(written)


@pytest.mark.parametrize(
    ("data", "key", "match"),
    [
        ([], "space", "a file or a mapping"),
        ({"axes": {}}, "base", "needs a base"),
        ({"base": BASE, "axis": {}}, "axis", "base, axes, best_of, constraints"),
        ({"base": BASE}, "axes", "mapping of dotted field"),
        ({"base": BASE, "axes": {"parallelism.tpp": [1]}}, "axes.parallelism.tpp", "'parallelism"),
        ({"base": BASE, "axes": {"parallelism.tp": []}}, "axes.parallelism.tp", "no values"),
        ({"base": BASE, "axes": {"parallelism.tp": 4}}, "axes.parallelism.tp", "is a list"),
        ({"base": BASE, "axes": {"parallelism.tp": [1, 1]}}, "axes.parallelism.tp", "twice"),
        ({"base": BASE, "axes": {"parallelism.tp": {"rang": [1]}}}, "axes.parallelism.tp", "range"),
        (
            {"base": BASE, "axes": {"parallelism.tp": {"range": [4, 1, 1]}}},
            "axes.parallelism.tp",
            "rising",
        ),
        (
            {"base": BASE, "axes": {"parallelism.tp": {"log": [0, 1, 3]}}},
            "axes.parallelism.tp",
            "above 0",
        ),
        (
            {"base": BASE, "axes": {"training.schedule": {"scale": [2]}}},
            "axes.training.schedule",
            "a number",
        ),
        (
            {"base": BASE, "axes": {"cluster.device.compute_unit": {"scale": [2]}}},
            "axes.cluster.device.compute_unit",
            "did you mean 'cluster.device.compute_units'",
        ),
        (
            {"base": BASE, "axes": {"training.adapter.rank": [8, 16]}},
            "axes.training.adapter.rank",
            r"write training.adapter: \{rank: ...\} in the base, or make training.adapter an axis",
        ),
        (
            {"base": BASE, "axes": {"training.adapter.rnk": [8, 16]}},
            "axes.training.adapter.rnk",
            "did you mean 'training.adapter'",
        ),
        (
            {"base": BASE, "axes": {"parallelism.tp": {"scale": 2}}},
            "axes.parallelism.tp.scale",
            "is a list",
        ),
        (
            {"base": BASE, "axes": {"parallelism.tp, parallelism.pp": [[1]]}},
            "axes.parallelism.tp, parallelism.pp",
            "ties 2 fields",
        ),
        (
            {"base": BASE, "axes": {"parallelism.tp": [1], "parallelism.tp ": [2]}},
            "axes.parallelism.tp",
            "two axes",
        ),
        (
            {"base": BASE, "axes": {"parallelism.tp": [1]}, "constraints": "tp < 2"},
            "constraints",
            "is a list",
        ),
        (
            {"base": BASE, "axes": {"parallelism.tp": [1]}, "constraints": ["tpp < 2"]},
            "constraints[0]",
            "no such field",
        ),
    ],
)
def test_what_is_no_space(data, key, match):
    with pytest.raises(ConfigError, match=match) as caught:
        load_space(data)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "text",
    [
        "", "tp <", "__import__('os')", "tp.__class__", "[x for x in (1, 2)]", "lambda: 1",
        "open('a')", "tp ** tp", "2 ** 9 ** 9", "f'{tp}'", "tp if", "min(tp, key=abs)",
        "(" * 400 + "tp" + ")" * 400, 5, "tp := 3", "x[0]",
    ],
)  # fmt: skip
def test_expressions_say_only_what_is_known(text):
    with pytest.raises(ConfigError):
        space({"parallelism.tp": [1]}, [text])


def test_an_expression_that_cannot_be_computed_names_its_values():
    expression = Expression("8 // parallelism.tp", "constraints[0]")
    assert expression({"parallelism.tp": 3}) == 2
    with pytest.raises(ConfigError, match=r"parallelism\.tp = 0"):
        expression({"parallelism.tp": 0})


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (
            {
                "training.global_batch_size": {"expression": "8 * micro_batch_size"},
                "training.micro_batch_size": {"expression": "nodes"},
            },
            "computed after it",
        ),
        ({"cluster.nodes": {"expression": "gpus // 8"}}, "computed after it"),
        ({"cluster.nodes": {"powers_of_two": [1, float("inf")]}}, "takes numbers"),
        ({"cluster.nodes": {"range": [1, float("nan")]}}, "takes numbers"),
        ({"cluster.nodes": {"log": [1, 10**400, 3]}}, "takes numbers"),
        ({"cluster.nodes": {"scale": [float("inf")]}}, "takes numbers"),
    ],
)
def test_values_that_nothing_can_follow_from(axes, told):
    base = {
        "model": "llama3.2_1b",
        "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
        "cluster": {"device": "h100", "nodes": 1},
    }
    with pytest.raises(ConfigError, match=told):
        load_space({"base": base, "axes": axes})
    twice = {"training.micro_batch_size": {"expression": "nodes"}}
    with pytest.raises(ConfigError, match="is on two axes"):
        load_space({"base": base, "axes": {**twice, "cluster.nodes": [1]}, "best_of": twice})
