import pytest

from projector.sweeps import store
from sweeps.crews import start_at_once


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Small chunks, so that a small space has many."""
    monkeypatch.setattr(store, "CHUNK_POINTS", 48)


@pytest.fixture
def at_once(monkeypatch):
    """Let sweeps begin with all their workers."""
    start_at_once(monkeypatch.setattr)


@pytest.fixture
def new_workers(monkeypatch):
    """Let no worker that rests be taken: they have the environment of another test."""
    monkeypatch.setenv("PROJECTOR_TEST", "of its own")
