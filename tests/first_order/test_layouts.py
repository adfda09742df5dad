import pytest

from projector.config.first_order_job import load_first_order_job
from projector.first_order.layouts import fastest_layout, legal_layouts
from projector.first_order.results import project_performance


def job_of(model, device="h100", nodes=16, batch=512):
    return load_first_order_job(
        {
            "model": model,
            "training": {"mbs": 1, "gbs": batch, "seq_length": 4096},
            "cluster": {"device": device, "nodes": nodes},
        }
    )


@pytest.mark.parametrize("model", ["llama3.1_70b", "mixtral_8x22b"])
def test_the_fastest_of_all_projected_one_by_one(model):
    job = job_of(model)
    steps = project_performance(
        [load_first_order_job(job, layout.overrides) for layout in legal_layouts(job)]
    )
    fitting = [step.iteration_time_s for step in steps if step.memory.fits]
    assert fastest_layout(job).iteration_time_s == min(fitting)


def test_a_model_that_fits_nowhere():
    assert fastest_layout(job_of("deepseek_v3", nodes=1, batch=64)) is None
