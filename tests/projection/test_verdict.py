"""Three verdicts from the band of memory."""

import json

import numpy as np
import pytest

import projector as pj
from projector.cli.main import run
from projector.lower.batch import JobBatch
from projector.projection import bands
from projector.projection.bands import (
    AT_RISK,
    DOES_NOT_FIT,
    FITS,
    NOTHING,
    VERDICTS,
    Band,
    memory_factors,
    verdict_codes,
    verdict_of,
)
from projector.units import GIB

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 1},
}
BAND = Band(0.97, 1.04, 0.9, 1.1, 80, "a test")


@pytest.fixture
def band(monkeypatch):
    monkeypatch.setattr(bands, "memory_band", lambda _: BAND)


def with_memory(share):
    """Return the job on a device whose usable memory is a share of its peak."""
    usable_gib = share * pj.project_memory(JOB).peak_bytes / GIB
    cluster = {**JOB["cluster"], "memory_reserve_gib": 0.0, "fragmentation": 0.0}
    cluster["device"] = {"extends": "h100", "hbm_gib": usable_gib}
    return {**JOB, "cluster": cluster}


@pytest.mark.parametrize(
    ("share", "name", "fits"),
    [
        (1.2, FITS, True),
        (1.101, FITS, True),
        (1.09, AT_RISK, True),
        (1.001, AT_RISK, True),
        (0.999, AT_RISK, False),
        (0.91, AT_RISK, False),
        (0.89, DOES_NOT_FIT, False),
    ],
)
@pytest.mark.usefixtures("band")
def test_the_band_decides(share, name, fits):
    memory = pj.project_memory(with_memory(share))
    assert (memory.verdict, memory.fits) == (name, fits)
    assert memory.peak_low_bytes == 0.9 * memory.peak_bytes
    assert memory.peak_high_bytes == pytest.approx(1.1 * memory.peak_bytes)
    assert any("at risk" in text for text in memory.warnings) == (name == AT_RISK)
    assert name.replace("_", " ") in repr(memory)
    own = memory.to_dict()
    assert own["verdict"] == name
    assert own["warnings"] == list(memory.warnings)
    of_step = pj.project_performance(with_memory(share)).to_dict()["memory"]
    assert of_step == {key: own[key] for key in of_step}
    assert of_step.keys() == {"peak_gib", "peak_gib_low", "peak_gib_high", "fits", "verdict"}


@pytest.mark.usefixtures("band")
def test_only_what_does_not_fit_exits_3(tmp_path, capsys):
    for share, code, word in ((1.2, 0, "FITS"), (1.05, 0, "AT RISK"), (0.95, 0, "AT RISK"),
                              (0.8, 3, "DOES NOT FIT")):  # fmt: skip
        path = tmp_path / "job.json"
        path.write_text(json.dumps(with_memory(share)))
        for command in ("memory", "performance", "both"):
            assert run([command, "--config", str(path)]) == code
            shown = capsys.readouterr()
            assert f"{word}  peak" in shown.out
            assert ("memory is at risk" in shown.err) == (word == "AT RISK")


def test_a_band_never_leaves_out_the_projection(monkeypatch):
    monkeypatch.setattr(bands, "memory_band", lambda _: Band(1.01, 1.1, 1.02, 1.2, 9, ""))
    assert bands._factors(pj.load_job(JOB)) == (1.0, 1.2)
    monkeypatch.setattr(bands, "memory_band", lambda _: NOTHING)
    assert bands._factors(pj.load_job(JOB)) == (1.0, 1.0)


def test_a_batch_has_the_verdicts_of_its_jobs():
    changes = [
        {"model": model, "cluster.device": device, "training.precision": precision}
        for model in ("llama3.1_8b", "mixtral_8x7b")
        for device in ("h100", "mi300x", "b200")
        for precision in ("bf16", "fp8")
    ]
    jobs = [pj.load_job(JOB, change) for change in changes]
    low, high = memory_factors(JobBatch.of(jobs))
    peaks = np.linspace(20.0, 400.0, len(jobs)) * GIB
    usable = np.full(len(jobs), 100.0) * GIB
    codes = verdict_codes(peaks * low, peaks * high, usable)
    assert set(codes.tolist()) == {0, 1, 2}
    for row, job in enumerate(jobs):
        assert (low[row], high[row]) == bands._factors(job)
        found = verdict_of(job, peaks[row], usable[row])
        assert found.verdict == VERDICTS[codes[row]]
        assert found.low_bytes == peaks[row] * low[row]
        assert found.high_bytes == peaks[row] * high[row]
