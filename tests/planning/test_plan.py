"""Plans of a small model, from the question to the answer."""

import json
import math
import sys

import pytest

import projector as pj
from projector.config.planning import PlanSettings
from projector.errors import ConfigError
from projector.planning import plan as planning
from projector.planning import survey
from projector.planning.choice import MEETS
from projector.planning.question import ask, read_batches
from projector.planning.survey import Surveyor, bounds_of

MODEL = "llama3.2_1b"
JOB = {
    "model": MODEL,
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 1},
    "run": {"tokens": 2e10},
}
FEW = PlanSettings(sizes=3, refinements=1)


def plan(**given):
    return pj.project_plan(**{"model": MODEL, "tokens": "20B", "settings": FEW, **given})


@pytest.fixture(scope="module")
def two_sizes():
    return plan(devices="h100", gpus=[8, 16], usd_per_gpu_hour=2.5)


def question(**given):
    arguments = dict.fromkeys(
        ("job", "devices", "gpus", "deadline_days", "budget_usd", "usd_per_gpu_hour", "overrides")
    )
    named = {"model": MODEL, "tokens": 2e10, "fidelity": "tiles", "settings": FEW}
    given = {**named, **arguments, **given}
    return ask(given.pop("model"), given.pop("tokens"), **given)


def test_every_figure_is_that_of_a_projection(two_sizes):
    for each in two_sizes.choices:
        step = pj.project_performance(pj.load_job(two_sizes.question.job, each.overrides))
        assert step.iteration_time_s == each.iteration_time_s
        assert step.memory.peak_bytes == each.peak_bytes
        alone = pj.project_performance(each.job).run
        assert (alone.days, alone.days_high, alone.cost_usd) == (
            each.run.days, each.run.days_high, each.run.cost_usd,
        )  # fmt: skip
        assert each.run.cost_usd == pytest.approx(2.5 * each.run.gpu_hours)


def test_what_one_size_taught_changes_no_other():
    def told(choice):
        return choice.iteration_time_s, choice.peak_bytes, choice.overrides, choice.run

    model, job = question().model, pj.load_job(JOB)
    other = pj.load_job(JOB, {"cluster.device": "mi300x", "training.global_batch_size": 64})
    for each, nodes in ((job, 1), (other, 1), (job, 2), (other, 1)):
        found, alone = (of.offers(each, nodes) for of in (model, question().model))
        assert found[0] == alone[0]
        assert [*map(told, found[1])] == [*map(told, alone[1])]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not copied")
@pytest.mark.parametrize("sizes", [{"gpus": [8, 16]}, {"deadline_days": 3.0}])
def test_copies_of_the_process_find_the_same(monkeypatch, sizes):
    def told(result):
        found = result.to_dict()
        del found["seconds"]
        return json.dumps(found), [each.to_dict() for each in result.choices]

    expected = told(plan(devices=["h100", "mi300x", "b200"], **sizes))
    monkeypatch.setattr(survey, "can_copy", lambda: True)
    monkeypatch.setattr(survey, "THREADS", 2)
    assert told(plan(devices=["h100", "mi300x", "b200"], **sizes)) == expected


