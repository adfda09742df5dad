"""Jobs under V-shaped, two-way and planned schedules."""

import numpy as np
import pytest

import projector as pj
from projector.projection.evaluate import evaluate

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"pp": 4, "tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}


def project(**overrides):
    return pj.project_performance(pj.load_job(JOB, overrides))


def under(schedule, vpp=1, **overrides):
    return project(**{"training.schedule": schedule, "parallelism.vpp": vpp, **overrides})


def test_a_v_keeps_embedding_and_head_together():
    straight, v = under("interleaved", 2), under("zbv-formatted", 2)
    first, last = v.memory.stages[0], v.memory.stages[-1]
    # Stages 0 and 7 on rank 0: both ends, which the straight placement has on ranks 0 and 3.
    assert first.parameters > 1.5 * last.parameters
    ends = straight.memory.stages[0].parameters + straight.memory.stages[-1].parameters
    assert first.parameters + last.parameters == ends
    totals = [sum(s.parameters for s in each.memory.stages) for each in (straight, v)]
    assert totals[0] == totals[1]


def test_a_v_holds_tied_embeddings_once():
    tied = {"model.tied_embeddings": True}
    straight, v = under("interleaved", 2, **tied), under("zbv-formatted", 2, **tied)
    totals = [sum(s.parameters for s in each.memory.stages) for each in (straight, v)]
    assert totals[0] - totals[1] == 128256 // 2 * 4096
    alone = pj.project_memory(pj.load_job(JOB, {**tied, "parallelism.pp": 1})).stages[0]
    assert totals[1] == alone.parameters


def test_the_turn_of_a_v_sends_nothing():
    straight = under("interleaved", 2).communication["pp:send_recv"]
    v = under("zbv-formatted", 2).communication["pp:send_recv"]
    # The rank that ends the step, 0, sends and receives over three of the V's seven borders twice.
    assert v.bytes == pytest.approx(straight.bytes * 2 / 3)


def test_two_directions_hold_the_model_twice():
    one, two = under("zerobubble"), under("dualpipe")
    parameters = [[s.parameters for s in each.memory.stages] for each in (one, two)]
    assert parameters[1] == [
        mine + mirrored for mine, mirrored in zip(parameters[0], parameters[0][::-1], strict=True)
    ]
    # Its shards are half as large, so that the two of a rank are as large as one.
    optimizer = [sum(s.optimizer_bytes for s in each.memory.stages) for each in (one, two)]
    assert optimizer[1] == pytest.approx(optimizer[0], rel=1e-6)
    assert two.breakdown_s["compute_gemm"] == pytest.approx(
        one.breakdown_s["compute_gemm"], rel=0.2
    )


@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("zbv-formatted", 2), ("zbv-greedy-half", 2), ("dualpipe", 1), ("seaailab", 1)],
)
def test_terms_add_up(schedule, vpp):
    for validated in (False, True):
        step = under(schedule, vpp, **{"training.optimizer_post_validation": validated})
        assert all(value >= 0.0 for value in step.breakdown_s.values())
        assert sum(step.breakdown_s.values()) == pytest.approx(step.iteration_time_s, rel=1e-9)


def test_post_validation_takes_the_longest_span():
    waiting, free = (
        under("zerobubble-h2", **{"training.optimizer_post_validation": each})
        for each in (False, True)
    )
    assert free.iteration_time_s < waiting.iteration_time_s
    assert free.bubble_fraction < waiting.bubble_fraction


def test_a_planned_schedule_keeps_to_its_limit():
    peaks, times = [], []
    for pending in (1, 2, 4, None):
        step = under("seaailab", **{"training.zero_bubble_max_pending_backward": pending})
        peaks.append(max(stage.activations_bytes for stage in step.memory.stages))
        times.append(step.iteration_time_s)
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]
    assert times == sorted(times, reverse=True)


def test_a_plan_uses_what_the_device_has_left():
    roomy = under("seaailab")
    reserve = roomy.memory.headroom_bytes / 2**30
    tight = under("seaailab", **{"cluster.memory_reserve_gib": reserve + 8.0})
    assert tight.memory.peak_bytes < roomy.memory.peak_bytes
    assert tight.memory.fits
    # A job that does not fit at all is planned and projected all the same.
    large = under("seaailab", **{"cluster.memory_reserve_gib": 79.0})
    assert not large.memory.fits
    assert large.iteration_time_s > 0.0


def test_planned_jobs_do_not_depend_on_their_batch():
    jobs = [
        pj.load_job(JOB, {"training.schedule": name, "parallelism.vpp": vpp, **further})
        for name, vpp in (("seaailab", 1), ("zbv-greedy-min", 2), ("dualpipe", 1), ("1f1b", 1))
        for further in ({}, {"training.seq_length": 8192})
    ]
    together = evaluate(jobs)
    for row, job in enumerate(jobs):
        alone = evaluate([job])
        assert together.steps.iteration_s[row] == alone.steps.iteration_s[0]
        np.testing.assert_array_equal(together.steps.breakdown_s[row], alone.steps.breakdown_s[0])
        np.testing.assert_array_equal(together.memory(row).peak_bytes, alone.memory(0).peak_bytes)


def test_sends_block_where_megatron_does():
    default, beside = (project(**{"parallelism.overlap_p2p_comm": each}) for each in (None, True))
    blocking = project(**{"parallelism.overlap_p2p_comm": False})
    assert default.iteration_time_s == blocking.iteration_time_s
    assert beside.breakdown_s["pp_comm"] <= default.breakdown_s["pp_comm"]
    assert beside.breakdown_s["pp_bubble"] == default.breakdown_s["pp_bubble"]
    split = [under("zerobubble", **{"parallelism.overlap_p2p_comm": each}) for each in (None, True)]
    assert split[0].iteration_time_s == split[1].iteration_time_s
