import pytest

from projector.sweeps import engine, store


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Small chunks and batches, so that a small space has many."""
    monkeypatch.setattr(store, "CHUNK_POINTS", 48)
    monkeypatch.setattr(engine, "FEW_POINTS", 80)