def test_each_choice_is_the_fastest_layout_that_fits(two_sizes):
    for each in two_sizes.choices:
        found = pj.search(each.job, nodes=each.gpus // 8, top=1)
        assert found.configurations[0].iteration_time_s == each.iteration_time_s


def test_every_cluster_trains_the_same_model(two_sizes):
    batches = {each.job.training.global_batch_size for each in two_sizes.choices}
    assert batches <= {64, 128} == {*two_sizes.question.batches}
    first = two_sizes.choices[0].batch
    assert two_sizes.to_dict()["tokens_per_step"] == first * 8192
    assert f"global batch {first}" in two_sizes.answer
    assert "our rule for models of up to 5 B parameters" in two_sizes.assumptions[0]
    assert "the law of best batches for 20 B tokens" in two_sizes.assumptions[0]


def test_few_tokens_have_batches_from_one_sequence():
    few = plan(model="llama3.1_8b", tokens="8k", devices="h100", gpus=[64])
    assert few.question.batches == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def test_a_batch_may_be_one_sequence():
    assert read_batches("1..8") == (1, 2, 4, 8)
    assert read_batches(1) == read_batches([1.0]) == (1,)


@pytest.mark.parametrize("batches", ["1..1M", "65537", "0", "2.5", "512..256", True])
def test_batches_have_bounds(batches):
    with pytest.raises(ConfigError, match="whole numbers from 1 to 65536"):
        read_batches(batches)


def test_more_than_one_batch_is_chosen_from():
    given = {"model": "llama3.1_8b", "tokens": "15T", "devices": "h100", "gpus": [1024]}
    free = plan(**given)
    assert free.question.batches == (512, 1024, 2048)
    (first,) = (each for each in free.choices if each.fits)
    fixed = {
        batch: min(each.run.days for each in plan(**given, global_batch=batch).choices)
        for batch in free.question.batches
    }
    assert first.run.days == fixed[first.batch]
    assert first.run.days <= 1.01 * min(fixed.values())
    assert min(fixed.values()) == fixed[2048] < fixed[512]
    # The smallest that adds no more than a hundredth.
    assert first.batch == 512 or fixed[first.batch // 2] > 1.01 * fixed[2048]
    assert first.overrides["training.global_batch_size"] == first.batch
    for each in free.worths:
        if each.name == "global batch":
            days = fixed[int(each.moved.replace(",", ""))]
            assert each.days == pytest.approx(days / first.run.days - 1.0)


def test_batches_that_do_not_divide_each_other_are_all_searched():
    asked = question(global_batch=[96, 128, 256])
    assert asked.longest_batches == (96, 256)
    result = plan(devices="h100", gpus=[8], global_batch="96,128")
    assert {each.batch for each in result.choices} <= {96, 128}
    assert "global batch" in result.answer


def test_a_job_keeps_its_batch_unless_asked():
    assert question(model=None, job=JOB).batches == (256,)
    assert question(model=None, job=JOB, global_batch="128..1k").batches == (128, 256, 512, 1000)
    steps = {**JOB, "run": {"steps": 1000}}
    with pytest.raises(ConfigError, match="state tokens"):
        question(model=None, tokens=None, job=steps, global_batch="128..256")


def test_what_is_slower_and_dearer_is_not_listed():
    result = plan(devices="h100", gpus=[8, 16, 32], usd_per_gpu_hour=2.5)
    beaten = {each.name for each in result.beaten}
    assert {each.name for each in result.listed} | beaten == {each.name for each in result.choices}
    by_name = {each.name: each for each in result.choices}
    for each in result.beaten:
        better = by_name[each.beaten_by]
        assert better.run.days < each.run.days
        assert better.run.cost_usd < each.run.cost_usd


def test_what_decides_is_said_with_its_worth(two_sizes):
    first = two_sizes.choices[0]
    by_name = {each.name: each for each in two_sizes.worths}
    assert by_name["step time"].days == pytest.approx(first.run.days_high / first.run.days - 1.0)
    assert by_name["an hour of a GPU, USD"].spend == pytest.approx(0.1)
    shares = [max(abs(each.days), abs(each.spend)) for each in two_sizes.worths]
    assert shares == sorted(shares, reverse=True)


def test_the_result_shows_itself(two_sizes):
    assert repr(two_sizes).startswith("PlanResult(Llama-3.2-1B on 20 B tokens: ")
    assert two_sizes._repr_html_().startswith("<table>")
    result = json.loads(json.dumps(two_sizes.to_dict(), allow_nan=False))
    assert {"schema_version", "version", "warnings", "uncertainty"} <= result.keys()
    first = result["choices"][0]
    assert {
        "device", "gpus", "days", "days_low", "days_high", "gpu_hours", "energy_mwh", "cost_usd",
        "goodput", "tokens_per_s_per_gpu", "verdict", "overrides",
    } <= first.keys()  # fmt: skip
    assert first["days_low"] < first["days"] < first["days_high"]
    assert sum(first["terms_days"].values()) == pytest.approx(first["days"])


def test_a_deadline_takes_the_fewest_gpus_that_keep_it():
    result = plan(devices="h100", deadline_days=0.5)
    assert result.met
    first = result.choices[0]
    assert first.run.days_high <= 0.5
    smaller = [each for each in result.choices if each.gpus < first.gpus]
    assert smaller
    assert all(each.run.days_high > 0.5 for each in smaller)
    assert "It takes the fewest GPU-hours" in result.answer


def test_a_deadline_that_no_offered_size_keeps_says_what_would_do():
    result = plan(devices="h100", gpus=8, deadline_days=0.3)
    assert not result.met
    assert [each.gpus for each in result.choices] == [8]
    by_key = {each.key: each for each in result.would_do}
    assert {"gpus", "deadline_days", "tokens"} <= by_key.keys()
    # Each remedy, asked for, is an answer.
    assert plan(devices="h100", gpus=int(by_key["gpus"].value), deadline_days=0.3).met
    assert plan(devices="h100", gpus=8, deadline_days=by_key["deadline_days"].value).met
    shorter = by_key["tokens"].value
    assert plan(devices="h100", gpus=8, deadline_days=0.3, tokens=shorter).met
    assert not plan(devices="h100", gpus=8, deadline_days=0.3, tokens=1.1 * shorter).met


def test_a_budget_that_cannot_be_met_says_what_would_do():
    given = {"devices": "h100", "gpus": [8, 16], "usd_per_gpu_hour": 2.5}
    result = plan(**given, budget_usd=100.0)
    assert not result.met
    assert "no cluster that was tried" in result.answer
    by_key = {each.key: each for each in result.would_do}
    assert {"budget_usd", "usd_per_gpu_hour", "tokens"} <= by_key.keys()
    assert plan(**given, budget_usd=by_key["budget_usd"].value).met
    assert not plan(**given, budget_usd=0.98 * by_key["budget_usd"].value).met
    cheap = {**given, "usd_per_gpu_hour": by_key["usd_per_gpu_hour"].value}
    assert plan(**cheap, budget_usd=100.0).met


def test_a_budget_takes_the_fastest():
    result = plan(devices="h100", gpus=[8, 16, 32], usd_per_gpu_hour=2.5, budget_usd=1e5)
    assert result.met
    assert result.choices[0].run.days == min(each.run.days for each in result.choices)


def test_a_model_that_fits_nowhere_says_how_many_gpus_would_do():
    result = pj.project_plan("llama2_70b", "1B", devices="h100", gpus=8, settings=FEW)
    assert not result.met
    assert not result.choices
    assert "cannot hold" in result.skipped[0].reason
    fewest = result.would_do[0]
    assert fewest.key == "gpus"
    assert fewest.choice.fits
    half = pj.project_plan(
        "llama2_70b", "1B", devices="h100", gpus=int(fewest.value) - 8, settings=FEW
    )
    assert not half.met


def test_the_job_of_a_choice_is_the_job_that_was_asked_about():
    result = pj.project_plan(job=JOB, gpus=[8], settings=FEW)
    first = result.choices[0]
    assert first.job.training.global_batch_size == 256
    assert first.label == pj.load_job(JOB).cluster.device.name
    assert result.question.batch_basis == "as the job has it"
    assert result.question.tokens == 2e10


def test_tokens_replace_what_the_job_says():
    result = pj.project_plan(job={**JOB, "run": {"steps": 10}}, tokens=4e10, gpus=[8], settings=FEW)
    assert result.choices[0].run.tokens == 4e10


def test_steps_of_a_job_are_tokens():
    asked = question(model=None, tokens=None, job={**JOB, "run": {"steps": 10}})
    assert asked.tokens == 10 * 256 * 4096


def test_a_network_may_be_chosen():
    result = plan(devices=["h100", "h100@p5_efa"], gpus=16)
    assert {each.label for each in result.choices} == {"h100", "h100@p5_efa"}
    networks = {each.label: each.job.cluster.network.name for each in result.choices}
    assert len(set(networks.values())) == 2


def test_a_device_that_cannot_run_the_job_is_left_out():
    result = plan(devices=["a100", "h100"], gpus=8, overrides={"training.precision": "fp8"})
    assert {each.label for each in result.choices} == {"h100"}
    assert "no native fp8" in next(s.reason for s in result.skipped if s.label == "a100")
    with pytest.raises(ConfigError, match="no native fp8"):
        plan(devices="a100", gpus=8, overrides={"training.precision": "fp8"})


def test_bounds_bound():
    asked = question(devices="h100")
    surveyor = Surveyor(asked)
    bounds = bounds_of(asked, surveyor.job_on(asked.kinds[0]))
    for nodes in (1, 2, 4):
        for each in surveyor.site(asked.kinds[0], nodes).choices:
            assert each.run.days > bounds.days(each.gpus)
            assert each.peak_bytes * each.gpus > bounds.state_bytes
    assert bounds.nodes_within(bounds.days(64)) == 8


def test_progress_is_told():
    seen = []
    plan(devices="h100", gpus=[8, 16], progress=lambda *numbers: seen.append(numbers))
    assert [(done, total) for done, total, _ in seen] == [(1, 2), (2, 2)]
    assert seen[0][2] < seen[1][2]


def test_the_global_batch_follows_the_model():
    sizes = {
        name: (asked := question(model=name)).batches[-1] * asked.job.training.seq_length
        for name in ("llama3.2_1b", "llama3.1_8b", "llama3.1_405b", "gpt3_125m")
    }
    assert sizes == {
        "llama3.2_1b": 2**20, "llama3.1_8b": 2**22, "llama3.1_405b": 2**24, "gpt3_125m": 2**19,
    }  # fmt: skip
    assert question(overrides={"training.gbs": 96}).job.training.global_batch_size == 96
    odd = question(overrides={"training.seq_length": 5000}).job.training
    assert odd.global_batch_size % 64 == 0
    assert math.isclose(odd.global_batch_size * 5000, 2**20, rel_tol=0.25)


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"tokens": None}, "tokens", "--tokens 1T"),
        ({"tokens": -1}, "tokens", "above 0"),
        ({"model": None}, "model", "neither"),
        ({"job": JOB}, "model", "both"),
        ({"devices": "h10"}, "cluster.device", "h100"),
        ({"devices": "h100", "gpus": 12}, "gpus", "8 or 16"),
        ({"devices": "h100", "gpus": 4}, "gpus", "nearest: 8"),
        ({"gpus": 0}, "gpus", "above 0"),
        ({"deadline_days": -3.0}, "deadline_days", "above 0"),
        ({"deadline_days": 0}, "deadline_days", "above 0"),
        ({"budget_usd": 1e6}, "usd_per_gpu_hour", "needs a price"),
        ({"budget_usd": -1.0, "usd_per_gpu_hour": 2.0}, "budget_usd", "above 0"),
        ({"usd_per_gpu_hour": -2.0}, "usd_per_gpu_hour", "above 0"),
        ({"fidelity": "exact"}, "fidelity", "first-order"),
        ({"top": 0}, "top", ">= 1"),
        ({"global_batch": "512..256"}, "global_batch", "512..2k"),
        ({"global_batch": 0}, "global_batch", "from 1 to 65536"),
        ({"global_batch": True}, "global_batch", "from 1 to 65536"),
        ({"global_batch": "many"}, "global_batch", "from 1 to 65536"),
        ({"global_batch": 64, "overrides": {"gbs": 64}}, "global_batch", "give one of them"),
        ({"overrides": {"parallelism.ppp": 2}}, "parallelism.ppp", "did you mean"),
    ],
)
def test_mistakes(given, key, words):
    with pytest.raises(ConfigError) as caught:
        plan(**given)
    assert caught.value.key == key
    assert words in f"{caught.value.message} {caught.value.allowed}"


