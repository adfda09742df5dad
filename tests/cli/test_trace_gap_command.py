"""``projector trace gap``: a traced run and a counted one, put together."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import projector as pj
from projector.cli.main import run
from projector.config.device_file import load_device
from synthetic import Host, Kernel, collective, kineto, step, write

M, N, K = 4096, 4096, 4096
FLOP = 2.0 * M * N * K
ALONE_NS, BESIDE_NS = 400_000, 500_000
PERFORMED, BUSY = 1.25, 0.6
DEVICE = load_device("mi300x")
PROPERTIES = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}


@pytest.fixture
def traced(tmp_path):
    """Two runs of a product, the second beside communication, with the operators around them."""
    lines = [step(4, 0, 5_000_000)]
    for number, (start, length) in enumerate(((100_000, ALONE_NS), (2_000_000, BESIDE_NS))):
        launch = number * 1000 + 1000
        name = f"Cijk_Ailk_Bljk_{number * 0}"
        kernel = Kernel(name=name, start=start, end=start + length, launch=launch + 50, rank=0)
        between = replace(kernel, name="add", start=start + length, end=start + length + 1000,
                          launch=launch + 500)  # fmt: skip
        shapes = {"Input Dims": [[M, K], [K, N]], "Input type": ["c10::BFloat16"] * 2}
        lines += [
            Host(name="aten::mm", start=launch, end=launch + 100, args=shapes),
            Host(name="aten::add", start=launch + 450, end=launch + 600),
            kernel,
            between,
        ]
    lines.append(collective(2_000_000, 2_000_000 + BESIDE_NS, launch=4000))
    return write(tmp_path / "trace.json", kineto(*lines, **PROPERTIES))


@pytest.fixture
def counted(tmp_path):
    """The same kernels, serialised: FLOP and cycles as matrix cores that are busy BUSY of them."""
    performed = PERFORMED * FLOP
    rate = DEVICE.peak_tflops("bf16") * 1e12 / (DEVICE.peak_clock_mhz * 1e6)
    cycles = performed / rate / BUSY
    busy = BUSY * cycles * DEVICE.compute_units * 4
    counters = {
        "SQ_INSTS_VALU_MFMA_MOPS_BF16": performed / 512,
        "GRBM_GUI_ACTIVE": cycles * DEVICE.dies,
        "SQ_VALU_MFMA_BUSY_CYCLES": busy,
    }
    lines = ["Dispatch_Id,Agent_Id,Grid_Size,Kernel_Name,Counter_Name,Counter_Value"]
    for dispatch, name in enumerate(("Cijk_Ailk_Bljk_0", "add", "Cijk_Ailk_Bljk_0", "add"), 1):
        values = counters if name != "add" else dict.fromkeys(counters, 0.0)
        lines += [f"{dispatch},0,1024,{name},{key},{value!r}" for key, value in values.items()]
    path = tmp_path / "1_counter_collection.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_five_factors(traced, counted, capsys):
    assert run(["trace", "gap", str(traced), "--counters", str(counted), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (product,) = found["operations"]
    assert found["device"] == DEVICE.name
    assert product["flop"] == 2 * FLOP
    assert product["flop_from"] == "extents"
    theory_ns = 2 * FLOP / DEVICE.peak_tflops("bf16") / 1e3
    assert product["theory_ns"] == pytest.approx(theory_ns)
    assert product["actual_ns"] == ALONE_NS + BESIDE_NS
    factors = product["factors"]
    overlap = BESIDE_NS / ALONE_NS
    assert factors == pytest.approx(
        {
            "instruction": PERFORMED,
            "utilisation": 1.0 / BUSY,
            "overlap": overlap,
            "frequency": product["ratio"] / PERFORMED * BUSY / overlap,
            "rest": 1.0,
        },
        rel=1e-6,
    )
    assert math.prod(factors.values()) == pytest.approx(product["ratio"], rel=1e-12)
    assert product["missing"] == []
    assert found["counters"]["share"] == pytest.approx(4 / 5), "communication was not counted"


def test_from_python(traced, counted):
    analysis = pj.load_trace(traced, counters=[counted])
    gap = pj.trace_gap(analysis, device="mi325x")
    assert gap.device != DEVICE.name
    assert gap.rows[0]["operation"] == "aten::mm"


def test_without_anything_else(traced, capsys):
    assert run(["trace", "gap", str(traced)]) == 0
    shown = capsys.readouterr()
    assert "not known, and so part of the rest" in shown.out


@pytest.mark.parametrize(
    ("option", "value"), [("--device", "mi3000"), ("--dtype", "bf17"), ("--config", "none.yaml")]
)
def test_bad_input(traced, capsys, option, value):
    assert run(["trace", "gap", str(traced), option, value, "--json"]) == 2
    assert "error" in json.loads(capsys.readouterr().out)


def test_convolutions_have_a_theory(capsys):
    trace = Path(__file__).parents[1] / "trace" / "data" / "mi300x_resnet_ddp8.json.gz"
    assert run(["trace", "gap", str(trace), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["operations"]
    # Transposes around convolutions are no rows.
    assert {row["type"] for row in rows} == {"gemm"}
    peak = DEVICE.peak_tflops("bf16") * 1e12
    for row in rows:
        assert row["flop_from"] == "extents"
        assert row["theory_ns"] == pytest.approx(row["flop"] / peak * 1e9)
    forward = sum(row["flop"] for row in rows if row["phase"] == "forward")
    # ResNet-18 on ten images, its last layer included.
    assert forward == pytest.approx(2 * 10 * 1.814e9, rel=1e-3)
