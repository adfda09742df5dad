"""Chunks that a schedule brings along, and the names of schedules."""

from pathlib import Path

import pytest

from projector.config.load import load_job
from projector.config.training import chunks_of, schedule_name
from projector.errors import ScheduleError
from projector.projection.api import project_memory
from projector.projection.performance import compare_job_schedules
from projector.schedule.registry import SCHEDULES, resolve
from projector.searches.limits import Limits

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = EXAMPLES / "mixtral_8x22b_mi355x.yaml"
"""PP 4, VPP 2."""

DATA = {
    "model": "llama3.1_8b",
    "parallelism": {"pp": 4},
    "training": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 4096},
    "cluster": {"device": "mi300x"},
}


def with_schedule(schedule, **split):
    return {
        **DATA,
        "parallelism": {"pp": 4, **split},
        "training": {**DATA["training"], "schedule": schedule},
    }


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("zbh1", "zerobubble"),
        ("ZB-H1", "zerobubble"),
        ("zero_bubble", "zerobubble"),
        ("ZB-H2", "zerobubble-h2"),
        ("ZB-V", "zbv-formatted"),
        ("V-Min", "zbv-greedy-min"),
        ("v_half", "zbv-greedy-half"),
        ("V-ZB", "zbv-greedy-zb"),
        ("zerobubble-heuristic", "seaailab"),
        ("zero-bubble-heuristic", "seaailab"),
        ("1f1b-interleaved", "interleaved"),
        ("Interleaved1F1B", "interleaved"),
        ("GPipe", "gpipe"),
        ("DualPipe", "dualpipe"),
        ("AUTO", "auto"),
        ("no such", "no such"),
    ],
)
def test_spellings(spelling, name):
    assert schedule_name(spelling) == name
    if name in SCHEDULES:
        assert resolve(spelling).name == name
        assert load_job(DATA, {"training.schedule": spelling}).training.schedule == name
        assert Limits(schedules=(spelling,)).schedules == (name,)


def test_every_schedule_has_its_chunks():
    for name, entry in SCHEDULES.items():
        assert [entry.chunks(vpp) for vpp in (1, 2, 4)] == [chunks_of(name, v) for v in (1, 2, 4)]
        assert schedule_name(name) == name
        chunks = entry.chunks(1)
        entry.check(4, chunks, 8)


@pytest.mark.parametrize("given", ["zb-h3", "zbh5", "v-max"])
def test_an_unknown_name_is_answered_with_the_nearest(given):
    with pytest.raises(ScheduleError, match="did you mean"):
        resolve(given)


@pytest.mark.parametrize("schedule", ["zbv-formatted", "v-min", "V-Half", "zbv-greedy-zb"])
def test_v_schedules_of_a_file_have_two_chunks(schedule):
    job = load_job(with_schedule(schedule))
    assert job.parallelism.vpp == 2
    assert job.notes == ()
    assert "has two chunks a rank" in job.origins["parallelism.vpp"]
    assert project_memory(job).peak_bytes > 0


@pytest.mark.parametrize(
    ("overrides", "vpp"),
    [
        ({"training.schedule": "zbv-formatted"}, 2),
        ({"training.schedule": "zerobubble"}, 1),
        ({"training.pipeline_schedule_algorithm": "1f1b"}, 1),
        ({"training.schedule": "interleaved"}, 2),
        ({"training.schedule": "auto"}, 2),
        ({"training.schedule": "interleaved", "parallelism.vpp": 7}, 7),
        ({"training.schedule": "interleaved", "training.global_batch_size": 1024}, 2),
    ],
)
def test_a_schedule_that_is_asked_for_gets_its_chunks(overrides, vpp):
    job = load_job(JOB, overrides)
    assert job.parallelism.vpp == vpp
    assert bool(job.notes) == (vpp == 1)
    assert project_memory(job).peak_bytes > 0


@pytest.mark.parametrize(
    "data",
    [
        with_schedule("zbv-formatted", vpp=1),
        with_schedule("zbv-formatted", virtual_pipeline_model_parallel_size=4),
    ],
)
def test_chunks_of_the_file_count_for_its_schedule(data):
    with pytest.raises(ScheduleError, match="has two chunks a rank, but vpp is"):
        project_memory(load_job(data))


def test_chunks_that_are_asked_for_are_kept():
    job = load_job(JOB, {"training.schedule": "zbv-formatted", "parallelism.vpp": 4})
    with pytest.raises(ScheduleError, match="set vpp = 2"):
        project_memory(job)


def test_interleaved_has_two_chunks_where_none_are_stated():
    assert load_job(with_schedule("interleaved")).parallelism.vpp == 2
    assert load_job(with_schedule("interleaved", vpp=4)).parallelism.vpp == 4


def test_one_rank_has_no_v():
    job = load_job(with_schedule("zbv-formatted"), {"parallelism.pp": 1})
    with pytest.raises(ScheduleError, match="at least two ranks"):
        project_memory(job)


def test_a_named_schedule_is_compared_in_its_chunks():
    job = load_job(DATA)
    (candidate,) = compare_job_schedules(job, "v-half").candidates
    assert candidate.run is not None
    assert candidate.schedule == "zbv-greedy-half"
