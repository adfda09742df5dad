import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import projector
from projector.envelope import flatten, to_json
from projector.report.search import search_report
from projector.report.terminal.compare import Comparison, compare_report
from projector.report.terminal.console import render
from projector.report.terminal.grid import count, milliseconds, plain
from projector.report.terminal.inventory import device_list, device_report, model_list, model_report
from projector.report.terminal.step import (
    both_report,
    fold,
    memory_report,
    performance_report,
)
from projector.report.terminal.suggestions import MAX_CANDIDATES, MAX_SHOWN, suggest
from projector.searches.configurations import search
from projector.searches.limits import Limits

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = [
    path
    for path in sorted(EXAMPLES.glob("*.yaml"))
    if not path.name.startswith(("space_", "serve_", "rl_"))
]
WIDTHS = [60, 80, 100, 140]


@pytest.fixture(scope="module")
def results():
    return {path.stem: projector.project_performance(path) for path in JOBS}


def numbers(text):
    return [float(each.replace(",", "")) for each in re.findall(r"[-+]?\d[\d,]*(?:\.\d+)?", text)]


@pytest.mark.rotated
@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut(results, width):
    for result in results.values():
        parts = both_report(result, suggest(result))
        text = render(*parts, width=width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        for stage in (result.memory.stages[0], result.memory.stages[-1]):
            assert f"{stage.peak_bytes / 2**30:,.2f}" in text
        for seconds in result.breakdown_s.values():
            assert not seconds or milliseconds(seconds) in text
        for entry in list(result.communication.values())[:3]:
            assert f"{entry.bytes / 1e9:,.2f}" in text


@pytest.mark.rotated
@pytest.mark.parametrize("width", WIDTHS)
def test_other_reports_keep_to_the_width(results, width):
    from projector.config import resources
    from projector.config.device_file import load_device
    from projector.config.model_file import load_model
    from projector.operations.counts import count_architecture

    first, second, *_ = results.values()
    models = {name: load_model(name) for name in resources.shipped("models")}
    devices = {name: load_device(name) for name in resources.shipped("hardware")}
    for parts in (
        compare_report(Comparison(first, second)),
        model_list(models),
        model_report(models["deepseek_v3"], count_architecture(models["deepseek_v3"])),
        device_list(devices),
        device_report(devices["mi355x"]),
    ):
        text = render(*parts, width=width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("allow_risk", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_ranked_configurations_show_their_memory_at_every_width(width, allow_risk):
    job = {
        "model": "llama3.1_8b",
        "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 1},
    }
    limits = Limits(recompute=("none",), allow_risk=allow_risk)
    found = search(job, top=3, limits=limits)
    text = render(search_report(found), width=width)
    assert ("risk" in text.split()) == allow_risk
    for step in found.best:
        for size in (step.memory.peak_bytes, step.memory.peak_high_bytes):
            assert f"{size / 2**30:,.2f}" in text


def test_no_column_of_the_models_is_cut():
    from projector.config.model_file import load_model

    text = render(*model_list({"deepseek_v3": load_model("deepseek_v3")}), width=80)
    assert "vocab\n" in text
    assert "129,280" in text


def test_a_performance_report_fits_one_screen(results):
    for result in results.values():
        text = render(*performance_report(result, suggest(result)), width=100)
        assert len(text.splitlines()) <= 56


def test_breakdown_adds_up_to_its_total(results):
    for result in results.values():
        text = render(*performance_report(result), width=100)
        rows = text.split("Time of one step")[1].split("\n\n")[0].splitlines()[2:]
        values = [numbers(row)[-2] for row in rows]
        assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.1 * len(values))
        shares = [numbers(row)[-1] for row in rows]
        assert shares[-1] == 100.0


def test_a_report_is_plain_where_the_output_is_no_terminal(results):
    result = results["mixtral_8x22b_mi355x"]
    assert "\x1b" not in render(*performance_report(result))


def test_the_verdict_is_the_result(results):
    for result in results.values():
        text = render(*memory_report(result.memory))
        memory = result.memory
        assert f"{memory.verdict.replace('_', ' ').upper()}  peak" in text
        assert (" free" in text) is memory.fits


def test_every_value_that_was_filled_in_is_shown_or_counted(results):
    for result in results.values():
        text = render(*performance_report(result, defaults=True), width=100)
        filled = text.split("Filled in")[1]
        left_out = numbers(filled.splitlines()[0])
        # In a group, only the first entry names the group.
        named = filled.split()
        for place, entry in enumerate(named):
            if entry.startswith("."):
                group = named[place - 1].partition("=")[0].rpartition(".")[0]
                named[place] = group + entry
        shown = [
            key
            for key, value in flatten(result.provenance.defaults).items()
            if f"{key.partition('.')[2]}={plain(value)}" in named
        ]
        hidden = int(left_out[0]) if left_out else 0
        assert len(shown) + hidden == len(flatten(result.provenance.defaults))
        for key in result.provenance.derived:
            assert key in filled.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("model", "ep", "field", "shown"),
    [
        ("flux.1_dev", 1, "cross_entropy_fusion", False),
        ("flux.1_dev", 1, "fused_loss", False),
        ("llama3.1_8b", 1, "cross_entropy_fusion", True),
        ("llama3.1_8b", 1, "fused_loss", True),
        ("llama3.1_8b", 1, "layer_spread", False),
        ("mixtral_8x7b", 1, "layer_spread", False),
        ("mixtral_8x7b", 8, "layer_spread", True),
    ],
)
def test_defaults_without_effect_are_only_counted(model, ep, field, shown):
    job = {
        "model": model,
        "parallelism": {"ep": ep},
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096},
        "cluster": {"device": "h100"},
    }
    text = render(*performance_report(projector.project_performance(job), defaults=True), width=100)
    assert (field in text.split("Filled in")[1]) is shown


