"""Every legal configuration of a job, ranked."""

import itertools

import pytest

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError, ProjectorError
from projector.searches.configurations import Limits, search

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 1},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 1},
}
SMALL = Limits(recompute=("none", "full"), micro_batch_sizes=(1, 2), zero_stages=(1,))


@pytest.fixture(scope="module")
def found():
    return search(JOB, top=5, limits=SMALL)


def test_it_finds_what_trying_everything_finds(found):
    # All degrees that could be meant, without looking at what divides what.
    legal = {}
    for tp, pp, vpp, cp, mbs, recompute in itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2), (1, 2), ("none", "full")
    ):
        overrides = {
            "parallelism.tp": tp, "parallelism.pp": pp, "parallelism.vpp": vpp,
            "parallelism.cp": cp, "training.micro_batch_size": mbs, "training.recompute": recompute,
        }  # fmt: skip
        try:
            step = pj.project_performance(pj.load_job(JOB, overrides))
        except ProjectorError:
            continue
        legal[tp, pp, vpp, cp, mbs, recompute] = step
    assert found.evaluated == len(legal)
    steps = legal.values()
    fitting = [step.iteration_time_s for step in steps if step.memory.verdict == "fits"]
    assert [each.iteration_time_s for each in found.configurations] == sorted(fitting)
    assert found.best[0].iteration_time_s == min(fitting)
    roomy = [step.iteration_time_s for step in steps if step.memory.fits]
    assert found.at_risk == len(roomy) - len(fitting) > 0
    assert found.too_large == len(legal) - len(roomy)
    risky = search(JOB, top=5, limits=SMALL, allow_risk=True)
    assert [each.iteration_time_s for each in risky.configurations] == sorted(roomy)
    assert {each.verdict for each in risky.configurations} == {"fits", "at_risk"}
    counts = [(each.fitting, each.at_risk, each.too_large) for each in (found, risky)]
    assert counts[0] == counts[1]


def test_each_is_the_projection_of_its_overrides(found):
    for each in found.configurations[:: max(1, len(found.configurations) // 7)]:
        step = pj.project_performance(pj.load_job(JOB, each.overrides))
        assert step.iteration_time_s == each.iteration_time_s
        assert step.memory.peak_bytes == each.peak_bytes
        assert step.memory.headroom_bytes == each.headroom_bytes
        ends = step.memory.peak_low_bytes, step.memory.peak_high_bytes
        assert ends == (each.peak_low_bytes, each.peak_high_bytes)
        assert step.memory.verdict == each.verdict == "fits"
    assert [step.iteration_time_s for step in found.best] == [
        each.iteration_time_s for each in found.configurations[:5]
    ]


def test_nothing_beats_the_front(found):
    for each in found.pareto:
        assert not any(
            other.iteration_time_s <= each.iteration_time_s
            and other.peak_bytes <= each.peak_bytes
            and (other.iteration_time_s, other.peak_bytes)
            != (each.iteration_time_s, each.peak_bytes)
            for other in found.configurations
        )


def test_limits_are_kept():
    roomy = search(JOB, limits=Limits(headroom_gib=30.0, recompute=("full",)))
    assert roomy.configurations
    assert min(each.headroom_bytes for each in roomy.configurations) >= 30.0 * 2**30
    assert {each.overrides["training.recompute"] for each in roomy.configurations} == {"full"}
    two = {**JOB, "cluster": {"device": "h100", "nodes": 2}}
    across = search(two, limits=Limits(tp_inside_node=False, zero_stages=(1,), recompute=("none",)))
    assert max(each.overrides["parallelism.tp"] for each in across.configurations) == 16
    assert max(each.overrides["parallelism.tp"] for each in found_on(two)) == 8


def found_on(job):
    return search(job, limits=SMALL).configurations


def test_a_job_in_one_layout_is_searched_without_it():
    pinned = {
        **JOB,
        "parallelism": {"pp": 2, "decoder_last_pipeline_num_layers": 14, "dp": 4},
    }
    assert search(pinned, limits=SMALL).evaluated == search(JOB, limits=SMALL).evaluated


def test_chunks_divide_what_counts_as_a_layer():
    # 30 layers, with the embedding and the loss 32.
    ends = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    job = {**JOB, "model": {"extends": "llama3.1_8b", "num_layers": 30}}
    assert {each.overrides["parallelism.vpp"] for each in found_on(job)} == {1, 3, 5}
    counted = {**job, "parallelism": dict.fromkeys(ends, True)}
    assert {each.overrides["parallelism.vpp"] for each in found_on(counted)} == {1, 2, 4, 8}


def test_experts_are_spread_over_what_divides_them():
    job = {**JOB, "model": "mixtral_8x7b", "cluster": {"device": "h200", "nodes": 2}}
    degrees = {each.overrides["parallelism.ep"] for each in found_on(job)}
    assert {1, 2, 4, 8} >= degrees
    assert 8 in degrees


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"top": 0}, "top"),
        ({"top": True}, "top"),
        ({"limits": Limits(recompute=("some",))}, "recompute"),
        ({"limits": Limits(recompute=())}, "recompute"),
        ({"limits": Limits(schedules=("1f1c",))}, "schedules"),
        ({"limits": Limits(headroom_gib=float("nan"))}, "headroom_gib"),
        ({"nodes": 0}, "cluster.nodes"),
    ],
)
def test_mistakes(arguments, key):
    with pytest.raises(ConfigError) as caught:
        search(JOB, **arguments)
    assert caught.value.key == key


def test_the_command(tmp_path, capsys):
    import json

    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    arguments = ["search", "--config", str(path), "--recompute", "none", "--top", "2", "--quiet"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "legal configurations" in out
    assert "parallelism.tp=" in out
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [each["rank"] for each in result["best"]] == [1, 2]
    assert {each["verdict"] for each in result["best"]} == {"fits"}
    for each in result["best"]:
        assert each["peak_gib_low"] <= each["peak_gib"] <= each["peak_gib_high"]
    assert result["best"][0]["group"] == 1 <= result["within_noise"]
    assert result["fitting"] + result["at_risk"] + result["too_large"] == result["evaluated"]
    assert result["best"][0]["tokens_per_s_per_gpu"] >= result["best"][1]["tokens_per_s_per_gpu"]
    assert run([*arguments, "model=llama3.1_405b"]) == 3
    assert "NOTHING FITS" in capsys.readouterr().out
