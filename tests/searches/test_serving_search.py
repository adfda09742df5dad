import json

import numpy as np
import pytest

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError
from projector.searches import serving
from projector.searches.serving import STEP_TOKENS
from projector.serving.api import project_case, read_case
from serving.steps import prefill_time_s

LOAD = {"context": 1024, "output": 128}
DRAFT = {"tokens": 3, "acceptance": 0.8, "draft_share": 0.1}


def searched(model="llama3.1_8b", device="h100", **words):
    return pj.search_serving(model, device, **{**LOAD, "gpus": 4, **words})


def served(found):
    """Return tokens a second of the first; 0 where nothing does."""
    return max((each.tokens_per_s for each in found.configurations), default=0.0)


def projected(choice, model, device, **more):
    """Project a choice anew, from what the search says."""
    load = {f"load.{name}": value for name, value in LOAD.items()}
    words = {"model": model, "device": device, **load, **choice.overrides, **more}
    return project_case(read_case(None, words))


def test_the_first_is_what_serve_projects():
    found = searched(device=["h100", "mi300x"], dtype=["bf16", "fp8"], ttft_ms=400.0)
    for place in (0, len(found.configurations) // 2, -1):
        choice = found.configurations[place]
        names = {"NVIDIA H100 SXM 80GB": "h100", "AMD Instinct MI300X": "mi300x"}
        device = names[choice.deployment.cluster.device.name]
        alone = projected(choice, "llama3.1_8b", device)
        assert alone.ttft_s == choice.ttft_s
        assert 1.0 / alone.tokens_per_s_per_user == choice.tpot_s
        assert alone.fits
        if not choice.prefill_replicas:
            rate = choice.units * alone.tokens_per_s_per_gpu * alone.gpus
            assert choice.tokens_per_s == pytest.approx(rate, rel=1e-12)
    assert found.best.ttft_s == found.configurations[0].ttft_s


def test_pairs_of_sides_are_balanced():
    found = searched("llama3.1_70b", gpus=8)
    choice = next(each for each in found.configurations if each.prefill_replicas)
    times = projected(choice, "llama3.1_70b", "h100").disaggregated
    rate = times.tokens_per_s_per_gpu(choice.prefill_replicas, choice.decode_replicas)
    # There the first token of a request takes no decode step.
    steps = LOAD["output"] / (LOAD["output"] - 1)
    low, high = sorted((float(rate[0]), float(rate[0]) / steps))
    per_gpu = choice.tokens_per_s / choice.gpus
    assert low * (1 - 1e-9) <= per_gpu <= high * (1 + 1e-9)


@pytest.mark.parametrize("limit", ["ttft_ms", "tpot_ms"])
def test_a_looser_target_never_serves_less(limit):
    values = {"ttft_ms": (15, 20, 30, 60, 200), "tpot_ms": (3, 4, 6, 10, 30)}[limit]
    rates = [served(searched(**{limit: value})) for value in values]
    assert np.all(np.diff(rates) >= 0.0)
    assert rates[-1] > 0.0


def test_more_devices_never_serve_fewer():
    for model, counts in (("qwen3_30b_a3b", (1, 2, 3, 4, 6, 8)), ("llama3.1_8b", (1, 2, 4))):
        rates = [served(searched(model, gpus=count, tpot_ms=8.0)) for count in counts]
        assert np.all(np.diff(rates) >= -1e-9 * np.array(rates[1:]))
        assert rates[-1] > 0.0


def test_what_is_stated_is_kept():
    found = searched(tp=2, batch=8, max_step_tokens=4096)
    assert {each.deployment.tp for each in found.configurations} == {2}
    assert {each.traffic.batch for each in found.configurations} == {8}
    assert {each.deployment.max_step_tokens for each in found.configurations} == {4096}


def test_types_without_units_are_left_out():
    found = searched(device="mi210", dtype=["bf16", "fp8"])
    assert {each.deployment.dtype for each in found.configurations} == {"bf16"}


def test_drafts_are_tried_with_and_without():
    found = searched(speculative=DRAFT)
    assert {
        each.deployment.speculative and each.deployment.speculative.tokens
        for each in found.configurations
    } == {None, 1, 2, 3}


def test_long_prompts_go_through_in_chunks():
    found = pj.search_serving("llama3.1_8b", "h100", gpus=1, context=6000, output=16)
    limits = {part.grid.chunk.max() for part in found.points}
    assert limits <= {0, *STEP_TOKENS}
    whole = pj.project_serving("llama3.1_8b", "h100", batch=1, tp=1, context=6000)
    cut = {"overrides": {"load.chunk_tokens": 2048}}
    parts = pj.project_serving("llama3.1_8b", "h100", batch=1, tp=1, context=6000, **cut)
    assert parts.ttft_s == pytest.approx(prefill_time_s(parts.deployment, 1, 6000, 2048))
    assert parts.ttft_s > whole.ttft_s
    assert sum(parts.prefill.breakdown_s.values()) == pytest.approx(parts.ttft_s)
    assert parts.prefill.new_tokens == 6000


def test_cost_is_the_rent_of_what_is_used_and_idle():
    found = searched(objective="cost", usd_per_gpu_hour=3.0)
    first = found.configurations[0]
    assert first.value == pytest.approx(3.0 * 4 / (3600.0 * first.tokens_per_s) * 1e6)
    assert first.tokens_per_s == served(searched())
    listed = searched(objective="cost", usd_per_gpu_hour="listed", device=["h100", "mi300x"])
    assert set(listed.goal.prices.values()) == {2.95, 1.99}


def test_devices_for_a_rate():
    words = {"objective": "gpus", "rate_per_s": 60.0, "ttft_ms": 200.0, "requests": 200}
    found = searched(**words)
    first = found.configurations[0]
    assert first.value == first.gpus == min(each.gpus for each in found.configurations)
    assert first.count == first.gpus
    assert first.tokens_per_s / LOAD["output"] >= 60.0
    more = searched(**{**words, "rate_per_s": 5000.0})
    assert not more.configurations
    assert more.least.gpus > 4


def test_what_would_do_does():
    tight = {"ttft_ms": 15.0, "tpot_ms": 2.0}
    found = searched(**tight)
    assert not found.configurations
    assert found.relaxed
    for each in found.relaxed:
        assert searched(**{**tight, **{name: 1.001 * value for name, value in each.items()}}).within
    large = pj.search_serving("llama3.1_405b", "h100", gpus=4, **LOAD)
    assert large.fitting == 0
    assert pj.search_serving("llama3.1_405b", "h100", gpus=large.least.gpus, **LOAD).within


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ({"objective": "speed"}, "objective"),
        ({"objective": "gpus"}, "objective"),
        ({"objective": "cost"}, "load.usd_per_gpu_hour"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": [4, True]}, "gpus"),
        ({"gpus": 1, "tp": 2}, "tp"),
        ({"top": 0}, "top"),
        ({"ttft_ms": -1.0}, "load.ttft_ms"),
        ({"dtype": ["bf16", "fp9"]}, "dtype"),
        ({"device": ["h100", "h999"]}, "cluster.device"),
        ({"usd_per_gpu_hour": "many"}, "load.usd_per_gpu_hour"),
        ({"overrides": {"cluster.nodes": 1}, "gpus": 16}, "gpus"),
    ],
)
def test_mistakes_name_their_key(words, key):
    with pytest.raises(ConfigError) as caught:
        searched(**words)
    assert caught.value.key == key


