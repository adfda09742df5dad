"""Where nothing fits: the closest layout, the least hosts that would do, and what is suggested."""

import json
from typing import Any

import pytest
import yaml

from projector.cli.main import run
from projector.config.load import load_job
from projector.projection.api import project_memory, project_performance
from projector.projection.bands import DOES_NOT_FIT, FITS
from projector.report.search import search_report, write_search_page
from projector.report.terminal.console import render
from projector.report.terminal.step import memory_report, performance_report
from projector.report.terminal.suggestions import suggest
from projector.searches.configurations import fitting_overrides, search
from projector.searches.limits import Limits
from projector.searches.result import MOST_GPUS, least_nodes


def job_of(model: str, nodes: int, batch: int = 64) -> dict[str, Any]:
    return {
        "model": model,
        "training": {"micro_batch_size": 1, "global_batch_size": batch, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": nodes},
    }


TOO_LARGE = job_of("mixtral_8x22b", 1)


@pytest.fixture(scope="module")
def nothing() -> Any:
    return search(TOO_LARGE, top=1)


def test_the_closest_needs_least_memory(nothing: Any) -> None:
    assert nothing.best == ()
    closest = load_job(TOO_LARGE, nothing.closest.overrides)
    memory = project_memory(closest)
    assert memory.peak_bytes == nothing.closest.peak_bytes
    assert memory.verdict == DOES_NOT_FIT
    default = project_memory(TOO_LARGE)
    assert memory.peak_high_bytes < default.peak_high_bytes


def test_the_least_hosts_do_and_half_of_them_do_not(nothing: Any) -> None:
    fits = project_memory(load_job(TOO_LARGE, nothing.least_overrides))
    assert fits.verdict == FITS
    assert fits.job.cluster.nodes == nothing.least.nodes
    assert nothing.least.gpus == 8 * nothing.least.nodes
    fewer = search(TOO_LARGE, nodes=nothing.least.nodes // 2, top=1)
    assert fewer.best == ()
    assert fewer.least.nodes == nothing.least.nodes


def test_reports_json_and_page_say_so(nothing: Any, tmp_path: Any) -> None:
    page = tmp_path / "search.html"
    write_search_page(nothing, page)
    for text in (render(search_report(nothing), width=200), page.read_text(encoding="utf-8")):
        assert f"{nothing.least.gpus} GPUs on {nothing.least.nodes} hosts would do" in text
        assert f"cluster.nodes={nothing.least.nodes}" in text
        assert "The closest has a peak of" in text
    keys = nothing.to_dict()
    assert keys["least_nodes"] == nothing.least.nodes
    assert keys["least_gpus"] == nothing.least.gpus
    assert keys["closest"]["verdict"] == DOES_NOT_FIT
    assert project_memory(load_job(TOO_LARGE, keys["least_overrides"])).verdict == FITS


def test_a_search_that_finds_something_says_nothing_of_it() -> None:
    result = search(job_of("llama3.2_1b", 1), top=1)
    assert (result.closest, result.least) == (None, None)
    assert "closest" not in result.to_dict()


def test_limits_hold_on_more_hosts_too() -> None:
    limits = Limits(headroom_gib=60.0, recompute=("none",), zero_stages=(1,))
    result = search(job_of("llama3.1_8b", 1), top=1, limits=limits)
    assert result.best == ()
    overrides = result.least_overrides
    assert overrides["training.recompute"] == "none"
    assert result.least.configuration.headroom_bytes >= 60.0 * 2**30


def test_hosts_are_not_doubled_for_ever() -> None:
    asked: list[int] = []

    def never(job: Any) -> list[Any]:
        asked.append(job.cluster.gpus)
        return []

    assert least_nodes(load_job(TOO_LARGE), never) is None
    assert asked == sorted(asked)
    assert max(asked) <= MOST_GPUS
    assert len(asked) <= 10


def test_the_least_is_looked_for_between_two_doublings() -> None:
    def from_eleven(job: Any) -> list[Any]:
        return ["layout"] if job.cluster.nodes >= 11 else []

    least = least_nodes(load_job(TOO_LARGE), from_eleven)
    assert least is not None
    assert least.nodes == 11


def test_a_layout_that_fits_is_suggested_where_no_change_does() -> None:
    result = project_performance(job_of("mixtral_8x22b", 4))
    assert result.memory.verdict == DOES_NOT_FIT
    first = suggest(result)[0]
    assert first.fits
    assert project_memory(load_job(result.job, first.overrides)).verdict == FITS
    # Nothing that the job has already.
    assert "parallelism.vpp" not in first.overrides or first.overrides["parallelism.vpp"] != 1


def test_a_suggestion_takes_back_what_the_job_states() -> None:
    stated = {**TOO_LARGE, "parallelism": {"dp": 8}}
    overrides = fitting_overrides(load_job(stated))
    assert overrides is not None
    assert overrides["parallelism.dp"] is None
    first = suggest(project_performance(stated))[0]
    assert "parallelism.dp=null" in first.change
    assert project_memory(load_job(stated, overrides)).verdict == FITS


def test_search_is_among_what_is_suggested() -> None:
    result = project_performance(TOO_LARGE)
    for parts in (performance_report(result, suggest(result)), memory_report(result.memory)):
        assert "projector search" in render(*parts, width=120)
    fits = project_performance(job_of("llama3.2_1b", 1))
    assert "projector search" not in render(*performance_report(fits, suggest(fits)), width=120)


def test_init_writes_a_job_that_fits(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--model", "llama3.1_70b"], ["--model", "mixtral_8x22b", "--nodes", "16"]):
        path = tmp_path / f"{arguments[1]}.yaml"
        command = ["init", "--device", "h100", "--output", str(path), *arguments]
        assert run(command) == 0
        assert "warning" not in capsys.readouterr().err
        assert project_memory(path).verdict == FITS
    assert yaml.safe_load(path.read_text())["cluster"]["nodes"] == 16


def test_init_says_so_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--model", "llama3.1_405b", "--device", "h100", "--nodes", "2"]) == 0
    out, err = capsys.readouterr()
    assert "warning: llama3.1_405b on 16 GPUs fits in no layout; --nodes" in err
    assert out.startswith("# llama3.1_405b on 16 GPUs fits in no layout")
    assert load_job(yaml.safe_load(out)).cluster.nodes == 2
    run(["init", "--model", "llama3.1_405b", "--device", "h100", "--nodes", "2", "--json"])
    assert "would do" in json.loads(capsys.readouterr().out)["warnings"][0]
