"""Twice or half of every rate of every device moves some projected time, the right way."""

import pytest

import projector as pj
from projector.config import resources
from projector.config.device_file import load_device

DEVICES = resources.shipped("hardware")

SENSIBLE = 0.03
"""Least share of the time of its probe that twice or half of a rate moves."""

EXCEPTIONS = {
    "vector_tflops": "softmax of shipped kernels is bound by exponentials, copies by memory",
    "dies": "L2 alone hardly shows: units take in no more, and memory or its cache is behind it",
    "l2_tb_per_s x 2": "units of Blackwell and CDNA then take in no more themselves",
    "amd l2_tb_per_s": "units of CDNA together take in less than L2 has (21.6 to 31 bytes a clock)",
}
"""Rates, of a vendor or of all, that may move nothing, and why."""

LARGE = (8192, 8192, 8192)
SHALLOW = (8192, 8192, 256)
THIN = (8, 16384, 16384)

SMALL_TILE = {"amd": "64x32", "nvidia": "64x64"}
"""Tiles that load so much that L2 bounds them where it can."""


def probes(device):
    """Yield (rate, field, what to time) of a device."""

    def gemm(shape, dtype="bf16", tile=None):
        return lambda given: pj.gemm_time(*shape, device=given, dtype=dtype, tile=tile)

    def attention(given):
        return pj.attention_time(4, 32, 4096, head_dim=64, device=given)

    def collective(given):
        return pj.collective_time("all_reduce", 1 << 30, 4, device=given)

    for kind in device.matrix_flop_per_clk_per_cu:
        yield f"matrix_flop_per_clk_per_cu.{kind}", [gemm(LARGE, kind)]
    yield "compute_units", [gemm(LARGE), attention]
    yield "peak_clock_mhz", [gemm(LARGE), attention]
    yield "dies", [gemm(LARGE), gemm(SHALLOW)]
    yield "hbm_peak_tb_per_s", [gemm(THIN)]
    yield "l2_tb_per_s", [gemm(LARGE, tile=SMALL_TILE[device.vendor])]
    yield "transcendental_per_clk_per_cu", [attention]
    yield "vector_tflops", [attention]
    yield "scale_up_gb_per_s", [collective]


def varied(name, device, field, factor):
    head, _, kind = field.partition(".")
    value = getattr(device, head)
    value = value[kind] if kind else value
    value = type(value)(value * factor)
    given = {"extends": name, "name": "varied", head: {kind: value} if kind else value}
    if head == "scale_up_gb_per_s":
        given["scale_up_peer_gb_per_s"] = device.scale_up_peer_gb_per_s * factor
    return given


@pytest.mark.parametrize("name", DEVICES)
def test_every_rate_moves_some_time(name):
    device, wrong = load_device(name), []
    for field, timed in probes(device):
        for factor in (0.5, 2.0):
            if field == "dies" and device.dies * factor < 1.0:
                continue
            other = varied(name, device, field, factor)
            shares = [float(time(other)) / float(time(name)) for time in timed]
            moved = max(shares) - 1.0 if factor < 1.0 else 1.0 - min(shares)
            against = 1.0 - min(shares) if factor < 1.0 else max(shares) - 1.0
            names = {field, f"{device.vendor} {field}", f"{field} x {factor:g}"}
            excepted = bool(names & EXCEPTIONS.keys())
            if (moved < SENSIBLE and not excepted) or against > SENSIBLE:
                wrong.append((field, factor, shares))
    assert not wrong
