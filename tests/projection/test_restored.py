"""Random jobs, reduced, measured by a device that behaves like the model, and restored."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.measure.synthetic import synthetic_record
from tests.projection.jobs import jobs

from projector.errors import ConfigError
from projector.measure.reduction import reduce_job
from projector.projection.api import project_performance
from projector.projection.measured import project_measured

EXACT = 1e-9


@settings(max_examples=30)
@given(job=jobs(), data=st.data())
def test_restored_jobs_are_those_of_the_model(job, data):
    """So pipelines, experts and tensors are restored where the model says the truth."""
    try:
        reduction = reduce_job(job, data.draw(st.integers(1, job.cluster.gpus_per_node)))
    except ConfigError:
        assume(False)
    direct = project_performance(job)
    restored = project_measured(job, synthetic_record(reduction))
    step_s = direct.iteration_time_s
    assert restored.iteration_time_s == pytest.approx(step_s, rel=EXACT)
    for term, seconds in direct.breakdown_s.items():
        assert restored.breakdown_s[term] == pytest.approx(seconds, rel=EXACT, abs=EXACT * step_s)
