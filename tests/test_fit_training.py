"""The recorded fits of training: they know every source, and nothing serves one of them."""

import csv
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from projector.calibrate.runs import Run, Slopes
from projector.config.constants import training_parameters
from projector.lower.cluster_columns import largest_of_normals
from projector.validate import training
from projector.validate.first import entries
from projector.validate.names import source_of

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = yaml.safe_load((ROOT / "hardware" / "left_out.yaml").read_text())["training"]
FIRSTS = entries(ROOT / "validation" / "first_projection.csv", "training_throughput")
NEW = 551
"""First line of the rows that came after the fit; of earlier ones, fine-tuning was read later."""
CONSTANTS = yaml.safe_load((ROOT / "hardware" / "training.yaml").read_text())


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "fit_training", ROOT / "validation" / "fit_training.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_source_of_the_table_was_left_out_once():
    with (ROOT / "validation/data/training_throughput.csv").open(newline="") as file:
        rows = [
            row
            for line, row in enumerate(csv.DictReader(file), 2)
            if line < NEW and line not in FIRSTS and not training.why_not_eligible(row)
        ]
    assert {source_of(row["source"]) for row in rows if not row["doubt"]} <= LEFT_OUT[
        "source"
    ].keys()


@pytest.mark.parametrize("what", ["source", "device"])
def test_every_fit_has_every_parameter(what):
    names = {parameter.name for parameter in training_parameters()}
    # Fields of a job are constants of one source alone, which no fit of all has.
    fits = [{name for name in values if "." not in name} for values in LEFT_OUT[what].values()]
    assert all(fit in (names, set()) for fit in fits)


@pytest.mark.parametrize("what", ["source", "device"])
def test_no_source_and_no_device_holds_a_constant_alone(what):
    for parameter, entry in CONSTANTS["parameters"].items():
        values = [fit[parameter] for fit in LEFT_OUT[what].values() if parameter in fit]
        if "architectures" not in entry:  # a spread, which lengthens a step by it in EP 64
            values = [1.0 + largest_of_normals(64) * value for value in values]
        assert max(values) / min(values) < 1.1, parameter


def test_rows_of_a_class_with_too_few_of_them_are_not_fitted(script):
    parameters = training_parameters()[:2]
    runs = [Run({}, 1.0, "a" if i % 2 else "b", f"{i}") for i in range(12)]
    slopes = np.zeros((12, 2))
    slopes[:10, 0], slopes[10:, 1] = -1.0, -1.0
    ratio = np.array([0.0] * 10 + [0.5] * 2)
    none = np.zeros(12, bool)
    table = script.Table(runs, np.array(list("ab" * 6)), np.array(["x"] * 12), none, none, none)
    linear = Slopes(parameters, np.zeros(2), ratio, slopes)
    assert script.support(table, linear, np.ones(12)) == [(10, ["a", "b"]), (2, ["a", "b"])]
    assert script.solve(table, linear, np.ones(12)) == pytest.approx([0.0, 0.0], abs=1e-9)


def test_recorded_values_are_read_back(script, tmp_path, monkeypatch):
    copy = tmp_path / "training.yaml"
    copy.write_text((ROOT / "hardware" / "training.yaml").read_text())
    monkeypatch.setattr(script, "CONSTANTS", copy)
    values = {each.name: 0.5 + 0.01 * i for i, each in enumerate(training_parameters())}
    script.record_constants(values)
    families = yaml.safe_load(copy.read_text())["families"]
    shares = {name: family["training_gemm_share"] for name, family in families.items()}
    assert shares["hopper"]["8_bit"]["value"] == values["hopper_8_bit"]
    assert shares["cdna2"]["8_bit"]["value"] == values["cdna_16_bit"]
    assert 0.5 < shares["other"]["16_bit"]["value"] < 0.57
    script.record_constants(
        {
            name: CONSTANTS["families"][entry["architectures"][0]]["training_gemm_share"][
                entry["field"].rpartition(".")[2]
            ]["value"]
            for name, entry in CONSTANTS["parameters"].items()
            if "architectures" in entry
        }
    )
    assert yaml.safe_load(copy.read_text()) == CONSTANTS


def test_constants_of_one_source_alone_stay_when_fits_are_recorded(script, tmp_path, monkeypatch):
    copy = tmp_path / "left_out.yaml"
    copy.write_text((ROOT / "hardware" / "left_out.yaml").read_text())
    monkeypatch.setattr(script, "LEFT_OUT", copy)
    monkeypatch.setattr(script, "rounded", lambda linear, point: {"ampere_16_bit": point})
    fitted = SimpleNamespace(linear=None, without={"source": {"a": 0.9}, "device": {"b": 0.8}})
    script.record_left_out(fitted)
    found = yaml.safe_load(copy.read_text())
    by_hand = {
        name: {field: value for field, value in values.items() if "." in field}
        for name, values in LEFT_OUT["source"].items()
    }
    kept = {name: values for name, values in by_hand.items() if values}
    assert len(kept) == 2
    assert found["training"]["source"] == {**kept, "a": {"ampere_16_bit": 0.9}}
    assert found["training"]["device"] == {"b": {"ampere_16_bit": 0.8}}
    assert (
        found["memory"] == yaml.safe_load((ROOT / "hardware/left_out.yaml").read_text())["memory"]
    )
