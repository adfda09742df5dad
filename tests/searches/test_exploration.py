"""Searches that plan no order that cannot matter find what planning all of them finds."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.cli.main import run
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.evaluate import find_legal
from projector.report.search import search_report
from projector.report.terminal.console import render
from projector.searches import exploration
from projector.searches.candidates import candidates
from projector.searches.configurations import search
from projector.searches.exploration import explore
from projector.searches.limits import ORDERS, OUT_OF_TIME, Limits, Watch
from projector.searches.ranking import Goal, front, ranked
from projector.searches.result import closest
from thoroughness import examples

JOB = {
    "model": "llama3.1_8b",
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 1},
}
PLANNED = ("seaailab", "zbv-greedy-min", "zbv-greedy-half", "zbv-greedy-zb")


@pytest.fixture(scope="module", autouse=True)
def few_at_once():
    """Look at what was found after every order, so that small searches rule something out."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exploration, "BATCHED_S", 0.0)
        patched.setattr(exploration, "THREADS", 1)
        yield


def limits_of(**changes):
    few = {
        "micro_batch_sizes": (1, 2),
        "recompute": ("none", "full"),
        "zero_stages": (1,),
        "schedules": PLANNED,
    }
    return Limits(**{**few, **changes})


def planned_all(job, goal):
    """Evaluate every candidate, whatever it takes."""
    proposed = candidates(job, goal.limits)
    explorer = exploration._Explorer(proposed, goal, Watch())
    explorer._evaluate(np.flatnonzero(find_legal(proposed.batch).refused < 0))
    return explorer.explored()


@pytest.mark.thorough
@settings(max_examples=examples(10), deadline=None)
@given(
    hbm_gib=st.sampled_from([6, 24, 40, 80]),
    batch=st.sampled_from([16, 32]),
    top=st.sampled_from([1, 3, 20]),
    schedules=st.sampled_from([PLANNED, ("auto", *PLANNED[1:3]), ("zerobubble", "seaailab")]),
    allow_risk=st.booleans(),
    headroom=st.sampled_from([0.0, 4.0]),
    post=st.booleans(),
)
def test_what_is_found_is_what_planning_everything_finds(
    hbm_gib, batch, top, schedules, allow_risk, headroom, post
):
    job = load_job(
        JOB,
        {
            "cluster.device.hbm_gib": hbm_gib,
            "training.global_batch_size": batch,
            "training.optimizer_post_validation": post,
        },
    )
    limits = limits_of(schedules=schedules, allow_risk=allow_risk, headroom_gib=headroom)
    goal = Goal(limits, "time", top)
    whole, found = planned_all(job, goal), explore(candidates(job, limits), goal, Watch())
    expected = ranked(whole.configurations, limits)
    best = ranked(found.configurations, limits)
    assert best[:top] == expected[:top]
    assert front(best) == front(expected)
    fitting = [each for each in expected if each.verdict == "fits"]
    assert [each for each in best if each.verdict == "fits"][:top] == fitting[:top]
    if not expected:
        assert closest(found.configurations) == closest(whole.configurations)
    assert found.illegal == whole.illegal
    assert len(found.configurations) + found.ruled_out == len(whole.configurations)
    assert (found.left_out, found.stopped) == (0, "")
    known = {str(each.overrides): each for each in whole.configurations}
    assert all(known[str(each.overrides)] == each for each in found.configurations)


@pytest.fixture(scope="module")
def job():
    return load_job(JOB)


def test_what_is_not_planned_is_counted(job):
    found = search(job, top=3, limits=limits_of())
    assert found.planned > 0
    assert found.ruled_out > 0
    assert found.evaluated == found.planned
    assert found.to_dict()["ruled_out"] == found.ruled_out
    assert f"{found.ruled_out:,} more are proven" in render(search_report(found))


def test_everything_is_planned_for_what_no_step_bounds(job):
    job = load_job(job, {"run.tokens": 1e9})
    limits = limits_of(schedules=("seaailab",), micro_batch_sizes=(1,))
    found = search(job, top=1, limits=limits, objective="energy")
    fastest = search(job, top=1, limits=limits)
    assert found.evaluated > fastest.evaluated
    whole = planned_all(load_job(job), Goal(limits, "energy", 1))
    assert found.configurations == (*ranked(whole.configurations, limits),)


