"""What a job says of money and energy, and the dated tables behind it."""

import pytest

from projector.config import resources
from projector.config.device_file import load_device
from projector.config.load import load_job
from projector.config.prices import load_prices, load_surrounding_power
from projector.errors import ConfigError

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100"},
}
DEVICES = [load_device(name) for name in resources.shipped("hardware")]


def run_of(**fields):
    return load_job(JOB, {f"run.{name.replace('__', '.')}": v for name, v in fields.items()}).run


def test_nothing_stated_asks_for_no_money():
    assert not run_of(tokens=1e9).cost.is_stated


@pytest.mark.parametrize(
    "fields",
    [
        {"cost__usd_per_gpu_hour": 2},
        {"cost__prices": "listed"},
        {"cost__owned__capex_usd_per_gpu": 30000},
    ],
)
def test_each_price_asks_for_money(fields):
    assert run_of(**fields).cost.is_stated


def test_fleet_is_switched_off():
    cost = run_of(cost__owned=False, cost__usd_per_gpu_hour=2).cost
    assert not cost.owned.enabled


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"cost__usd_per_gpu_hour": -1}, "run.cost.usd_per_gpu_hour"),
        ({"cost__usd_per_gpu_hour": float("nan")}, "run.cost.usd_per_gpu_hour"),
        ({"cost__usd_per_gpu_hour": float("inf")}, "run.cost.usd_per_gpu_hour"),
        ({"cost__usd_per_gpu_hour": "cheap"}, "run.cost.usd_per_gpu_hour"),
        ({"cost__prices": "guessed"}, "run.cost.prices"),
        ({"cost__owned": True}, "run.cost.owned.capex_usd_per_gpu"),
        ({"cost__owned__capex_usd_per_gpu": 0}, "run.cost.owned.capex_usd_per_gpu"),
        (
            {"cost__owned__capex_usd_per_gpu": 3e4, "cost__owned__lifetime_years": 0},
            "run.cost.owned.lifetime_years",
        ),
        (
            {"cost__owned__capex_usd_per_gpu": 3e4, "cost__owned__utilisation": 1.1},
            "run.cost.owned.utilisation",
        ),
        (
            {"cost__owned__capex_usd_per_gpu": 3e4, "cost__usd_per_gpu_hour": 2},
            "run.cost.usd_per_gpu_hour",
        ),
        ({"energy__pue": 0.99}, "run.energy.pue"),
        ({"energy__pue": float("nan")}, "run.energy.pue"),
        ({"energy__usd_per_kwh": -0.1}, "run.energy.usd_per_kwh"),
        ({"energy__node_overhead_w_per_gpu": -1}, "run.energy.node_overhead_w_per_gpu"),
        ({"energy__grid": -1}, "run.energy.grid"),
        ({"energy__grid": float("nan")}, "run.energy.grid"),
        ({"energy__grid": True}, "run.energy.grid"),
        ({"energy__grid": "atlantis"}, "run.energy.grid"),
    ],
)
def test_bad_numbers_are_refused(fields, key):
    with pytest.raises(ConfigError) as caught:
        run_of(**fields)
    assert caught.value.key == key
    assert key in caught.value.message


def test_regions_go_by_several_spellings():
    assert run_of(energy__grid="United-States").energy.grid == "united_states"


def test_unknown_region_names_the_nearest():
    with pytest.raises(ConfigError, match="france"):
        run_of(energy__grid="farnce")


def test_a_number_is_taken_as_grams():
    assert run_of(energy__grid=56).energy.grid == 56.0


@pytest.mark.parametrize("table", ["rental_usd_per_gpu_hour", "capex_usd_per_gpu"])
def test_prices_are_of_shipped_devices(table):
    assert getattr(load_prices(), table).keys() <= {device.name for device in DEVICES}


def test_every_price_has_a_source_and_a_day():
    prices = load_prices()
    dated = [*prices.rental_usd_per_gpu_hour.values(), *prices.capex_usd_per_gpu.values()]
    regions = prices.grid_g_co2_per_kwh.values()
    owned = [getattr(prices.owned, name) for name in type(prices.owned).model_fields]
    cited = {number.source for number in (*dated, *regions, *owned)}
    assert cited == prices.sources.keys()
    assert all(len(text) > 10 for text in prices.sources.values())
    assert all(price.date.year >= 2025 for price in dated)


def test_every_power_has_a_source():
    power = load_surrounding_power()
    tables = (power.other_w_per_gpu, power.busy_share, power.idle_share)
    cited = {number.source for table in tables for number in table.values()}
    assert cited | {power.network_w_per_gpu.source} == power.sources.keys()
    assert {"other"} <= power.busy_share.keys()


def test_every_architecture_has_a_node():
    assert {device.architecture for device in DEVICES} <= (
        load_surrounding_power().other_w_per_gpu.keys()
    )
