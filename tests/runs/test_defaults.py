"""Defaults of a run follow from what is published."""

import math
from statistics import mean, stdev

import pytest
import yaml

from projector.config.resources import data_dir
from projector.config.run import run_default

TABLE = yaml.safe_load((data_dir("hardware") / "failures.yaml").read_text())
GPUS_OF_A_NODE = 8


def rate_per_gpu_hour(entry):
    if "per_node_day" in entry:
        return entry["per_node_day"] / 24 / GPUS_OF_A_NODE
    return entry["failures"] / (entry["days"] * 24 * entry["gpus"])


def logarithms():
    """Return one logarithm for each group of publications."""
    return [
        mean(math.log(rate_per_gpu_hour(entry)) for entry in entries)
        for entries in TABLE["evidence"].values()
    ]


def test_the_default_rate_is_the_mean_of_the_evidence():
    rate = math.exp(mean(logarithms()))
    gpu_share = TABLE["gpu_share"]["value"]
    assert 1 / run_default("gpu_mtbf_hours") == pytest.approx(gpu_share * rate, rel=0.01)
    of_node = (1 - gpu_share) * rate * GPUS_OF_A_NODE
    assert 1 / run_default("node_mtbf_hours") == pytest.approx(of_node, rel=0.01)


def test_the_default_spread_is_that_of_the_evidence():
    assert run_default("rate_log_spread") == pytest.approx(stdev(logarithms()), abs=0.01)


def test_llama_3_fails_every_three_hours():
    rate = rate_per_gpu_hour(TABLE["evidence"]["llama3"][0]) * 16384
    assert 1 / rate == pytest.approx(3.1, abs=0.05)


@pytest.mark.parametrize("name", TABLE["defaults"])
def test_every_default_has_a_source(name):
    assert TABLE["defaults"][name]["source"] in TABLE["sources"]