def test_the_time_that_is_left_is_told_before_orders_are_planned(job):
    told = []
    found = search(job, top=3, limits=limits_of(), progress=told.append)
    orders = [each for each in told if each.unit == ORDERS]
    assert orders
    assert all(each.done < each.total and each.left_s > 0.0 for each in orders)
    assert [each.found for each in told] == sorted(each.found for each in told)
    assert found.estimated_s > 0.0


@pytest.mark.parametrize("schedules", [("auto",), PLANNED, ("auto", "seaailab")])
def test_no_time_leaves_out_everything(job, schedules):
    found = search(job, top=3, limits=limits_of(schedules=schedules), most_seconds=1e-9)
    assert (found.evaluated, found.best, found.least) == (0, (), None)
    assert found.left_out > 0
    assert found.stopped == OUT_OF_TIME
    assert "STOPPED, out of time" in render(search_report(found))
    assert found.to_dict()["stopped"] == OUT_OF_TIME


def test_time_that_suffices_changes_nothing(job):
    limits = limits_of(schedules=("auto", "seaailab"))
    one, other = (search(job, limits=limits, most_seconds=each) for each in (None, 1e6))
    assert one.configurations == other.configurations
    assert other.stopped == ""


def stop_at(stop, error):
    """Return what raises an error when it is told about a search for the ``stop``-th time."""
    told = []

    def progress(each):
        told.append(each)
        if len(told) == stop:
            raise error

    return progress


def test_an_interrupt_keeps_what_was_found(job):
    limits = limits_of(schedules=("auto", "seaailab"))
    interrupt = stop_at(3, KeyboardInterrupt())
    found = search(job, top=3, limits=limits, progress=interrupt, keep_interrupted=True)
    assert found.stopped == "interrupted"
    assert found.evaluated > 0
    assert found.left_out > 0
    assert found.left_out_s is not None
    whole = search(job, top=3, limits=limits)
    total = found.evaluated + found.ruled_out + found.left_out
    assert total == whole.evaluated + whole.ruled_out
    assert whole.best[0].iteration_time_s >= min(found.left_out_s, found.best[0].iteration_time_s)
    assert "STOPPED, interrupted" in render(search_report(found))
    with pytest.raises(KeyboardInterrupt):
        search(job, top=3, limits=limits, progress=stop_at(3, KeyboardInterrupt()))


def test_the_end_of_the_process_is_no_interrupt(job):
    class Ended(KeyboardInterrupt):
        pass

    with pytest.raises(Ended):
        search(job, limits=limits_of(), progress=stop_at(1, Ended()), keep_interrupted=True)


@pytest.mark.parametrize("seconds", [0, -1, 0.0, float("nan"), True, "soon", float("-inf")])
def test_a_limit_is_a_number_of_seconds(job, seconds):
    with pytest.raises(ConfigError) as error:
        search(job, most_seconds=seconds)
    assert error.value.key == "most_seconds"


def test_nothing_legal_is_no_reason_to_stop():
    odd = load_job(JOB, {"training.global_batch_size": 31})
    found = search(odd, limits=limits_of(micro_batch_sizes=(16,)), most_seconds=100)
    assert (found.evaluated, found.ruled_out, found.left_out, found.stopped) == (0, 0, 0, "")
    assert sum(found.illegal.values()) > 0


@pytest.fixture(scope="module")
def job_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("exploration") / "job.json"
    path.write_text(json.dumps(JOB))
    return str(path)


def test_the_command_says_what_was_left_out(job_file, capsys):
    arguments = ["search", "--config", job_file, "--schedule", "seaailab", "--json"]
    assert run([*arguments, "--most-seconds", "1e-6"]) == 4
    result = json.loads(capsys.readouterr().out)
    assert result["stopped"] == OUT_OF_TIME
    assert result["left_out"] > 0
    assert result["best"] == []
    assert run([*arguments, "--most-seconds", "0"]) == 2
    assert json.loads(capsys.readouterr().out)["key"] == "most_seconds"
