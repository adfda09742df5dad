"""The shipped first-order devices: complete, sourced, and apart from those with compute units."""

import pytest

from projector.config import resources
from projector.config.device_file import FIRST_ORDER_DEVICES, is_first_order, load_device
from projector.config.first_order import first_order_device
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError

NAMES = resources.shipped(FIRST_ORDER_DEVICES)
ALIASES = read_yaml(resources.data_dir(FIRST_ORDER_DEVICES) / "aliases.yaml")


def test_every_expected_device_ships():
    assert NAMES == ["tpu_v5p", "tpu_v6e", "trainium2", "trainium2_ultraserver"]
    assert not {*NAMES, *ALIASES} & {*resources.index("hardware")}


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name):
    device = first_order_device(name)
    values = device.model_dump(exclude={"sources", "kind", "name", "vendor"}, exclude_none=True)
    peaks = values.pop("peak_tflops")
    for field in [*values, *(f"peak_tflops.{kind}" for kind in peaks)]:
        source = device.sources[field]
        assert source.startswith(("Google Cloud", "AWS Neuron", "How to Scale")), field
    assert peaks["bf16"] <= peaks.get("fp8", peaks["bf16"])
    assert device.scale_out_gb_per_s < device.scale_up_gb_per_s


@pytest.mark.parametrize("name", [*NAMES, *ALIASES])
def test_tile_models_refuse_them(name):
    assert is_first_order(name, "device")
    for given in (name, {"extends": name, "memory_gib": 10.0}):
        with pytest.raises(ConfigError, match="--fidelity first-order") as caught:
            load_device(given)
        assert caught.value.allowed == "--fidelity first-order"


def test_files_of_a_user(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("extends: tpu_v6e\nname: wider\nmemory_gib: {value: 64, source: guess}\n")
    wider = tmp_path / "wider.yaml"
    wider.write_text("extends: own.yaml\nmemory_tb_per_s: 3.0\n")
    device = first_order_device(wider)
    assert (device.memory_gib, device.memory_tb_per_s, device.name) == (64.0, 3.0, "wider")
    assert device.sources["memory_gib"] == "guess"
    with pytest.raises(ConfigError, match="--fidelity first-order"):
        load_device(str(wider))
    circle = tmp_path / "circle.yaml"
    circle.write_text("kind: first_order\nextends: circle.yaml\n")
    with pytest.raises(ConfigError, match="goes in a circle"):
        first_order_device(circle)


def test_an_unknown_name_lists_both_kinds():
    with pytest.raises(ConfigError, match=r"unknown GPU 'tpu_v9'.*first-order devices: tpu_v5p"):
        first_order_device("tpu_v9")


def test_types_without_a_peak_are_named():
    device = first_order_device("tpu_v6e")
    assert device.peak_flop_per_s("fp16") == device.peak_flop_per_s("bf16")
    with pytest.raises(ConfigError, match="has no peak of fp8; it has bf16, int8"):
        device.peak_flop_per_s("fp8")