def test_an_unpriced_device_is_out_of_a_budget():
    result = plan(devices=["h100", "b200"], gpus=8, budget_usd=1e5, usd_per_gpu_hour={"h100": 2.0})
    assert {each.label for each in result.choices} == {"h100"}
    assert result.choices[0].status == MEETS
    assert any(s.label == "b200" and s.reason.startswith("no price") for s in result.skipped)


def test_the_first_order_model_plans_any_device():
    result = plan(devices=["h100", "tpu_v5p"], gpus=[8, 16], fidelity="first-order")
    assert {each.label for each in result.choices} == {"h100", "tpu_v5p"}
    for each in result.choices:
        step = pj.project_performance(each.job, fidelity="first-order")
        assert step.iteration_time_s == each.iteration_time_s
        assert each.run.days == pytest.approx(2e10 / step.tokens_per_s_per_gpu / each.gpus / 86_400)
        assert each.batch in result.question.batches
    first = result.to_dict()["choices"][0]
    assert not {"days_low", "goodput", "energy_mwh"} & first.keys()
    assert "steps alone" in result.warnings[0]
    with pytest.raises(ConfigError, match="first-order"):
        plan(devices="tpu_v5p", gpus=8)


def test_what_the_first_order_model_cannot_keep_it_says():
    result = plan(devices="tpu_v5p", gpus=8, fidelity="first-order", deadline_days=0.01)
    assert not result.met
    assert {each.key for each in result.would_do} >= {"gpus", "deadline_days", "tokens"}