def test_parts_of_a_search_are_the_search(monkeypatch):
    words = {"device": ["h100", "mi300x"], "gpus": [4, 8], "speculative": DRAFT, "tpot_ms": 20.0}
    seen = []
    whole = searched(**words, progress=lambda *told: seen.append(told))
    assert whole.left_out == 0
    assert seen[-1] == (seen[-1][1], seen[-1][1], whole.evaluated)
    monkeypatch.setattr(serving, "KINDS", 3)
    parts = searched(**words)
    assert len(parts.points) > len(whole.points)
    assert parts.evaluated == whole.evaluated
    values = [[each.value for each in found.configurations] for found in (whole, parts)]
    assert values[0] == values[1]
    assert parts.configurations[0].overrides == whole.configurations[0].overrides
    monkeypatch.setattr(serving, "KINDS", 1)
    some = searched(**words, most_seconds=1e-9)
    assert some.left_out > 0
    assert len(some.points) == 1
    assert len(some.configurations) == 1


def test_the_command_stops(capsys, monkeypatch):
    monkeypatch.setattr(serving, "KINDS", 1)
    words = ["serve", "--search", "--model", "llama3.1_8b", "--device", "h100", "--gpus", "2,4"]
    words += ["--output", "64", "--most-seconds", "1e-9"]
    assert run(words) == 4
    out = " ".join(capsys.readouterr().out.split())
    assert "Serving Llama-3.1-8B on 2 or 4 GPUs" in out
    assert "STOPPED, out of time: at least" in out
    assert run([*words, "--tpot-ms", "0.01"]) == 4
    out = " ".join(capsys.readouterr().out.split())
    assert "More may do" in out
    assert "would do, the least" not in out
    assert run([*words[:-1], "0"]) == 2
    assert "most_seconds must be a number of seconds above 0" in capsys.readouterr().err


def test_the_command_ranks_draws_and_writes_a_page(capsys, tmp_path):
    figure, page = tmp_path / "front.svg", tmp_path / "front.html"
    words = ["serve", "--search", "--model", "llama3.1_8b", "--device", "h100,mi300x"]
    words += ["--gpus", "2,4", "--context", "1024", "--output", "128", "--max-tpot-ms", "20"]
    assert run([*words, "--plot", str(figure), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "Ranked by throughput of a device" in out
    assert max(map(len, out.splitlines()[:10])) <= 120
    assert figure.read_text().startswith("<?xml")
    assert "MI300X" in page.read_text()
    assert run([*words, "--json", "--top", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["rank"] for each in found["best"]] == [1, 2, 3]
    assert found["best"][0]["group"] == 1
    assert found["projection"]["fits"]
    assert run([*words[:-1], "0.01"]) == 3
    assert "NOTHING KEEPS WHAT IS ASKED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--search", "--gpus", "8,x"], "as 8,16"),
        (["--search", "--front"], "leave out --front"),
        (["--top", "3"], "needs --search"),
        (["--gpus", "8,16", "--front"], "belong to a search"),
        (["--max-tpot-ms", "30"], "or search"),
    ],
)
def test_words_of_a_search_are_refused_elsewhere(capsys, words, text):
    assert run(["serve", "--model", "llama3.1_8b", "--device", "h100", *words]) == 2
    assert text in capsys.readouterr().err
