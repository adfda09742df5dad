"""Some of the random inputs of ``validation/hostile_input.py``: a result or a refusal, soon."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "validation" / "hostile_input.py"
SLOW = {"sweep", "project", "serve", "command", "hardware", "space"}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("hostile_input", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_inputs(script, monkeypatch):
    monkeypatch.setattr(script, "LIMIT_S", 20.0)  # the first of a kind load and may compile
    refused = results = 0
    for kind in script.KINDS:
        found = script.try_some(kind, range(6 if kind in SLOW else 40))
        assert (found.failed, found.slow) == ([], [])
        refused += found.refused
        results += found.results
    # Both must be common for the inputs to mean something.
    assert min(refused, results) > (refused + results) // 8


def test_an_input_is_the_same_again(script, tmp_path):
    place = script.Place(tmp_path)
    assert [script.one("expression", n, place) for n in range(50)] == [
        script.one("expression", n, place) for n in range(50)
    ]


def test_what_is_no_error_of_a_user_is_found(script, monkeypatch):
    def fails(*_):
        raise RecursionError

    monkeypatch.setattr(script, "parse_yaml", fails)
    found = script.try_some("yaml", range(2))
    assert len(found.failed) == 2
    assert "yaml:0" in found.failed[0]
