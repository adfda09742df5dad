import pytest

from projector.sweeps import engine, store


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Small chunks and batches, so that a small space has many."""
    monkeypatch.setattr(store, "CHUNK_POINTS", 48)
    monkeypatch.setattr(engine, "FEW_POINTS", 80)


@pytest.fixture
def new_workers(monkeypatch):
    """Let no worker that rests be taken: they have the environment of another test."""
    monkeypatch.setenv("PROJECTOR_TEST", "of its own")
