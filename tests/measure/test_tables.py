"""Records as measurement tables, which validation and calibration read."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure.synthetic import synthetic_record

import projector as pj
from projector.cli.main import run
from projector.config.job import Job
from projector.errors import ConfigError
from projector.measure.record import Record
from projector.measure.reduction import reduce_job
from projector.measure.tables import (
    MEMORY_COLUMNS,
    THROUGHPUT_COLUMNS,
    gpu_of,
    tables_of,
    write_tables,
)
from projector.measure.task import Environment
from projector.units import GIB
from projector.validate.words import columns_of

DATA = Path(__file__).parents[2] / "validation" / "data"
H100 = Environment(
    device="NVIDIA H100 80GB HBM3", backend="cuda", memory_bytes=85_029_158_912, ranks=2,
    torch="2.13.0", runtime="12.8", driver="570.195.03", libraries={"nccl": "2.26.2"},
)  # fmt: skip


def a_job(**overrides: Any) -> Job:
    return pj.load_job(
        {
            "model": "llama3.1_8b",
            "parallelism": {"tp": 2, "pp": 4},
            "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
            "cluster": {"device": "h100", "nodes": 8},
        },
        {name.replace("__", "."): value for name, value in overrides.items()},
    )


def a_record(job: Job, gpus: int = 2) -> Record:
    """Return the record of a device that is as fast as the model says."""
    record = synthetic_record(reduce_job(job, gpus))
    operations = [
        each.model_copy(
            update={"outcome": each.outcome.model_copy(update={"backend": "sdpa flash"})}
        )
        if each.key.kind == "attention"
        else each
        for each in record.operations
    ]
    return record.model_copy(update={"environment": H100, "operations": operations})


@pytest.fixture(scope="module")
def record() -> Record:
    return a_record(a_job())


@pytest.fixture(scope="module")
def folder(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "of" / "record"
    write_tables(tables_of(record), folder)
    return folder


KINDS = (
    "gemm_measured", "attention_measured", "collectives_measured", "memory", "training_throughput",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_those_of_published_tables(kind: str, folder: Path) -> None:
    with (DATA / f"{kind}.csv").open(encoding="utf-8") as published:
        # Those that stand for words are filled in when a table is read, or by `--normalise`.
        words = columns_of(kind)
        columns = [name for name in next(csv.reader(published)) if name not in words]
    with (folder / f"{kind}.csv").open(encoding="utf-8") as written:
        rows = list(csv.reader(written))
    assert rows[0] == columns
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(columns)}
    constant = {"memory": MEMORY_COLUMNS, "training_throughput": THROUGHPUT_COLUMNS}.get(kind)
    assert constant is None or list(constant) == columns


@pytest.mark.parametrize("kind", KINDS)
def test_validation_reads_every_row(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", kind, str(folder / f"{kind}.csv"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total_rows"] == result["rows"] == result["projected"] > 0
    if kind == "gemm_measured":
        # Kernels alone meet another clock than those of a step, which were written down here.
        assert 0.5 < result["geomean_ratio"] < 1.5


def test_collectives_are_those_of_the_model(record: Record) -> None:
    for row in tables_of(record).tables["collectives_measured"].rows:
        alone_s = pj.collective_time(
            row["collective"], float(row["message_bytes"]), int(row["n_gpus"]), device="h100"
        )
        assert row["gpu"] == "h100"
        assert np.isclose(float(row["value"]) * 1e-6, alone_s, rtol=0.3)


@pytest.mark.parametrize("kind", ["gemm_measured", "attention_measured", "collectives_measured"])
def test_calibration_reads_the_tables(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    field = {
        "gemm_measured": "sustained_clock_mhz.bf16",
        "attention_measured": "attention_kernels.fa2.forward_efficiency",
        "collectives_measured": "scale_up_efficiency",
    }[kind]
    code = run(
        ["calibrate", kind, str(folder / f"{kind}.csv"), "--device", "h100", "--fields", field,
         "--json", "--quiet"]
    )  # fmt: skip
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result = json.loads(captured.out)
    assert result["rows"] > 0


def test_what_no_table_has_is_counted(record: Record) -> None:
    tables = tables_of(record)
    rows = sum(len(tables.tables[name].rows) for name in tables.tables)
    left_out = sum(tables.left_out.values())
    # The step is one outcome and three rows.
    assert rows - 2 + left_out == len(record.operations) + len(record.others) + 1
    assert tables.left_out["no table has operations of kind memory"] > 0
    assert len(tables.tables["copies"].rows) == 3


def test_source_says_what_measured(record: Record) -> None:
    (row, *_) = tables_of(record).tables["gemm_measured"].rows
    assert row["source"].startswith("projector-record torch 2.13.0, CUDA 12.8, driver 570.195.03")


def test_step_is_a_model_of_fewer_layers(record: Record) -> None:
    (row,) = tables_of(record).tables["training_throughput"].rows
    assert (row["model"], row["num_layers"], row["n_gpus"]) == ("Llama-3.1-8B", "1", "2")
    assert (row["tp"], row["dp"], row["global_batch"]) == ("2", "1", "1")
    allocated, reserved = tables_of(record).tables["memory"].rows
    assert record.step is not None
    held = record.step.outcome.numbers["peak_allocated_bytes"]
    assert np.isclose(float(allocated["mem_gib"]) * GIB, held)
    assert (allocated["component"], reserved["component"]) == ("peak allocated", "peak reserved")


def test_step_of_another_model_is_left_out() -> None:
    tables = tables_of(a_record(a_job(model__ffn_hidden_size=8192)))
    assert "memory" not in tables.tables
    assert tables.left_out["the step: its model is no shipped one"] == 1
    experts = a_job(model="mixtral_8x7b", parallelism__ep=8, parallelism__tp=1)
    assert tables_of(a_record(experts)).left_out["the step: its model is no shipped one"] == 1


def test_memory_of_a_processor_is_in_no_table(record: Record) -> None:
    cpu = H100.model_copy(update={"device": "AMD EPYC 9575F", "backend": "cpu"})
    tables = tables_of(record.model_copy(update={"environment": cpu}))
    assert "memory" not in tables.tables
    assert tables.tables["gemm_measured"].rows[0]["gpu"] == "AMD EPYC 9575F"


def test_devices_have_the_name_that_tables_know(record: Record) -> None:
    virtual = H100.model_copy(update={"device": "AMD Instinct MI300X VF", "backend": "rocm"})
    assert gpu_of(record.model_copy(update={"environment": virtual})) == "mi300x"


def test_folder_that_cannot_be_made_is_named(record: Record, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as raised:
        write_tables(tables_of(record), tmp_path / "file" / "below")
    assert raised.value.key == "tables"
