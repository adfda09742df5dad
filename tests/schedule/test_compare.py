"""Schedules compared on the same work."""

from pathlib import Path

import numpy as np
import pytest

import projector
from projector.errors import ScheduleError
from projector.projection.evaluate import evaluate
from projector.projection.performance import compare_job_schedules, pipeline_run_of
from projector.schedule import registry
from projector.schedule.compare import DOES_NOT_FIT, NOT_APPLICABLE, OK, compare_schedules
from projector.schedule.simulate import simulate_schedule

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = EXAMPLES / "mixtral_8x22b_mi355x.yaml"
TOO_LARGE = EXAMPLES / "mixtral_8x22b_seed_sample.yaml"


def by_name(comparison):
    return {each.schedule: each for each in comparison.candidates}


def test_each_schedule_is_what_it_is_alone():
    found = by_name(compare_schedules(4, 1, 8, 1.0, 1.5, 0.5, 0.1))
    assert found.keys() == registry.SCHEDULES.keys()
    for name in ("gpipe", "1f1b", "zerobubble", "zerobubble-h2"):
        alone = simulate_schedule(name, 4, 1, 8, 1.0, 1.5, 0.5, 0.1)
        assert found[name].status == OK
        assert found[name].run.makespan_s == alone.makespan_s
        assert found[name].run.peak_in_flight == alone.peak_in_flight
    # What needs two chunks has the work of a rank in two.
    for name in ("interleaved", "zbv-formatted", "zbv-greedy-half"):
        alone = simulate_schedule(name, 4, 2, 8, 0.5, 0.75, 0.25, 0.1)
        assert (found[name].vpp, found[name].run.makespan_s) == (2, alone.makespan_s)
    odd = by_name(compare_schedules(3, 1, 8))["dualpipe"]
    assert odd.status == NOT_APPLICABLE
    assert "even number of ranks" in odd.reason


def test_a_rank_does_the_same_work_in_any_number_of_chunks():
    found = by_name(compare_schedules(8, 4, 32, 0.25, 0.25, 0.25))
    assert {found[name].vpp for name in ("gpipe", "1f1b", "zerobubble", "zerobubble-h2")} == {1}
    assert found["interleaved"].vpp == 4
    # (M + PP - 1) * 3 and 3 M + 3 (PP - 1) / VPP of arXiv:2104.04473, section 2.2.
    assert found["1f1b"].run.makespan_s == 117.0
    assert found["interleaved"].run.makespan_s == 101.25
    for each in found.values():
        if each.run is not None:
            assert each.run.busiest_s == pytest.approx(96.0, rel=1e-12)
    # Memory in microbatches of a whole rank means the same to all.
    assert found["1f1b"].peak == 8.0
    assert found["interleaved"].peak == max(found["interleaved"].run.peak_in_flight) / 4


def test_times_of_stages_stay_in_their_chunks():
    times = np.linspace(1.0, 2.0, 8)
    found = by_name(compare_schedules(4, 2, 8, times))
    assert found["interleaved"].status == OK
    assert found["1f1b"].status == NOT_APPLICABLE


def test_the_fastest_that_fits_stands_first():
    comparison = compare_schedules(8, 1, 32, memory_limit=8)
    assert comparison.best.schedule == "zbv-formatted"
    assert comparison.fits
    assert [each.status for each in comparison.candidates] == sorted(
        (each.status for each in comparison.candidates),
        key=[OK, DOES_NOT_FIT, NOT_APPLICABLE].index,
    )
    for status in (OK, DOES_NOT_FIT):
        times = [each.time_s for each in comparison.candidates if each.status == status]
        assert times == sorted(times)
    # As fast as zerobubble, which holds less.
    assert by_name(comparison)["zerobubble-h2"].time_s == by_name(comparison)["zerobubble"].time_s
    names = [each.schedule for each in comparison.candidates]
    assert names.index("zerobubble") < names.index("zerobubble-h2")


def test_nothing_fits():
    comparison = compare_schedules(8, 1, 32, memory_limit=0.9)
    assert not comparison.fits
    assert comparison.best.status == DOES_NOT_FIT
    assert comparison.to_dict()["best"] is None


def test_nothing_runs():
    comparison = compare_schedules(3, 3, 4, f=[1.0] * 9)
    assert comparison.best is None
    assert not comparison.fits
    assert {each.status for each in comparison.candidates} == {NOT_APPLICABLE}


def test_memory_that_no_plan_fits_is_no_mistake(monkeypatch):
    def plan(pp, vpp, microbatches, costs):
        msg = f"needs more than {costs.limit[0]:g}"
        raise ScheduleError(msg, key="memory_limit", value=costs.limit[0])

    entry = registry.Entry("planned", "", lambda *_: None, plan=plan)
    monkeypatch.setitem(registry.SCHEDULES, "planned", entry)
    for algorithm in ("all", "planned"):
        found = by_name(compare_schedules(4, 1, 8, memory_limit=0.5, algorithm=algorithm))
        assert (found["planned"].status, found["planned"].reason) == (
            DOES_NOT_FIT,
            "needs more than 0.5",
        )
        assert found["planned"].to_dict()["makespan_s"] is None


