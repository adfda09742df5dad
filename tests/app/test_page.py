"""What the page answers, without a browser."""

import json
import re
from pathlib import Path

import pytest
import yaml
from numpy.testing import assert_allclose

import projector as pj
from projector.app.controls import DEFAULT_JOB

pytest.importorskip("dash", reason="the page needs the extra 'app'")

from projector.app.page import FILES, POLICY, Page
from projector.app.views import COLUMNS

MIXTRAL = Path(__file__).parents[2] / "examples" / "mixtral_8x22b_mi355x.yaml"


@pytest.fixture(scope="module")
def page():
    return Page(MIXTRAL)


def texts(tiles):
    return {tile.children[0].children: [part.children for part in tile.children[1:]]
            for tile in tiles}  # fmt: skip


def test_tiles_and_figures_are_those_of_the_projection(page):
    overrides = {"parallelism.pp": 8}
    answer, step = page.answer("train", overrides), pj.project_performance(
        pj.load_job(MIXTRAL, overrides)
    )  # fmt: skip
    shown = texts(answer.tiles)
    assert shown["memory"][0] == step.memory.verdict.replace("_", " ")
    assert shown["step, ms"][0] == f"{1e3 * step.iteration_time_s:,.0f}"
    assert shown["MFU"][0] == f"{step.mfu:.1%}"
    memory, terms, timeline = answer.figures
    held = sum(sum(each["y"]) for each in memory["data"])
    assert_allclose(held, sum(one.peak_bytes for one in step.memory.stages) / 2**30)
    assert_allclose(sum(terms["data"][0]["x"]), 1e3 * step.iteration_time_s)
    run = timeline["data"][0]
    assert run["z"].shape == (8, COLUMNS)
    # What is drawn as busy is what the replay says, within a column of each operation.
    times, order = step.pipeline.timeline, step.pipeline.order
    busy = (times.end_ps - times.start_ps)[: order.rank_offset[1]].sum() / 1e12
    drawn = (run["z"][0] == run["z"][0]).mean() * step.pipeline.makespan_s
    assert_allclose(drawn, busy, rtol=0.1)


def test_a_pinned_job_stands_beside(page):
    answer = page.answer("train", {"parallelism.pp": 2}, {})
    names = {each["name"] for each in answer.figures[1]["data"]}
    assert names == {"now", "pinned"}
    assert any("pinned" in text for text in texts(answer.tiles)["step, ms"])
    assert answer.notes[0].startswith("A token takes ")


def test_the_best_layout_is_that_of_the_search(page):
    told, overrides = page.best({})
    best = pj.search(MIXTRAL, top=1).best[0]
    found = pj.project_performance(pj.load_job(MIXTRAL, overrides))
    assert found.iteration_time_s == best.iteration_time_s
    assert "legal layouts" in told


def test_where_nothing_fits_the_best_layout_says_so(page):
    told, overrides = page.best({"cluster.device.hbm_gib": 2.0})
    assert "No configuration" in told
    assert overrides == {"cluster.device.hbm_gib": 2.0}


def test_files_are_those_of_the_library(page):
    overrides = {"parallelism.pp": 8, "cluster.device.hbm_gib": 400.0}
    job = pj.load_job(MIXTRAL, overrides)
    name, text = page.file("train", "yaml", overrides)
    assert name == "job.yaml"
    assert pj.load_job(yaml.safe_load(text)).parallelism == job.parallelism
    again = pj.project_performance(yaml.safe_load(text))
    assert again.scalars == pj.project_performance(job).scalars
    assert page.file("train", "primus", {})[1] == pj.emit_job(MIXTRAL, "primus").text
    assert set(FILES["train"]) == {"yaml", "megatron", "primus", "torchtitan", "deepspeed"}
    name, text = page.file("serve", "vllm", {"load.batch": 8})
    assert name == "serve_vllm.sh"
    assert "vllm serve" in text


def test_a_deployment_is_answered_as_projected():
    page = Page()
    overrides = {"load.batch": 16, "load.context": 1024}
    answer = page.answer("serve", overrides)
    result = pj.project_serving(
        DEFAULT_JOB["model"], "h100", tp=8, batch=16, context=1024, output=512
    )
    shown = texts(answer.tiles)
    assert shown["each further (TPOT), ms"][0] == f"{1e3 * result.tpot_s:,.2f}"
    assert_allclose(sum(answer.figures[1]["data"][0]["x"]), 1e3 * result.decode.time_s)
    assert len(answer.figures) == 3
    # At the knee there is a front to show.
    assert len(page.answer("serve", {}).figures) == 4


def test_a_job_that_generates_no_tokens_leaves_serving_to_another_model():
    batch = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 8192}
    job = {"model": "wan2.1_t2v_14b", "cluster": {"device": "h100"}, "training": batch}
    page = Page(job)
    assert texts(page.answer("train", {}).tiles)["MFU"]
    assert page.tabs["serve"].read({}).deployment.model.name == "Llama-3.1-70B"


@pytest.fixture
def client(page):
    return page.app.server.test_client()


def test_the_page_loads_nothing_from_elsewhere(client):
    response = client.get("/", headers={"Host": "127.0.0.1"})
    assert response.status_code == 200
    assert response.headers["Content-Security-Policy"] == POLICY
    assert not re.search(r"(src|href)=.?(https?:)?//", response.text)
    assert client.get("/", headers={"Host": "elsewhere.example"}).status_code == 400


def test_every_control_is_on_the_page_and_has_a_label(client, page):
    layout = client.get("/_dash-layout", headers={"Host": "127.0.0.1"}).json
    labels = [each for each in _every(layout) if each.get("type") == "Label"]
    controls = [control for tab in page.tabs.values() for control in tab.controls]
    assert len(labels) == len(controls) + len(page.tabs)
    assert all(control.label in json.dumps(labels) for control in controls)


def _every(node):
    if isinstance(node, list):
        for each in node:
            yield from _every(each)
    elif isinstance(node, dict):
        yield node
        for each in node.values():
            yield from _every(each)
