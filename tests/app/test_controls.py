"""Controls, overrides and links say the same."""

from pathlib import Path

import pytest

from projector.app.controls import FACTORS, link_of, state_of, tabs_of
from projector.errors import ConfigError

MIXTRAL = Path(__file__).parents[2] / "examples" / "mixtral_8x22b_mi355x.yaml"


@pytest.fixture(scope="module")
def tabs():
    return tabs_of(MIXTRAL)


def again(tab, overrides):
    frame = tab.settle(overrides)
    return tab.collect(frame.choices, frame.places, frame.extras)


STATES = {
    "nothing": {},
    "layout": {"parallelism.tp": 4, "parallelism.pp": 2, "training.schedule": "gpipe"},
    "unusual number": {"training.global_batch_size": 384, "parallelism.pp": 7},
    "chip": {"cluster.device": "h100", "cluster.network.nic_gbit_per_s": 800.0},
    "no control": {"model.num_layers": 40, "parallelism.tp": 2, "training.recompute": "full"},
    "part of a section": {"training.recompute": {"granularity": "full", "method": "uniform"}},
    "false": {"parallelism.fsdp": 2, "parallelism.zero_stage": 3},
}


@pytest.mark.parametrize("overrides", STATES.values(), ids=STATES)
def test_overrides_come_back_from_controls_and_from_a_link(tabs, overrides):
    tab = tabs["train"]
    assert again(tab, overrides) == overrides
    link = link_of("train", train=overrides, serve={}, pin=None)
    assert state_of(link, tabs).get("train", {}) == overrides


def test_a_link_holds_both_tabs_and_what_is_pinned(tabs):
    train, serve = {"parallelism.tp": 2}, {"load.batch": 64, "cluster.device": "b200"}
    link = link_of("serve", train=train, serve=serve, pin={})
    assert state_of(link, tabs) == {"train": train, "serve": serve, "pin": {}}
    assert "tab=serve" in link
    assert "parallelism.tp=2" in link
    assert again(tabs["serve"], serve) == serve


def test_what_the_base_has_is_no_override(tabs):
    assert again(tabs["train"], {"parallelism.pp": 4, "cluster.device": "mi355x"}) == {}
    assert again(tabs["serve"], {"load.context": 4096}) == {}


def test_links_take_short_names_and_refuse_unknown_ones(tabs):
    assert state_of("?train=tp%3D4", tabs)["train"] == {"parallelism.tp": 4}
    with pytest.raises(ConfigError, match="no field 'tq'"):
        state_of("?train=tq%3D4", tabs)
    with pytest.raises(ConfigError, match="quotation"):
        tabs["train"].parse("tp='4")


@pytest.mark.parametrize("name", ["train", "serve"])
def test_a_factor_follows_the_device(tabs, name):
    tab = tabs[name]
    field = "cluster.device.hbm_peak_tb_per_s"
    for device in ("mi355x", "h100"):
        frame = tab.settle({"cluster.device": device})
        place = [control.field for control in tab.controls].index(field)
        assert frame.choices[field][frame.places[place]] == 1.0
        moved = [*frame.places]
        moved[place] = FACTORS.index(2.0)
        found = tab.collect(frame.choices, moved, {})
        read = tab.read({"cluster.device": device})
        base = getattr(read, "deployment", read).cluster.device.hbm_peak_tb_per_s
        assert found[field] == pytest.approx(2.0 * base)
        assert again(tab, found) == found


def test_the_matrix_rate_of_every_type_moves(tabs):
    tab, field = tabs["train"], "cluster.device.matrix_flop_per_clk_per_cu"
    frame = tab.settle({f"{field}.bf16": 8192.0})
    # One type alone is no factor of the device.
    assert frame.extras == {f"{field}.bf16": 8192.0}
    rates = tab.read({}).cluster.device.matrix_flop_per_clk_per_cu
    doubled = {f"{field}.{name}": 2.0 * rate for name, rate in rates.items()}
    frame = tab.settle(doubled)
    assert frame.extras == {}
    assert again(tab, doubled) == doubled


def test_choices_are_legal_by_the_schema(tabs):
    for tab in tabs.values():
        for control in tab.controls:
            assert control.own in control.usual
            for value in control.usual:
                assert control.write(value)
            if control.kind == "factor":
                continue
            for value in control.usual if control.kind == "range" else control.usual[:4]:
                said = ""
                try:
                    tab.read({control.field: value})
                except ConfigError as error:  # of a combination: the value alone is legal
                    said = error.message
                assert "should be" not in said