def test_an_entry_says_how_many_chunks_it_has(monkeypatch):
    seen = []

    def order(pp, vpp, microbatches):
        seen.append(vpp)
        return registry.forward_backward.interleaved(pp, vpp, microbatches)

    entry = registry.Entry("two", "", lambda *_: None, order, chunks=lambda _: 2)
    monkeypatch.setitem(registry.SCHEDULES, "two", entry)
    found = by_name(compare_schedules(4, 1, 8, 1.0, 1.0, 1.0))["two"]
    assert (seen, found.vpp) == ([2], 2)
    assert found.run.busiest_s == 24.0
    assert found.peak == max(found.run.peak_in_flight) / 2


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"pp": 0}, "pp"),
        ({"pp": 4, "microbatches": 10**9}, "microbatches"),
        ({"pp": 4, "f": -1.0}, "f"),
        ({"pp": 4, "w": [1.0, 2.0]}, "w"),
        ({"pp": 4, "p2p": float("nan")}, "p2p"),
        ({"pp": 4, "memory_limit": 0}, "memory_limit"),
        ({"pp": 4, "algorithm": "1f1c"}, "schedule"),
        ({"pp": 4, "algorithm": "interleaved"}, "vpp"),
    ],
)
def test_a_mistake_is_not_put_down_to_the_schedules(arguments, key):
    with pytest.raises(ScheduleError) as raised:
        compare_schedules(**arguments)
    assert raised.value.key == key


def test_json_holds_plain_values():
    found = compare_schedules(4, 1, 8, memory_limit=4).to_dict()
    one = found["schedules"]["1f1b"]
    assert next(iter(found["schedules"])) == found["best"] == "zbv-formatted"
    assert one == {
        "status": "ok",
        "reason": None,
        "vpp": 1,
        "makespan_s": 33.0,
        "period_s": 33.0,
        "iteration_time_ms": None,
        "bubble_fraction": 9 / 24,
        "search": None,
        "peak_in_flight": [4, 3, 2, 1],
        "peak_microbatches": 4.0,
        "peak_gib": None,
        "peak_gib_low": None,
        "peak_gib_high": None,
        "verdict": None,
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("[!rs]*.yaml")), ids=lambda path: path.stem)
def test_the_run_of_a_job_is_its_projection(path):
    job = projector.load_job(path)
    evaluation = evaluate([job])
    run = pipeline_run_of(evaluation, 0)
    expected = projector.project_performance(job)
    assert run.fits == expected.memory.fits
    assert run.limit_bytes == expected.memory.usable_bytes
    ends = expected.memory.peak_low_bytes, expected.memory.peak_high_bytes
    assert run.memory_band == (expected.memory.verdict, *ends)
    np.testing.assert_allclose(
        run.peak_bytes, [stage.peak_bytes for stage in expected.memory.stages], rtol=1e-14
    )
    assert run.makespan_s == pytest.approx(expected.pipeline_s, rel=1e-14)
    assert run.bubble_fraction == pytest.approx(expected.bubble_fraction, abs=1e-12)
    for rank in range(run.order.pp):
        assert run.memory_curve(rank).bytes.max() == pytest.approx(run.peak_bytes[rank], rel=1e-12)


def test_a_row_of_a_batch_has_its_own_run():
    jobs = [projector.load_job(MIXTRAL, {"training.micro_batch_size": size}) for size in (1, 2)]
    evaluation = evaluate(jobs)
    for row, job in enumerate(jobs):
        alone, shared = pipeline_run_of(evaluate([job]), 0), pipeline_run_of(evaluation, row)
        np.testing.assert_array_equal(alone.timeline.end_ps, shared.timeline.end_ps)
        np.testing.assert_array_equal(alone.peak_bytes, shared.peak_bytes)


def test_schedules_of_a_job_are_ranked_as_its_projections_are():
    job = projector.load_job(MIXTRAL, {"parallelism.vpp": 1})
    comparison = compare_job_schedules(job)
    projected = projector.project_performance(job, schedule="all")
    names = [projected.schedule, *(other.schedule for other in projected.alternatives)]
    assert [each.schedule for each in comparison.candidates if each.run is not None] == names
    assert comparison.best.iteration_s == projected.iteration_time_s
    assert comparison.microbatches == projected.microbatches
    found = comparison.to_dict()["schedules"][names[0]]
    assert found["peak_gib"] == pytest.approx(projected.memory.peak_bytes / 2**30)
    assert found["peak_microbatches"] is None


def test_a_job_that_does_not_fit_and_one_that_cannot_exist():
    large = {"training.micro_batch_size": 8}
    comparison = compare_job_schedules(projector.load_job(TOO_LARGE, large))
    assert not comparison.fits
    assert comparison.best.status == DOES_NOT_FIT
    one_rank = projector.load_job(TOO_LARGE, {"parallelism.pp": 1})
    with pytest.raises(ScheduleError, match="at least two ranks"):
        compare_job_schedules(one_rank, "zbv-formatted")


def test_a_number_of_microbatches_that_is_offered_runs():
    with pytest.raises(ScheduleError, match="is too large") as error:
        compare_schedules(3, 2, 10**9, 1e-6, algorithm="interleaved")
    (found,) = compare_schedules(
        3, 2, error.value.allowed, 1e-6, 1e-6, 1e-6, algorithm="interleaved"
    ).candidates
    assert found.status == OK
