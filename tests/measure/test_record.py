"""Records on disk."""

from pathlib import Path

from projector.measure.record import Record, load_record
from projector.measure.task import Environment


def a_record(**fields: object) -> Record:
    environment = Environment(
        device="NVIDIA H100 80GB HBM3", backend="cuda", memory_bytes=85_029_158_912, torch="2.13.0"
    )
    data = {
        "environment": environment,
        "device": "NVIDIA H100 SXM 80GB",
        "precision": "bf16",
        "reduction": {},
        "job": {},
    }
    return Record.parse({**data, **fields})


def test_round_trip(tmp_path: Path) -> None:
    record = a_record()
    record.save(tmp_path / "record.json")
    assert load_record(tmp_path / "record.json") == record
