"""Devices put together field by field are those that are read as a whole."""

import random

import pytest

from projector.config.device_fields import DeviceFields
from projector.config.device_file import load_device
from projector.config.load import Variants, load_job
from projector.errors import ConfigError

BASE = {
    "model": "llama3.2_1b",
    "cluster": {"device": "h100", "nodes": 1},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
}
FIELDS = {
    "compute_units": [66, 132, {"value": 264, "source": "a guess", "note": "doubled"}],
    "hbm_gib": [40.0, 80.0, -1.0],
    "l2_mib": [25, {"value": 100.0, "source": "hbm"}],
    "matrix_flop_per_clk_per_cu.bf16": [1024, 8192],
    "matrix_flop_per_clk_per_cu.fp8": [4096],
    "scale_up_gb_per_s": [100.0, 900.0],
    "scale_up_peer_gb_per_s": [100.0, 900.0],
    "peak_clock_mhz": [100.0, 3000.0],
    "name": ["mine"],
    "gemm_libraries.own.efficiency": [{"bf16": 0.5}],
    "sustained_clock_mhz": [{"bf16": 1500.0}],
    "network": ["hgx_b200"],
}


@pytest.mark.parametrize("given", [None, "mi300x", {"extends": "b200", "hbm_gib": 100.0}])
def test_random_fields_are_read_as_together(given):
    draw, fields, variants = random.Random(6), DeviceFields(), Variants(load_job(BASE))
    base = load_device("h100") if given is None else given
    together = 0
    for _ in range(60):
        chosen = {each: draw.choice(FIELDS[each]) for each in draw.sample([*FIELDS], 3)}
        found = fields.replaced(base, chosen)
        stated = {f"cluster.device.{field}": value for field, value in chosen.items()}
        if given is not None:
            stated = {"cluster.device": given, **stated}
        try:
            expected = variants.section("cluster", stated).device
        except ConfigError:
            assert found is None
            continue
        together += found is not None
        if found is not None:
            assert type(found) is type(expected)
            assert found.model_dump() == expected.model_dump()
            assert found.model_fields_set == expected.model_fields_set
    assert together > 10


@pytest.mark.parametrize(
    "fields",
    [
        {"architecture": "cdna3", "gemm_efficiency": {"bf16": 0.5}},
        {"hbm_gib": 80.0, "gemm_family": "none such"},
        {"hbm_gib": 80.0, "scale_up_gb_per_s": 1.0},
        {"no_such_field": 1, "hbm_gib": 80.0},
        {"extends": "b200", "hbm_gib": 80.0},
    ],
)
def test_what_does_not_stand_alone_is_read_as_a_whole(fields):
    assert DeviceFields().replaced(load_device("h100"), fields) is None


def test_devices_that_do_not_exist():
    assert DeviceFields().replaced("h1000", {"hbm_gib": 80.0}) is None


def test_values_are_kept_to_a_bound(monkeypatch):
    monkeypatch.setattr("projector.config.device_fields.MOST_PARTS", 1)
    fields = DeviceFields()
    for memory in (40.0, 50.0, 60.0, 40.0):
        assert fields.replaced("h100", {"hbm_gib": memory}).hbm_gib == memory
