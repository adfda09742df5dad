"""The tracks of a timeline add up to the breakdown, to the picosecond."""

from pathlib import Path

import pytest
from tests.projection.timeline.checks import timeline_of_result

import projector as pj

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("[!s]*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example(path):
    timeline_of_result(pj.project_performance(path))


def test_a_dense_job_on_one_rank():
    job = {
        "model": "llama3.1_8b",
        "cluster": {"device": "h100", "nodes": 1},
        "training": {"global_batch_size": 16, "micro_batch_size": 1, "seq_length": 2048},
    }
    timeline = timeline_of_result(pj.project_performance(job))
    gemms = [
        timeline.labels[label] for label in timeline.label if timeline.labels[label][:3] == "mlp"
    ]
    # Forward and both gradients of 32 layers and two microbatches.
    assert gemms.count("mlp.fc1") == 3 * 32 * 2
