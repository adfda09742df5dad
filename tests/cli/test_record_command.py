"""``projector record``."""

import json
from pathlib import Path

import pytest
from tests.measure.synthetic import synthetic_record

import projector as pj
from projector.cli.main import run
from projector.config.job import Job
from projector.measure.record import load_record
from projector.measure.reduction import reduce_job

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2, "pp": 4},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 8},
}


@pytest.fixture(scope="module")
def job() -> Job:
    return pj.load_job(JOB)


@pytest.fixture
def saved(job: Job, tmp_path: Path) -> Path:
    synthetic_record(reduce_job(job, 2), device="NVIDIA H100 80GB HBM3").save(tmp_path / "r.json")
    return tmp_path / "r.json"


def write_job(path: Path, **training: object) -> str:
    data = {**JOB, "training": {**JOB["training"], **training}}  # type: ignore[dict-item]
    path.write_text(json.dumps(data))
    return str(path)


def test_report_says_what_was_measured_where(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["record", str(saved)]) == 0
    captured = capsys.readouterr()
    for text in ("Llama-3.1-8B bf16 on 2 x NVIDIA H100 80GB HBM3", "torch 2.13.0", "PP 4 -> 1",
                 "dense, bf16", "step of one layer each", "clock under bf16", "head.output",
                 "gemm_measured", "In no table"):  # fmt: skip
        assert text in captured.out
    assert len(captured.out.splitlines()) <= 56
    assert captured.err == ""


def test_json_has_layers_step_and_tables(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["record", str(saved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"schema_version", "version", "warnings"} <= found.keys()
    record = load_record(saved)
    dense = next(each for each in record.layers if each.layer.kind == "dense")
    (summary,) = found["records"]
    (shown,) = [each for each in summary["layers"] if each["layer"] == "dense, bf16"]
    median_ms = dense.outcome.times["forward"].median_s * 1e3
    assert shown["times"]["forward"]["median_ms"] == pytest.approx(median_ms)
    assert summary["step"]["times"]["total"]["median_ms"] > 0.0
    assert summary["step"]["numbers"]["peak_allocated_gib"] > 0.0
    assert summary["operations"] == {"ok": len(record.operations)}
    assert found["tables"]["gemm_measured"] > 0
    assert found["output"] == []
    longest = [each["times"]["time"]["median_ms"] for each in summary["longest"]]
    assert longest == sorted(longest, reverse=True)


def test_tables_are_written(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["record", str(saved), "--tables", str(tmp_path / "tables"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["output"]) == sorted(str(path) for path in (tmp_path / "tables").iterdir())
    assert {Path(path).stem for path in found["output"]} == found["tables"].keys()


def test_job_that_the_record_holds_for(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_job(tmp_path / "job.json", global_batch_size=128)
    assert run(["record", str(saved), "--config", config, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    config = write_job(tmp_path / "job.json", cross_entropy_fusion=False)
    assert run(["record", str(saved), "--config", config]) == 0
    assert "warning: the record was measured with training.cross" in capsys.readouterr().err


def test_job_that_the_record_does_not_hold_for(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_job(tmp_path / "job.json", precision="fp8")
    assert run(["record", str(saved), "--config", config, "--json"]) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)
    assert error["key"] == "load_benchmark.training.precision"
    assert (error["value"], error["allowed"]) == ("fp8", "bf16")
    assert "Traceback" not in captured.err


def test_records_are_merged(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = load_record(saved)
    first, rest = record.operations[:5], record.operations[5:]
    record.model_copy(update={"operations": first}).save(tmp_path / "a.json")
    record.model_copy(update={"operations": rest}).save(tmp_path / "b.json")
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert run(["record", *files, "--merge", str(tmp_path / "both.json")]) == 0
    assert load_record(tmp_path / "both.json") == record
    assert "wrote" in capsys.readouterr().err


def test_records_of_other_jobs_share_the_tables(
    saved: Path, job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = pj.load_job(job, {"training.seq_length": 8192})
    synthetic_record(reduce_job(longer, 2), device="NVIDIA H100 80GB HBM3").save(
        tmp_path / "longer.json"
    )
    files = [str(saved), str(tmp_path / "longer.json")]
    assert run(["record", *files, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert run(["record", str(saved), "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert len(both["records"]) == 2
    assert both["tables"] == {name: 2 * rows for name, rows in one["tables"].items()}
    assert run(["record", *files]) == 0
    assert capsys.readouterr().out.count("Measurement tables") == 1
    assert run(["record", *files, "--merge", str(tmp_path / "both.json")]) == 2
    assert "records of another job are not merged" in capsys.readouterr().err


def test_spoilt_record_is_one_error(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text(saved.read_text()[:1000])
    assert run(["record", str(saved), "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["key"] == "load_benchmark"
    assert captured.err.startswith("error: ")
    assert "cut off" in captured.err
    assert captured.err.count("\n") == 1
