"""The operations of a job under the roofs of its device."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from projector.cli.main import run
from projector.config.load import load_job
from projector.kernels.device import MATRIX_TYPES
from projector.operations.table import (
    ATTENTION,
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    GEMM,
    MEMORY,
    WEIGHT,
    TableBuilder,
)
from projector.projection.api import project_performance
from projector.report.figures.roofline import (
    NOMINAL_FLOP_PER_BYTE,
    read_roofline,
    roofline_figure,
    row_bytes,
    row_flop,
    write_roofline,
)

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = ("deepseek_v3_h800", "llama3.1_8b_fp8_mi325x", "mixtral_8x22b_mi355x")
BF16, FP8 = MATRIX_TYPES.index("bf16"), MATRIX_TYPES.index("fp8")


def job(name, **overrides):
    return load_job(str(EXAMPLES / f"{name}.yaml"), overrides)


def one_row(**columns):
    table = TableBuilder()
    table.add(np.array([0]), "row", **columns)
    return table.build()


def test_a_gemm_moves_every_operand_once():
    table = one_row(kind=GEMM, m=3, n=5, k=7, batch=2, dtype=BF16, out_bytes=8.0, flop=420.0)
    assert row_bytes(table).tolist() == [2 * ((3 + 5) * 7 * 2.0 + 3 * 5 * 8.0)]
    assert row_flop(table).tolist() == [420.0]
    narrow = one_row(kind=GEMM, m=3, n=5, k=7, dtype=FP8)
    assert row_bytes(narrow).tolist() == [(3 + 5) * 7 * 1.0 + 3 * 5 * 2.0]


def test_an_attention_moves_every_tensor_once():
    extents = {"kind": ATTENTION, "dtype": BF16, "batch": 2, "heads": 8, "key_heads": 4,
               "m": 16, "n": 32, "k": 6, "d_v": 10}  # fmt: skip
    q, k, v, o = 2 * 8 * 16 * 6, 2 * 4 * 32 * 6, 2 * 4 * 32 * 10, 2 * 8 * 16 * 10
    log_sums = 2 * 8 * 16
    forward = 2.0 * (q + k + v + o) + 4.0 * log_sums
    assert row_bytes(one_row(phase=FORWARD, **extents)).tolist() == [forward]
    backward = 2.0 * (q + k + v + 2 * o) + 8.0 * log_sums + 2.0 * (q + k + v)
    assert row_bytes(one_row(phase=BACKWARD, **extents)).tolist() == [backward]
    # Of 32 keys the 16 queries see 16 + 4 - 1.
    windowed = row_bytes(one_row(phase=FORWARD, window=4, **extents))
    assert windowed.tolist() == [forward - 2.0 * (k + v) * (32 - 19) / 32]


def test_memory_bound_rows_and_collectives():
    table = one_row(kind=MEMORY, bytes=100.0, repeats=3.0)
    assert row_bytes(table).tolist() == [300.0]
    assert row_flop(table).tolist() == [300.0 * NOMINAL_FLOP_PER_BYTE]
    assert row_bytes(one_row(kind=COLLECTIVE, bytes=100.0)).tolist() == [0.0]


@pytest.mark.parametrize("name", JOBS)
def test_no_operation_is_above_its_roof(name):
    found = read_roofline(job(name))
    matrix = [each for each in found.operations if each.dtype]
    assert matrix
    for each in matrix:
        assert 0.0 < each.rate <= each.roof * (1.0 + 1e-9), each
        assert each.roof <= found.roofs[each.dtype] * (1.0 + 1e-9)
    assert found.operations[0].time_s == max(each.time_s for each in found.operations)
    assert 0.3 < sum(each.share for each in found.operations) <= 1.0 + 1e-9


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_operations_add_up_to_the_compute_of_the_step(recompute):
    one = job("llama3.1_8b_fp8_mi325x", **{"training.recompute": recompute})
    found, step = read_roofline(one), project_performance(one)
    terms = {0: "compute_gemm", 1: "compute_attention", 2: "compute_other"}
    assert one.parallelism.pp == 1
    for category, term in terms.items():
        seconds = sum(each.time_s for each in found.operations if each.category == category)
        assert seconds == pytest.approx(step.breakdown_s[term], rel=1e-9)
        share = sum(each.share for each in found.operations if each.category == category)
        assert share == pytest.approx(step.breakdown_s[term] / step.iteration_time_s, rel=1e-9)
    # Whatever the model needs, and what is done again; quantising and norms need none.
    flop = sum(each.flop for each in found.operations if each.dtype)
    assert flop * one.cluster.gpus == pytest.approx(step.model_flop + step.recompute_flop, rel=0.01)


def test_phases_are_named():
    names = {(each.name, each.phase) for each in read_roofline(job(JOBS[1])).operations}
    assert {("mlp.fc1", "forward"), ("mlp.fc1", "input gradient"), ("mlp.fc1", "weight gradient"),
            ("attention.core", "backward"), ("mlp.norm", "backward")} <= names  # fmt: skip
    assert WEIGHT == 2


@pytest.mark.rotated
@pytest.mark.parametrize("name", JOBS[1:])
def test_every_job_is_drawn_without_a_warning(name, tmp_path):
    write_roofline(job(name), tmp_path / "a.svg")
    assert ET.fromstring((tmp_path / "a.svg").read_bytes()).tag.endswith("svg")


def test_numbers_of_the_list_stand_in_the_figure():
    found = read_roofline(job(JOBS[0]))
    whole, near, side = roofline_figure(found).axes
    listed = [each.get_text() for each in side.texts]
    near_numbers = [each.get_text() for each in near.texts if each.get_text().isdigit()]
    both = set(near_numbers) | {
        number for each in whole.texts for number in each.get_text().split(", ")
    }
    for place, each in enumerate(found.operations[:16]):
        assert str(place + 1) in both
        assert any(each.name in text.replace("\xa0", " ") for text in listed)
    assert len(near_numbers) == len(set(near_numbers))


@pytest.mark.thorough
def test_operations_may_all_be_of_one_kind():
    found = read_roofline(job(JOBS[1]))
    for keep in (lambda each: each.dtype, lambda each: not each.dtype, lambda each: False):
        some = SimpleNamespace(
            title=found.title, roofs=found.roofs, bytes_per_s=found.bytes_per_s,
            operations=tuple(each for each in found.operations if keep(each))[:1],
        )  # fmt: skip
        roofline_figure(some).draw_without_rendering()


def test_the_command_draws(tmp_path, capsys):
    config = str(EXAMPLES / f"{JOBS[1]}.yaml")
    path = tmp_path / "roofline.png"
    call = ["performance", "--config", config, "--json", "--plot"]
    assert run([*call, f"roofline={path}"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["iteration_time_ms"] > 0.0
    assert captured.err.endswith(f"wrote {path}\n")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert run([*call, f"pareto={path}"]) == 2
    assert "roofline=FIGURE" in capsys.readouterr().err
