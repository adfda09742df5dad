"""A timeline has a bounded number of operations."""

import pytest

from projector import build_timeline, project_performance
from projector.errors import ConfigError
from projector.projection.timeline import build

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"pp": 4},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 1},
}


def test_a_timeline_that_is_too_long_is_refused(monkeypatch):
    step = project_performance(JOB)
    monkeypatch.setattr(build, "MOST_BLOCKS", 4 * 16 * 2)
    assert build_timeline(step) is not None
    monkeypatch.setattr(build, "MOST_BLOCKS", 4 * 16 * 2 - 1)
    with pytest.raises(ConfigError, match="more than 127; one of 15 microbatches shows the same"):
        build_timeline(step)