@pytest.mark.parametrize("limit", [{"deadline_days": 1e-300}, {"budget_usd": 1e-200}])
def test_limits_that_nothing_can_keep_have_an_answer_all_the_same(limit):
    result = plan(devices="h100", gpus=8, usd_per_gpu_hour=2.0, **limit)
    assert not result.met
    assert result.choices
    assert all(each.value > 0.0 for each in result.would_do)
    assert not any(each.key == "tokens" for each in result.would_do)


def test_a_budget_far_away_asks_for_a_price_above_nothing():
    result = plan(devices="h100", gpus=8, usd_per_gpu_hour=2.0, budget_usd=3.0)
    prices = [each for each in result.would_do if each.key == "usd_per_gpu_hour"]
    assert [each.choice.run.cost_usd <= 3.0 for each in prices] == [True]
    assert prices[0].value > 0.0


@pytest.mark.parametrize("value", [3.04e-5, 0.0123456, 1.0, 9.999, 10.0, 248.7, 1.23456e12])
def test_advice_is_rounded_to_the_safe_side(value):
    low, high = planning._down(value), planning._up(value)
    assert 0.99 * value < low <= value * (1 + 1e-9)
    assert value * (1 - 1e-9) <= high < 1.02 * value


@pytest.mark.parametrize(
    ("key", "value"),
    [("cluster.nodes", 4), ("parallelism.tp", 3), ("run.tokens", 5.0), ("run.train_iters", 5)],
)
def test_what_would_have_no_effect_is_refused(key, value):
    with pytest.raises(ConfigError) as caught:
        plan(devices="h100", gpus=8, overrides={key: value})
    assert caught.value.key == key
