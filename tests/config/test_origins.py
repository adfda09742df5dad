import pytest

from projector.config.device_file import ASSUMED, OWN, load_device, origins_of, owner_of


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("ROCm documentation (38 per XCD)", OWN),
        (
            "taken from AMD Instinct MI250X (one GCD): Fit over tables",
            "AMD Instinct MI250X (one GCD)",
        ),
        ("ml-engineering README.md (taken from H100: identical chip)", "H100"),
        ("cdna3 family: Fit over tables", "cdna3 family"),
        ("Assumed, not verified (as on NVIDIA)", ASSUMED),
        ("taken from NVIDIA B200 SXM: Assumed, not verified", ASSUMED),
    ],
)
def test_a_source_says_whose_number_it_is(text, owner):
    assert owner_of(text) == owner


def test_a_sibling_has_its_own_units_and_the_rest_of_the_other():
    origins = origins_of(load_device("mi308x"))
    assert {"compute_units", "l2_mib", "sustained_clock_mhz.bf16"} <= {*origins.fields[OWN]}
    assert "hbm_peak_tb_per_s" in origins.borrowed["AMD Instinct MI300X"]
    assert "cdna3 family" in origins.borrowed
    assert "hbm_latency_us" in origins.assumed
    assert OWN not in origins.borrowed
    assert ASSUMED not in origins.borrowed


def test_every_source_is_counted_once():
    device = load_device("b300")
    counted = [field for fields in origins_of(device).fields.values() for field in fields]
    assert sorted(counted) == sorted(device.sources)


def test_what_a_user_changes_is_the_user_s():
    device = load_device({"extends": "b200", "name": "ours", "tdp_w": 900})
    fields = [field for owned in origins_of(device).fields.values() for field in owned]
    assert "tdp_w" not in fields
    assert "l2_mib" in origins_of(device).borrowed["NVIDIA B200 SXM"]
