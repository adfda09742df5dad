from datetime import date

import pytest

from projector.errors import ConfigError
from projector.planning.question import (
    days_number,
    days_until,
    number,
    positive,
    read_gpus,
    read_kinds,
    read_prices,
    read_tokens,
    usd,
)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (1e12, 1e12),
        ("1e12", 1e12),
        ("1T", 1e12),
        ("15.6T", 15.6e12),
        ("300B", 3e11),
        ("300 b", 3e11),
        ("1_000_000", 1e6),
        ("1,000,000", 1e6),
        ("250M", 2.5e8),
        (7, 7.0),
    ],
)
def test_tokens_are_read_as_people_write_them(given, tokens):
    assert read_tokens(given) == pytest.approx(tokens, rel=1e-12)


@pytest.mark.parametrize(
    "given",
    [0, -1, "-3", "many", "", "1TB", float("nan"), "1e999", True, "1,0005", "9" * 20_000 + "x"],
)
def test_what_are_no_tokens(given):
    with pytest.raises(ConfigError, match="tokens is a number above 0") as caught:
        read_tokens(given)
    assert caught.value.key == "tokens"


def test_a_date_is_days_ahead():
    today = date(2026, 11, 22)
    assert days_until("2026-12-22", today) == 30.0
    assert days_until(date(2027, 11, 22), today) == 365.0


@pytest.mark.parametrize("given", ["2026-11-22", "2020-01-01"])
def test_a_deadline_lies_ahead(given):
    with pytest.raises(ConfigError, match="does not lie ahead: today is 2026-11-22"):
        days_until(given, date(2026, 11, 22))


@pytest.mark.parametrize("given", ["tomorrow", "2026-13-01", 30])
def test_a_deadline_is_a_date(given):
    with pytest.raises(ConfigError, match="deadline is a date"):
        days_until(given, date(2026, 11, 22))


def test_numbers_above_0():
    assert positive(None, "budget_usd") is None
    assert positive(3, "budget_usd") == 3.0
    assert positive("100M", "budget_usd") == 1e8
    with pytest.raises(ConfigError, match="deadline_days is a number above 0"):
        positive("60M", "deadline_days")
    for wrong in (0, -1.0, float("inf"), "three", True):
        with pytest.raises(ConfigError, match="budget_usd is a number above 0"):
            positive(wrong, "budget_usd")


def test_kinds_have_a_device_and_maybe_a_network():
    plain, chosen = read_kinds(["h100", "h100@p5_efa"])
    assert (plain.device, plain.network, plain.label) == ("h100", None, "h100")
    assert chosen.overrides == {"cluster.device": "h100", "cluster.network": "p5_efa"}
    assert read_kinds("mi300x")[0].overrides == {"cluster.device": "mi300x"}
    with pytest.raises(ConfigError, match="given twice"):
        read_kinds(["h100", "h100"])
    with pytest.raises(ConfigError, match="at least one"):
        read_kinds([])
    for half in ("h100@", "@p5_efa", "@"):
        with pytest.raises(ConfigError, match="NAME@NETWORK"):
            read_kinds([half])
    assert read_kinds([f"h100@{'x' * 5000}"])[0].network == "x" * 5000  # no name of a file


def test_sizes_are_whole_and_rise():
    assert read_gpus(None) == ()
    assert read_gpus(64) == (64,)
    assert read_gpus([64, 8, 64]) == (8, 64)
    for wrong in (0, -8, 8.0, "8", True):
        with pytest.raises(ConfigError, match="gpus is a whole number"):
            read_gpus(wrong)


def test_prices_are_for_all_or_by_name():
    kinds = read_kinds(["h100", "b200"])
    assert read_prices(None, kinds) == {}
    assert read_prices(2.0, kinds) == {"h100": 2.0, "b200": 2.0}
    assert read_prices({"b200": 5}, kinds) == {"b200": 5.0}
    for wrong in (0.0, -2.0, {"h100": -1.0}, {"h100": None}):
        with pytest.raises(ConfigError, match="usd_per_gpu_hour"):
            read_prices(wrong, kinds)
    with pytest.raises(ConfigError, match=r"no device of this plan; its devices: h100, b200"):
        read_prices({"h200": 3.0}, kinds)


def test_numbers_are_written_short():
    assert [number(1e12), number(15.6e12), number(3e11), number(274158.4)] == [
        "1 T", "15.6 T", "300 B", "274,158",
    ]  # fmt: skip
    assert [usd(1.5e6), usd(791000.0)] == ["$1.50 M", "$791,000"]
    assert [days_number(v) for v in (1046.24, 22.34, 3.254, 0.1234)] == [
        "1,046.2", "22.3", "3.25", "0.123",
    ]  # fmt: skip
