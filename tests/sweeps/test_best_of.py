"""Spaces of which each point keeps its best choice."""

from functools import cache

import numpy as np
import pytest

from projector.config.space_file import MOST_CHOICES
from projector.errors import ConfigError
from projector.sweeps import jobs
from projector.sweeps.engine import estimate, sweep
from projector.sweeps.rows import Projector
from projector.sweeps.table import axis_kinds, load_space
from sweeps.grid import BASE

AXES = {"cluster.device.hbm_gib": [4.0, 30.0, 80.0], "cluster.nodes": [1, 2]}
CHOICES = {
    "parallelism.tp": [1, 2, 3],
    "training.recompute": ["none", "full"],
    "training.micro_batch_size": [1, 4],
}
SPACE = {"base": BASE, "axes": AXES, "best_of": CHOICES, "constraints": ["tp * nodes < 4"]}


@cache
def expected():
    return best_rows(SPACE)


def best_rows(space):
    """Return the best row of each point, from all of them, and their number."""
    axes = {**space["axes"], **space["best_of"]}
    whole = sweep({**space, "axes": axes, "best_of": None}).to_arrow().to_pylist()
    groups = {}
    for row in whole:
        groups.setdefault(tuple(row[axis] for axis in space["axes"]), []).append(row)

    def rank(row):
        better = -row["tokens_per_s_per_gpu"] if row["fits"] else row["peak_gib"]
        return (not row["fits"], row["verdict"] != "fits", better, row["peak_gib"])

    return [min(rows, key=rank) for rows in groups.values()], len(whole)


def test_each_point_keeps_its_best_choice():
    best, count = expected()
    found = sweep(SPACE, workers=1)
    assert found.to_arrow().to_pylist() == best
    assert found.not_best == count - len(best) > 0
    assert found.evaluated == load_space(SPACE).size
    assert found.evaluated == found.rows + found.not_best + sum(found.infeasible.values())
    # Where nothing fits the row is what comes nearest.
    small = [row for row in best if row["cluster.device.hbm_gib"] == 4.0]
    assert not any(row["fits"] for row in small)
    assert all(row["training.micro_batch_size"] == 1 for row in small)


CHIPS = {
    "cluster.device.hbm_gib": [4.0, 30.0, 80.0],
    "cluster.device.hbm_peak_tb_per_s": [0.5 + 0.25 * step for step in range(20)],
    "cluster.device.compute_units": [66, 132],
}


@pytest.mark.parametrize("schedule", ["auto", "zerobubble", "seaailab"])
def test_what_memory_rules_out_has_no_times(monkeypatch, schedule):
    base = {**BASE, "training": {**BASE["training"], "schedule": schedule}}
    choices = {"parallelism.pp": [2, 4]} | (CHOICES if schedule != "seaailab" else {})
    space = {"base": base, "axes": CHIPS, "best_of": choices}
    best, count = best_rows(space)
    assert {row["verdict"] for row in best} >= {"fits", "does_not_fit"}
    asked, evaluate_possible = [], jobs.evaluate_possible
    monkeypatch.setattr(
        jobs,
        "evaluate_possible",
        lambda *args: asked.append(len(args[0])) or evaluate_possible(*args),
    )
    assert projected(space).table.to_pylist() == best
    # A planned order needs times, and its memory follows from it.
    assert asked == [count] if schedule == "seaailab" else asked[0] < count


def test_what_was_ruled_out_is_the_best_where_the_others_have_no_times(monkeypatch):
    space = {"base": BASE, "axes": CHIPS, "best_of": CHOICES}
    best, count = best_rows(space)
    asked, evaluate_possible = [], jobs.evaluate_possible

    def fails_at_first(batch, legal, refuse, known):
        asked.append(len(batch))
        if len(asked) == 1:
            refuse(ConfigError("no times"))
            return []
        return evaluate_possible(batch, legal, refuse, known)

    monkeypatch.setattr(jobs, "evaluate_possible", fails_at_first)
    found = projected(space)
    assert asked[0] < asked[1] == count
    assert not any("no times" in reason for reason in found.infeasible)
    assert found.table.to_pylist() == best


def test_points_without_a_possible_choice_have_no_row():
    found = projected({"base": BASE, "axes": CHIPS, "best_of": {"parallelism.tp": [3, 5, 6]}})
    assert not len(found.table)
    assert sum(found.infeasible.values()) == found.points


def projected(space):
    space = load_space(space)
    return Projector(space, axis_kinds(space)).project(np.arange(space.size))


def test_choices_stay_in_one_chunk(monkeypatch):
    from projector.sweeps import store

    best, _ = expected()
    monkeypatch.setattr(store, "CHUNK_POINTS", 5)
    found = sweep(SPACE, workers=1)
    assert found.plan.chunk_points == 12
    assert found.to_arrow().to_pylist() == best


def test_a_dry_run_counts_all_choices():
    found = estimate(SPACE)
    assert found.points == found.sampled == 72
    assert found.legal == expected()[1]


def test_another_choice_is_another_sweep(tmp_path):
    sweep(SPACE, tmp_path / "out", workers=1)
    plain = {**SPACE, "axes": {**AXES, **CHOICES}, "best_of": None}
    with pytest.raises(ConfigError, match="another sweep"):
        sweep(plain, tmp_path / "out")


def test_mistakes_are_told():
    many = {"range": [1, 1000]}
    wrong = {**SPACE, "best_of": {"training.global_batch_size": many, "training.seq_length": many}}
    with pytest.raises(ConfigError, match=f"at most {MOST_CHOICES:,}") as caught:
        load_space(wrong)
    assert caught.value.key == "best_of"
    with pytest.raises(ConfigError, match="is on two axes"):
        load_space({**SPACE, "best_of": {"cluster.nodes": [1, 2]}})
    with pytest.raises(ConfigError, match=r"best_of\.parallelism\.pp has no values"):
        load_space({**SPACE, "best_of": {"parallelism.pp": []}})
    with pytest.raises(ConfigError, match="best_of is a mapping"):
        load_space({**SPACE, "best_of": ["parallelism.tp"]})


def test_ties_go_to_the_first():
    space = {
        "base": BASE,
        "axes": {"parallelism.tp": [1, 2]},
        # Without data parallelism between nodes these change nothing.
        "best_of": {"cluster.network.nic_gbit_per_s": [100.0, 200.0, 300.0]},
    }
    nic = sweep(space).to_arrow()["cluster.network.nic_gbit_per_s"].to_numpy()
    assert np.array_equal(nic, [100.0, 100.0])
