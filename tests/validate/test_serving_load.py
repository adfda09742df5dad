"""Rows under a load are read by the rules that the script states."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    path = ROOT / "validation" / "serving_load.py"
    spec = importlib.util.spec_from_file_location("serving_load", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases(script):
    read = [(row, script.read(row)) for row in script.table()]
    return [(row, case) for row, case in read if case is not None]


def test_every_row_with_lengths_is_read(cases):
    engines = [case.engine for _, case in cases]
    assert engines.count("TensorRT-LLM") == 80
    assert engines.count("vLLM, offline") == 30
    assert engines.count("vLLM, online") == 9


def test_settings_of_engines(cases):
    for row, case in cases:
        assert case.deployment.gpus == int(row["n_gpus"])
        if case.engine == "TensorRT-LLM":
            assert case.scheduler.admission == "whole_sequence"
            assert case.load.requests >= 1000
        elif case.engine == "vLLM, online":
            assert case.load.concurrency == int(row["batch_or_concurrency"])
        else:
            assert case.load.requests in (1000, 1500, 2000, 3200)


def test_one_row_is_projected(script, cases):
    row, case = next(pair for pair in cases if pair[1].quantity == "tpot_ms")
    result = script.simulate_load(case.deployment, case.load, case.scheduler)
    assert script.value_of(case.quantity, result) == pytest.approx(float(row["value"]), rel=0.5)