def test_what_was_filled_in_is_one_line(results):
    for result in results.values():
        _, filled = render(*performance_report(result), width=100).split("Filled in")
        assert len(filled.strip().splitlines()) == 1
        assert f"{len(flatten(result.provenance.defaults))} defaults; --defaults lists" in filled


def test_equal_neighbours_are_folded(results):
    stages = results["llama3.1_405b_h100"].memory.stages
    one = stages[1]
    rows = [replace(one, stage=index) for index in range(12)]
    assert [(a, b) for a, b, _ in fold(rows, peak_stage=5)] == [
        (0, 0), (1, 4), (5, 5), (6, 10), (11, 11)
    ]  # fmt: skip
    assert len(fold(rows[:8], peak_stage=5)) == 8
    different = [*rows[:3], replace(one, stage=3, weights_bytes=2**40), *rows[4:]]
    assert [(a, b) for a, b, _ in fold(different, 0)] == [
        (0, 0), (1, 2), (3, 3), (4, 10), (11, 11)
    ]  # fmt: skip


def test_suggestions_help_and_say_what_they_give(results):
    for path in JOBS:
        result = results[path.stem]
        found = suggest(result)
        assert len(found) <= MAX_SHOWN <= MAX_CANDIDATES
        for each in found:
            changed = projector.project_performance(projector.load_job(path, each.overrides))
            speed = changed.tokens_per_s_per_gpu / result.tokens_per_s_per_gpu - 1.0
            assert each.speed == pytest.approx(speed)
            assert each.verdict == changed.memory.verdict
            if result.memory.verdict == "fits":
                assert each.fits
                assert each.speed >= 0.01
            else:
                assert each.peak_bytes < 0


def test_a_suggestion_can_be_typed(results):
    from projector.config.load import parse_override

    result = results["mixtral_8x22b_seed_sample"]
    for each in suggest(result):
        overrides = dict(parse_override(text) for text in shlex.split(each.change))
        job = projector.load_job(EXAMPLES / "mixtral_8x22b_seed_sample.yaml", overrides)
        assert projector.project_memory(job).verdict == each.verdict


def test_recompute_that_is_not_needed_is_named(results):
    roomy = {"cluster.device": "mi355x"}
    job = projector.load_job(EXAMPLES / "llama3.1_70b_fsdp_mi325x.yaml", roomy)
    result = projector.project_performance(job, target_nodes=8)
    assert "training.recompute" in "".join(each.change for each in suggest(result))


def test_comparing_settings(results):
    first = results["mixtral_8x22b_mi355x"]
    other = projector.project_performance(
        projector.load_job(first.job, {"cluster.device": "h100", "cluster.network": "hgx_h100"})
    )
    comparison = Comparison(first, other)
    assert "cluster.device.name" in comparison.settings
    assert "training.seq_length" not in comparison.settings
    text = render(*compare_report(comparison))
    assert "cluster.device.compute_units" not in text
    assert "--json lists them" in text
    same = Comparison(first, first)
    assert same.settings == {}
    assert all(change.difference == 0 for change in same.breakdown_ms.values())


def test_json_never_holds_nan():
    assert to_json({"a": 0.1}) == '{\n  "a": 0.1\n}\n'
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            to_json({"a": value})


def test_numbers_are_written_for_people():
    assert count(140_845_350_912) == "140.8 B"
    assert count(999) == "999"
    assert milliseconds(1.23456) == "1,234.6"
    assert milliseconds(0.0012345) == "1.234"
    assert plain((1, None, True)) == "[1,none,true]"
