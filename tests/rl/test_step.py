"""Steps of reinforcement learning: what they add up, what fits, which split is fastest."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

import projector as pj
from projector.errors import ConfigError
from projector.report.rl import rl_report
from projector.serving.memory import serving_memory

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "rl_llama8b_h100.yaml"
POLICY = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 1},
}
STEP = {
    "training": POLICY,
    "rollout": {"gpu_memory_utilization": 0.5},
    "responses": {"prompts": 32, "group": 8, "prompt_tokens": 128, "tokens": 600},
}


def project(**overrides):
    return pj.project_rl(STEP, overrides=overrides)


def apart(**overrides):
    return project(placement="apart", rollout_gpus=8, **overrides)


def test_phases_are_those_of_both_paths():
    found = project()
    assert [*found.phases_s] == [
        "rollout", "logprob", "reference", "training", "transfer", "offload"
    ]  # fmt: skip
    assert found.step_s == pytest.approx(sum(found.phases_s.values()), rel=1e-12)
    # 128 responses of 728 tokens are packed into 23 rows, which 4 replicas share evenly.
    job = pj.load_job(POLICY, {"global_batch_size": 24, "training.packed_tokens": 728})
    update = pj.project_performance(job)
    assert found.phases_s["training"] == pytest.approx(2 * update.iteration_time_s, rel=1e-12)
    assert found.phases_s["logprob"] == pytest.approx(2 * update.pipeline_s / 3, rel=1e-12)
    assert found.tokens_per_s_per_gpu == pytest.approx(256 * 728 / found.step_s / 8, rel=1e-9)
    assert "reference" not in project(reference=False).phases_s


def test_a_critic_of_the_same_model_doubles_what_trains():
    found = project(critic=True)
    assert found.phases_s["critic"] == found.phases_s["training"]
    assert found.phases_s["values"] == found.phases_s["logprob"]
    small = pj.project_rl(STEP | {"critic": {**POLICY, "model": "llama3.2_1b"}})
    assert small.phases_s["critic"] < found.phases_s["critic"] / 3


def test_sides_that_overlap_wait_for_the_longer_one():
    late, turns = apart(staleness=1), apart()
    sides = late.sides_s
    assert late.step_s == max(sides.values()) + late.phases_s["transfer"]
    assert turns.step_s == pytest.approx(sum(sides.values()) + late.phases_s["transfer"])
    assert min(late.idle.values()) == pytest.approx(0.0, abs=1e-12)
    assert turns.idle["rollout"] == pytest.approx(sides["training"] / turns.step_s)
    assert project().idle == {}
    assert late.bound in sides


def test_memory_of_both_on_one_device_is_their_sum():
    away, kept = project(), project(offload=False)
    states = max(
        each.weights_bytes + each.gradients_bytes + each.optimizer_bytes
        for each in kept.update.memory.stages
    )
    weights = max(each.weights_bytes for each in kept.update.memory.stages)
    held, alone = (
        {name: sum(side.values()) - side["usable"] for name, side in each.held_bytes.items()}
        for each in (kept, away)
    )
    assert held["rollout"] == pytest.approx(alone["rollout"] + states + weights)
    assert held["training"] == pytest.approx(alone["training"] + weights)
    engine = serving_memory(kept.job.rollout)
    assert alone["rollout"] == pytest.approx(engine.usable_bytes + engine.reserve_bytes)
    assert "offload" not in kept.phases_s
    assert away.fits
    full = project(offload=False, **{"rollout.gpu_memory_utilization": 0.95})
    assert full.verdict == "does_not_fit"
    assert "waiting" not in apart(offload=False).held_bytes["rollout"]


def test_weights_move_faster_within_a_node_than_to_another():
    assert project().phases_s["transfer"] < apart().phases_s["transfer"]
    one = project(**{"training.parallelism.tp": 1})
    assert one.phases_s["transfer"] == 0.0


def test_more_devices_are_never_slower_in_the_best_split():
    times = [pj.search_rl(EXAMPLE, gpus=gpus)[0].step_s for gpus in (16, 32, 64)]
    assert times == sorted(times, reverse=True)


def test_a_search_ranks_what_a_step_projects():
    found = pj.search_rl(EXAMPLE, gpus=32, overrides={"staleness": 1})
    assert {each.job.placement for each in found} == {"apart", "colocated"}
    assert all(each.fits and each.job.gpus == 32 for each in found)
    times = [each.step_s for each in found]
    assert times == sorted(times)
    for each in (found[0], found[-1]):
        again = pj.project_rl(EXAMPLE, overrides=each.overrides)
        assert again.step_s == pytest.approx(each.step_s, rel=1e-12)
    assert "tokens/s/GPU" in repr(found[0])


def test_what_a_rollout_states_is_kept_by_a_search():
    found = pj.search_rl(EXAMPLE, gpus=32, overrides={"rollout.tp": 2, "rollout.pp": 1})
    assert {each.job.rollout.gpus for each in found} == {2}


@pytest.mark.parametrize(
    ("overrides", "key", "text"),
    [
        ({"placement": "apart"}, "rollout_gpus", "required"),
        ({"rollout_gpus": 4}, "rollout_gpus", "8, those of training"),
        ({"staleness": 1}, "staleness", "0 where colocated"),
        ({"staleness": 2}, "staleness", "0 or 1"),
        ({"rollout.device": "h200"}, "rollout.device", "H100 SXM 80GB where colocated"),
        ({"rollout.tp": 16}, "rollout.tp", "exceeds the 8 GPUs"),
        ({"rollout.load.batch": 3}, "rollout.load", "responses"),
        ({"training.global_batch_size": 100}, "training.training.global_batch_size", "256"),
        ({"training.seq_length": 512}, "training.training.seq_length", "728"),
        ({"training.pp": 3}, "training.cluster.nodes", "pp"),
        ({"responses.tokens": {"kind": "lognormal", "mean": 9, "high": 5}}, "responses.tokens.mean",
         "from 2 to high"),
        ({"responses": None}, "responses", "required"),
        ({"rollot": {}}, "rollot", "rollout"),
        ({"rollout.disaggregated": {}}, "rollout.disaggregated", "left out"),
        ({"critic": 5}, "critic.config", "a job is"),
        ({"critic.model": "llama3.1_70b"}, "critic", "critic.model it should be true"),
        ({"rollout.model": "llama3.1_70b"}, "rollout.model", "which trains"),
        ({"responses.prompts": 1 << 15}, "responses.prompts", "16384"),
        ({"responses.prompts": 1 << 14, "responses.group": 256}, "responses.prompts",
         "at most 524288"),
        ({"responses.tokens": 1, "responses.tokens.mean": 3}, "responses.tokens", "a mapping"),
        ({"rollout": 5, "rollout.tp": 2}, "rollout", "a mapping"),
    ],
)  # fmt: skip
def test_mistakes(overrides, key, text):
    with pytest.raises(ConfigError, match=text) as caught:
        project(**overrides)
    assert caught.value.key == key


@pytest.mark.parametrize("name", ["rollout", "responses"])
def test_sections_are_mappings(name):
    with pytest.raises(ConfigError, match=f"{name}: should be a mapping"):
        pj.project_rl({**STEP, name: 5}, overrides={f"{name}.x": 1})
    with pytest.raises(ConfigError, match="a file or a mapping"):
        pj.project_rl([STEP])


def test_overrides_reach_the_lengths():
    found = pj.project_rl(EXAMPLE, overrides={"responses.tokens.mean": 1500})
    assert found.job.responses.tokens.mean == 1500


def test_the_report_names_the_devices_of_both_sides():
    title = rl_report(apart(**{"rollout.device": "mi300x"})).title
    assert title.endswith("8 x NVIDIA H100 SXM 80GB and 8 x AMD Instinct MI300X")


def test_devices_of_a_search_are_whole_nodes():
    for gpus in (12, "16", True):
        with pytest.raises(ConfigError, match="whole nodes of 8"):
            pj.search_rl(STEP, gpus=gpus)


sys.path.insert(0, str(ROOT / "validation"))
with (ROOT / "validation" / "published_rl_steps.csv").open(encoding="utf-8") as file:
    ROWS = [*csv.DictReader(file)]


@pytest.mark.rotated
@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{r['release']}-{r['model']}-{r['gpus']}" for r in ROWS]
)
def test_recorded_steps_are_current(row):
    from published_rl_steps import step_of

    # Rerun validation/published_rl_steps.py --record and explain the change in the CHANGELOG.
    ours = pj.project_rl(step_of(row)).step_s
    assert ours == pytest.approx(float(row["projected_s"]), rel=5e-3)


def test_published_steps_are_as_far_away_as_the_page_says():
    ratios = np.array([float(row["projected_s"]) / float(row["step_s"]) for row in ROWS])
    page = (ROOT / "docs" / "rl.md").read_text(encoding="utf-8")
    assert f"{len(ROWS)} steps" in page
    assert f"median {np.median(ratios):.2f}" in page
