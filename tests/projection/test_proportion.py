"""A step by the proportion of copies, beside its replay."""

import pytest
from tests.measure.synthetic import synthetic_record

from projector import load_job
from projector.errors import ConfigError
from projector.measure.reduction import reduce_job, reduction_to
from projector.projection.api import project_performance
from projector.projection.comparison import by_proportion
from projector.projection.evaluate import evaluate


def _job(**overrides):
    job = {
        "model": "llama3.1_8b",
        "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 4},
    }
    return load_job(job, overrides)


def _proportion(job):
    step = project_performance(job)
    found = by_proportion(reduce_job(job), lambda each: evaluate([each]), step.breakdown_s)
    assert found is not None
    assert found.replayed_s == pytest.approx(step.iteration_time_s)
    return found


def test_without_a_pipeline_it_is_the_replay():
    found = _proportion(_job())
    assert (found.min_dp, found.target_dp) == (8, 32)
    assert found.step_s == pytest.approx(found.replayed_s, rel=1e-6)


def test_with_one_it_forgets_a_part_of_the_bubble():
    job = _job(**{"parallelism.pp": 4, "training.global_batch_size": 64})
    found = _proportion(job)
    bubble_s = project_performance(job).breakdown_s["pp_bubble"]
    assert found.replayed_s - bubble_s < found.step_s < found.replayed_s


def test_a_plan_that_does_not_fit_on_fewer_nodes_gives_none():
    job = _job()

    def refuse(_):
        raise ConfigError("no")

    terms = project_performance(job).breakdown_s
    assert by_proportion(reduce_job(job), refuse, terms) is None


def test_a_projection_from_a_record_says_both():
    """Also of a job on other nodes than the record's."""
    record = synthetic_record(reduce_job(_job(**{"parallelism.tp": 2}), 2))
    job = _job(**{"parallelism.tp": 4, "cluster.nodes": 8})
    told = project_performance(job, records=record).to_dict()["provenance"]["record"]["reduction"]
    assert told["target"]["nodes"] == 8
    assert told["benchmark"]["tp"] == 2
    assert [step["dimension"] for step in told["steps"]] == ["tp"]
    closed = told["closed_form"]
    assert closed["step_ms"] == pytest.approx(
        closed["base_ms"] * closed["min_dp"] / closed["target_dp"] + closed["once_ms"]
    )


def test_a_record_of_other_experts_says_so():
    mixtral = {"model": "mixtral_8x7b", "parallelism.ep": 8}
    measured = reduce_job(_job(**mixtral), 2).to_dict()
    assert measured["benchmark"]["num_experts"] == 2
    (same,) = reduction_to(_job(**mixtral), measured).steps
    assert "a rank keeps 1" in same.reason
    (other,) = reduction_to(_job(**mixtral | {"parallelism.ep": 4}), measured).steps
    assert "a rank had 1 where it has 2 now" in other.reason


@pytest.mark.parametrize("described", [{}, {"benchmark": {}}, {"benchmark": {"tp": "x"}}])
def test_records_without_degrees_are_refused(described):
    with pytest.raises(ConfigError, match="which degrees were measured"):
        reduction_to(_job(), described)
