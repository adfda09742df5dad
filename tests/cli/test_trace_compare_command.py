"""``projector trace compare``."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from projector.cli.main import run
from synthetic import Host, collective, compute, kineto, step, write

DATA = Path(__file__).parents[1] / "trace" / "data"
A100 = DATA / "a100_ddp2.json.gz"
JOB = str(Path(__file__).parents[2] / "examples" / "llama3.1_8b_fp8_mi325x.yaml")


@pytest.fixture
def compare(capsys):
    def call(*arguments):
        code = run(["trace", "compare", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def two(tmp_path):
    """One step twice; the second time one kernel takes twice as long and another is new."""
    paths = []
    for name, length in (("first", 2000), ("second", 4000)):
        lines = [
            step(3, 0, 10_000),
            compute(1000, 1000 + length, launch=500, name="gemm_a"),
            collective(6000, 7000, launch=600),
        ]
        if name == "second":
            lines.append(compute(8000, 9000, launch=700, name="gemm_b"))
        paths.append(write(tmp_path / f"{name}.json", kineto(*lines)))
    return paths


def test_two_runs(compare, two, tmp_path):
    code, out, _ = compare(*two, "--json", "--parquet", tmp_path / "rows.parquet")
    assert code == 0
    found = json.loads(out)
    first = found["operations"][0]
    assert first["operation"] == "gemm_a"
    assert (first["first_ms"], first["second_ms"]) == (0.002, 0.004)
    assert first["factors"]["rest"] == pytest.approx(2.0)
    assert [each["operation"] for each in found["second_only"]] == ["gemm_b"]
    assert found["first_only"] == []
    assert found["matched_share"] == pytest.approx({"first": 1.0, "second": 5.0 / 6.0})
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == len(found["operations"])


def test_a_run_beside_itself(compare):
    code, out, _ = compare(A100, A100, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["matched_share"] == {"first": 1.0, "second": 1.0}
    assert {each["difference_ms"] for each in found["operations"]} == {0.0}


def test_a_run_of_another_job_is_compared_all_the_same(compare):
    code, out, _ = compare("--config", JOB, A100, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["matched_share"]["measured"] < 0.05
    assert any("extents" in text for text in found["warnings"])
    measured = sum(each["measured_ms"] for each in found["operations"])
    measured += sum(each["time_ms"] for each in found["measured_only"])
    assert measured == pytest.approx(55.06, abs=0.01)
    step_ms = found["step"].pop("total")["measured_ms"]
    assert sum(each["measured_ms"] for each in found["step"].values()) == pytest.approx(step_ms)


def test_the_report(compare, two):
    code, out, err = compare(*two)
    assert (code, err) == (0, "")
    assert "gemm_a" in out
    assert "Only second" in out


def test_one_trace_needs_a_job(compare, two):
    code, out, _ = compare(two[0], "--json")
    assert code == 2
    assert json.loads(out)["key"] == "trace"


def test_a_field_of_a_job_is_no_name_of_a_run(compare, two):
    code, out, err = compare(*two, "parallelism.tp=2")
    assert (code, out) == (2, "")
    assert "2 of parallelism.tp=2 does not exist; fields of a job need --config" in err
    code, _, _ = compare(f"a={two[0]}", f"b={two[1].parent / 'sec*'}", "--json")
    assert code == 0


def test_a_job_needs_a_trace(compare):
    code, out, _ = compare("--config", JOB, "training.micro_batch_size=1", "--json")
    assert code == 2
    assert json.loads(out)["key"] == "trace"


def test_a_run_on_a_cpu_beside_a_gpu_is_said_first(compare, tmp_path):
    lines = [step(3, 0, 10_000), Host(name="aten::mm", start=1000, end=4000)]
    path = write(tmp_path / "cpu.json", kineto(*lines))
    code, out, _ = compare("--config", JOB, path, "--json")
    assert code == 0
    first = json.loads(out)["warnings"][0]
    assert first.startswith("the trace is of a run on a CPU, and the job is projected for AMD")


def test_names_of_operations_are_never_cut(compare, tmp_path):
    name = "a_very_long_name_of_an_operator_that_no_table_has_room_for_beside_its_numbers_at_all"
    paths = []
    for number, length in enumerate((2000, 4000)):
        lines = [step(3, 0, 10_000), compute(1000, 1000 + length, launch=500, name=name)]
        paths.append(write(tmp_path / f"{number}.json", kineto(*lines)))
    code, out, _ = compare(*paths)
    assert code == 0
    assert "..." not in out
    assert name[:10] in out
    assert name[-6:] in out
