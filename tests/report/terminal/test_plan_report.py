"""The report of a plan at every width."""

import pytest

import projector as pj
from projector.config.planning import PlanSettings
from projector.report.plan import figure_of_plan, plan_document, plan_figure
from projector.report.terminal.console import render

FEW = PlanSettings(sizes=3, refinements=1)


def plan(**given):
    return pj.project_plan("llama3.2_1b", "20B", settings=FEW, **given)


@pytest.fixture(scope="module")
def results():
    priced = {"devices": ["h100", "mi300x"], "usd_per_gpu_hour": 2.5}
    return {
        "open": plan(**priced, gpus=[8, 16, 32]),
        "met": plan(devices="h100", deadline_days=0.5),
        "not met": plan(**priced, gpus=[8, 16], deadline_days=0.1, budget_usd=50.0),
        "own device": pj.project_plan(
            job={
                "model": "llama3.2_1b",
                "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
                "cluster": {"device": "mi355x"},
                "run": {"tokens": 2e10},
            },
            gpus=8,
        ),
        "nothing": pj.project_plan("llama2_70b", "1B", devices="h100", gpus=8),
    }


@pytest.mark.rotated
@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["open", "met", "not met", "own device", "nothing"])
def test_no_number_is_cut(results, name, width):
    result = results[name]
    text = render(plan_document(result), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    joined = " ".join(text.split())
    assert joined.startswith(result.answer)
    for each in result.listed:
        assert f"{each.gpus:,} {each.label}" in joined
        assert each.layout in joined
    for each in result.beaten if result.question.gpus else ():
        assert f"{each.name} slower and dearer than" in joined
    for each in result.worths:
        assert f"{each.name} {each.value} {each.moved}" in joined
    for remedy in result.would_do:
        assert remedy.text in joined


def test_what_does_not_fit_says_so(results):
    text = render(plan_document(results["nothing"]), width=80)
    assert "nothing fits" in text
    assert "What would do" in text


@pytest.mark.parametrize("name", ["open", "met", "not met", "nothing"])
def test_pictures_have_every_choice(results, name):
    result = results[name]
    assert plan_figure(result).axes
    if not result.choices:
        return
    drawn = figure_of_plan(result)
    points = sum(len(each["x"]) for each in drawn["data"] if each["mode"] == "markers")
    assert points == len(result.choices) + (result.knee is not None)
    low, high = drawn["layout"]["xaxis"]["range"]
    for each in result.choices:
        assert 10**low < each.run.days_low < each.run.days_high < 10**high


def test_deadline_and_budget_differ_and_lie_on_the_axes(results):
    layout = figure_of_plan(results["not met"])["layout"]
    deadline, budget = layout["shapes"]
    assert deadline["line"]["dash"] != budget["line"]["dash"]
    for place, axis in ((deadline["x0"], "xaxis"), (budget["y0"], "yaxis")):
        low, high = layout[axis]["range"]
        assert 10**low < place < 10**high
