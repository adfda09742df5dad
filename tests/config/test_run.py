"""What a job says of a whole run."""

import pytest

from projector.config.load import load_job
from projector.config.run import RunConfig, WarmUpConfig, run_default, run_default_source
from projector.errors import ConfigError

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100"},
}


def run_of(**fields):
    return load_job(JOB, {f"run.{name.replace('__', '.')}": v for name, v in fields.items()}).run


def test_nothing_stated_is_no_run():
    assert not load_job(JOB).run.is_stated
    assert load_job({**JOB, "run": None}).run == RunConfig()


@pytest.mark.parametrize("field", ["tokens", "steps", "samples", "train_iters", "train_samples"])
def test_tokens_steps_or_samples_state_a_run(field):
    assert run_of(**{field: 1000}).is_stated


def test_a_number_of_the_command_line_is_a_text():
    assert run_of(tokens="1e12").tokens == run_of(tokens="1T").tokens == 1e12


@pytest.mark.parametrize("tokens", ["15.6X", "-1T", "many"])
def test_a_text_that_is_no_amount_is_told_what_one_looks_like(tokens):
    with pytest.raises(ConfigError, match=r"300B or 15\.6T \(got"):
        run_of(tokens=tokens)


def test_megatrons_names_go_where_they_belong():
    run = run_of(eval_interval=10, eval_iters=5, save_interval=20, async_save=True)
    assert (run.evaluation.interval_steps, run.evaluation.iterations) == (10, 5)
    assert run.evaluation.enabled
    assert (run.checkpoint.interval_steps, run.checkpoint.asynchronous) == (20, True)
    assert run_of(checkpoint__save_interval=20).checkpoint.interval_steps == 20


@pytest.mark.parametrize("value", [[16, 8, 1000], "16 8 1000", (16, 8, 1000)])
def test_megatrons_ramp_is_three_numbers(value):
    expected = WarmUpConfig(start_batch_size=16, increment=8, samples=1000)
    assert run_of(rampup_batch_size=value).warm_up == expected


@pytest.mark.parametrize("term", ["evaluation", "checkpoint", "failures", "stragglers"])
@pytest.mark.parametrize("on", [True, False])
def test_terms_are_switched(term, on):
    run = run_of(**{term: on})
    assert getattr(run, term).enabled is on
    assert load_job({**JOB, "run": run.model_dump()}).run == run


def test_a_field_of_a_switched_term_keeps_the_switch():
    job = load_job(JOB, {"run.failures": False, "run.failures.gpu_mtbf_hours": 3.0})
    assert not job.run.failures.enabled
    assert job.run.failures.gpu_mtbf_hours == 3.0


BAD = {
    "tokens": [-1, 0, "many", float("inf")],
    "steps": [0, -1],
    "warm_up": [True, [1, 2], {"start_batch_size": 8}, {"samples": 8}],
    "failures.gpu_mtbf_hours": [0, -5],
    "failures.node_mtbf_hours": [0],
    "failures.spare_nodes": [-1],
    "failures.repaired_share": [1.5],
    "checkpoint.write_gb_per_s": [0, -1],
    "checkpoint.write_gb_per_s_per_node": [0],
    "checkpoint.interval_s": [0],
    "stragglers.slowdown": [-0.1],
    "evaluation": [3],
    "tokenz": [1],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in BAD.items() for v in vs])
def test_bad_input_names_its_key(field, value):
    with pytest.raises(ConfigError) as caught:
        load_job(JOB, {f"run.{field}": value})
    assert caught.value.key.startswith(f"run.{field}")
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"tokens": 1e9, "steps": 3}, "run.steps"),
        ({"checkpoint__interval_s": 3.0, "checkpoint__interval_steps": 3}, "interval_steps"),
        ({"checkpoint__read_gb_per_s": 3.0, "checkpoint__read_gb_per_s_per_node": 3.0}, "node"),
    ],
)
def test_what_is_said_twice_is_refused(fields, key):
    with pytest.raises(ConfigError) as caught:
        run_of(**fields)
    assert key in caught.value.key


def test_every_default_has_a_source():
    for name in ("gpu_mtbf_hours", "node_mtbf_hours", "write_gb_per_s_per_node", "slowdown"):
        assert run_default(name) >= 0.0
        assert run_default_source(name)


@pytest.mark.parametrize(
    "field",
    [
        "tokens",
        "steps",
        "samples",
        "checkpoint__interval_s",
        "checkpoint__interval_steps",
        "failures__gpu_mtbf_hours",
        "failures__spare_nodes",
        "failures__repaired_share",
        "cost__usd_per_gpu_hour",
        "energy__pue",
    ],
)
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_no_number(field, value):
    with pytest.raises(ConfigError, match="a number, not true or false") as caught:
        run_of(**{field: value})
    assert caught.value.key == f"run.{field.replace('__', '.')}"


@pytest.mark.parametrize("field", ["failures", "checkpoint", "cost__owned"])
def test_a_term_takes_a_switch_or_a_mapping(field):
    with pytest.raises(ConfigError, match="true, false or a mapping"):
        run_of(**{field: 3})


def test_messages_name_no_class():
    for wrong in ({"cost": 3}, {"energy": 3}):
        with pytest.raises(ConfigError, match="should be a mapping"):
            run_of(**wrong)


def test_a_run_has_a_token_at_least():
    with pytest.raises(ConfigError, match=r"run\.tokens"):
        run_of(tokens=1e-300)
    with pytest.raises(ConfigError, match=r"run\.cost\.owned\.utilisation"):
        run_of(cost__owned__capex_usd_per_gpu=3e4, cost__owned__utilisation=1e-300)
    with pytest.raises(ConfigError, match=r"run\.cost\.owned\.lifetime_years"):
        run_of(cost__owned__capex_usd_per_gpu=3e4, cost__owned__lifetime_years=1e-300)
