"""Every legal configuration of a job, ranked."""

import itertools
import json
from dataclasses import replace

import pytest
import yaml

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError, ProjectorError
from projector.report.search import command_of, search_report
from projector.report.terminal.console import render
from projector.schedule.registry import SCHEDULES
from projector.searches.candidates import FIELDS
from projector.searches.configurations import search
from projector.searches.limits import Limits

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


@pytest.mark.thorough
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


def test_overrides_turn_the_given_job_into_a_configuration():
    given = {
        "model": "llama3.1_8b", "cluster": {"device": "h100", "nodes": 1},
        "parallelism": {"pp": 2, "decoder_first_pipeline_num_layers": 14},
        "training": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 4096},
    }  # fmt: skip
    limits = Limits(recompute=("none",), micro_batch_sizes=(1,))
    found = search(given, nodes=2, top=1, limits=limits)
    assert found.cleared == {
        "cluster.nodes": 2, "parallelism.decoder_first_pipeline_num_layers": None,
    }  # fmt: skip
    for candidate in (found.configurations[0], found.configurations[-1]):
        again = pj.load_job(given, found.overrides(candidate))
        step = pj.project_performance(again)
        assert step.iteration_time_s == candidate.iteration_time_s
    page = command_of(found, found.configurations[0])
    assert "parallelism.decoder_first_pipeline_num_layers=null" in page


def test_fields_that_are_fixed_are_not_searched(found):
    job = pj.load_job(JOB, {"parallelism.tp": 2, "training.micro_batch_size": 3})
    fixed = ("parallelism.tp", "training.micro_batch_size")
    kept = search(job, top=1, limits=replace(SMALL, fixed=fixed[:1]))
    of_two = [each for each in found.configurations if each.overrides["parallelism.tp"] == 2]
    assert kept.configurations == tuple(of_two)
    job = pj.load_job(JOB, {"training.micro_batch_size": 4, "parallelism.fsdp": 2})
    other = search(job, top=1, limits=replace(SMALL, fixed=("parallelism.fsdp", fixed[1])))
    for name, value in (("parallelism.fsdp", 2), ("training.micro_batch_size", 4)):
        assert {each.overrides[name] for each in other.configurations} == {value}
    with pytest.raises(ConfigError, match="fixed must be among"):
        search(JOB, limits=Limits(fixed=("model",)))


def test_a_fixed_schedule_that_is_unknown_is_refused():
    job = pj.load_job(JOB, {"training.schedule": "zerobuble"})
    with pytest.raises(ProjectorError, match="did you mean 'zerobubble'"):
        search(job, limits=replace(SMALL, fixed=("training.schedule",)))


def test_recompute_that_is_fixed_keeps_its_modules():
    stated = {"granularity": "selective", "modules": ["mlp"]}
    job = pj.load_job(JOB, {"training.recompute": stated})
    kept = search(job, top=1, limits=replace(SMALL, fixed=("training.recompute",)))
    assert kept.best[0].job.training.recompute.modules == ("mlp",)
    assert {str(each.overrides["training.recompute"]) for each in kept.configurations} == {
        str(stated)
    }
    text = render(search_report(kept))
    assert "'training.recompute={granularity: selective, modules: [mlp]}'" in text
    assert search_report(kept).sections


@pytest.fixture(scope="module")
def job_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return str(path)


def searched(job_file, capsys, *options):
    assert run(["search", "--config", job_file, "--json", "--top", "1000", *options]) in {0, 3}
    return json.loads(capsys.readouterr().out)


def test_what_the_command_line_states_is_kept(job_file, capsys):
    options = ("tp=2", "--micro-batch-size", "2", "training.recompute=none")
    best = searched(job_file, capsys, *options)["best"]
    for each in best:
        assert each["overrides"]["parallelism.tp"] == 2
        assert each["overrides"]["training.micro_batch_size"] == 2
        assert each["overrides"]["training.recompute"] == "none"
    assert {each["overrides"]["parallelism.pp"] for each in best} >= {1, 2, 4}


def test_all_schedules_are_searched_where_all_is_asked_for(job_file, capsys):
    fixed = ("tp=1", "pp=4", "cp=1", "vpp=1", "--micro-batch-size", "1", "--allow-risk")
    few = ("zero_stage=1", "recompute=full")
    auto = searched(job_file, capsys, *fixed, *few)
    every = searched(job_file, capsys, *fixed, *few, "--pipeline-schedule-algorithm", "all")
    tried = {each["schedule"] for each in every["best"]}
    assert len(tried) > len({each["schedule"] for each in auto["best"]}) == 1
    assert tried <= set(SCHEDULES)
    assert every["best"][0]["iteration_time_ms"] <= auto["best"][0]["iteration_time_ms"]
    one = searched(job_file, capsys, *fixed, *few, "--pipeline-schedule-algorithm", "gpipe")
    assert {each["schedule"] for each in one["best"]} <= {"gpipe"}
    assert one["evaluated"]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["parallelism.dp=4"], "parallelism.dp"),
        (["recompute=full", "--recompute", "none"], "training.recompute"),
        (["training.schedule=gpipe", "--schedule", "1f1b"], "training.schedule"),
        (
            ["--pipeline-schedule-algorithm", "gpipe", "--schedule", "1f1b"],
            "training.schedule",
        ),
        (["--pipeline-schedule-algorithm", "all", "--schedule", "1f1b"], "schedule"),
        (["--pipeline-schedule-algorithm", "all", "training.schedule=1f1b"], "schedule"),
    ],
)
def test_what_would_be_ignored_is_refused(job_file, capsys, options, key):
    assert run(["search", "--config", job_file, "--json", *options]) == 2
    assert json.loads(capsys.readouterr().out)["key"] == key


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_a_table_of_nothing_has_its_columns(objective, tmp_path):
    job = pj.load_job(JOB, {"run.tokens": 1e9})
    limits = Limits(recompute=("full",), micro_batch_sizes=(1,))
    some = search(job, limits=limits, objective=objective)
    none = search(job, limits=replace(limits, headroom_gib=1e3), objective=objective)
    assert some.configurations
    assert not none.configurations
    for name, result in (("some", some), ("none", none)):
        result.to_csv(tmp_path / name)
    (head,) = (tmp_path / "none").read_text().splitlines()
    assert head == (tmp_path / "some").read_text().splitlines()[0]
    assert none.to_arrow().schema == some.to_arrow().schema
    assert tuple(some.configurations[0].overrides) == FIELDS
