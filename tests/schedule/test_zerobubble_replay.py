"""Replay of the zero-bubble orders against an event simulation, with times that differ."""

import numpy as np
import pytest

from projector.schedule import registry
from projector.schedule.replay.order_times import peak_bytes, replay
from reference import pipeline as reference


@pytest.mark.parametrize("name", ["zerobubble", "zerobubble-h2"])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 3), (2, 1), (5, 3), (4, 7), (8, 32)])
def test_replay_matches_event_simulation(name, pp, microbatches):
    order = registry.build(name, pp, 1, microbatches)
    random = np.random.default_rng(1000 * pp + microbatches)
    for high in (3, 10**6):
        # One time for each rank and kind, whatever the microbatch.
        times = random.integers(0, high, (pp, 3))
        p2p = random.integers(0, high, (2, pp))
        duration = np.repeat(times[:, np.newaxis, :, np.newaxis], 3, axis=3)
        expected = reference.simulate(
            reference.tasks_of(order),
            order.stage_of.tolist(),
            lambda rank, _chunk, kind, _microbatch, times=times: int(
                times[rank, "FBW".index(kind)]
            ),
            lambda source, target, p2p=p2p: int(p2p[0 if target > source else 1, source]),
            microbatches,
        )
        timeline = replay(order, duration, p2p)
        spans = [
            expected["FBW"[kind], stage, microbatch]
            for kind, stage, microbatch in zip(
                order.kind, order.stage, order.microbatch, strict=True
            )
        ]
        assert timeline.start_ps.tolist() == [start for start, _ in spans]
        assert timeline.end_ps.tolist() == [end for _, end in spans]


@pytest.mark.parametrize("name", ["zerobubble", "zerobubble-h2"])
def test_peak_matches_walk(name):
    order = registry.build(name, 8, 1, 32)
    for w_share in (0.0, 0.25, 1.0):
        peak, _ = peak_bytes(order, np.full((1, 8, 1), 4.0), w_share)
        assert peak[0].tolist() == [
            reference.peak_bytes(tasks, [4.0], True, w_share) for tasks in reference.tasks_of(order)
        ]
