"""A run that does what the models expect is matched whole, however its layers are cut."""

import math
from functools import partial

import pytest
from runs_of_jobs import SMALL_LLAMA, apart, run_of

from projector.config.load import load_job
from projector.validate.traces.compare import Compared
from projector.validate.traces.expected import expect
from projector.validate.traces.products import label_of


@pytest.fixture(scope="module")
def job():
    return load_job(SMALL_LLAMA)


@pytest.fixture(scope="module")
def expected(job):
    return expect(job)


@pytest.mark.parametrize("named", [True, False])
def test_a_run_as_expected_is_matched_whole(job, expected, named):
    found = Compared(run_of(expected, named=named), job).result()
    assert found.only_first == ()
    assert found.only_second == ()
    assert found.matched_first == found.matched_second == 1.0
    for each in found.operations:
        assert each.slowdown == pytest.approx(1.0, rel=2e-3), each


def test_products_cut_apart_are_one_layer(job, expected):
    found = Compared(run_of(expected, products=partial(apart, job=job)), job).result()
    assert found.matched_second == 1.0
    for each in found.operations:
        assert each.slowdown == pytest.approx(1.0, rel=2e-3), each
        for factor in each.factors:
            assert factor.value == pytest.approx(1.0, rel=2e-3), each


def test_a_known_factor_is_found(job, expected):
    slow = {"mlp.fc1": 1.5, "attention.core": 0.5}
    run = run_of(expected, slow=lambda row: slow.get(row.name.label, 1.0), iterations=2)
    found = Compared(run, job).result()
    for each in found.operations:
        wanted = slow.get(each.operation, 1.0)
        assert each.slowdown == pytest.approx(wanted, rel=2e-3)
        assert math.prod(f.value for f in each.factors) == pytest.approx(each.slowdown, rel=1e-15)
    assert {each.operation for each in found.operations[:5]} == {"mlp.fc1", "attention.core"}


def test_more_microbatches_are_a_count(job, expected):
    found = Compared(run_of(expected, microbatches=4), job).result()
    assert found.matched_second == 1.0
    for each in found.operations:
        if each.kind == "gemm":
            count = {factor.name: factor.value for factor in each.factors}["count"]
            assert count == pytest.approx(each.runs / each.expected_runs)
            assert each.because.name == "count"


RECOMPUTES = {**SMALL_LLAMA["training"], "recompute": "full"}
EXPERTS = {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 256}
OTHERS = {
    "recomputed": ({"training": RECOMPUTES}, 1.0),
    "tensor-parallel": ({"parallelism": {"tp": 4}}, 1.0),
    "sharded": ({"parallelism": {"fsdp": 2}}, 1.0),
    # Between attention and experts more operations stand than names of kernels tell apart.
    "experts": (
        {"model": {**SMALL_LLAMA["model"], "moe": EXPERTS}, "parallelism": {"ep": 4}}, 0.9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts(name):
    sections, least = OTHERS[name]
    job = load_job({**SMALL_LLAMA, **sections})
    found = Compared(run_of(expect(job)), job).result()
    assert found.matched_second >= least
    measured = sum(each.pair.measured_s for each in found.operations)
    everything = measured + sum(each.time_s for each in found.only_second)
    assert found.matched_second == pytest.approx(measured / everything)
    for each in found.operations:
        # Three small all-reduces of the loss are one here.
        if each.operation != "head.tp.all_reduce":
            assert each.slowdown == pytest.approx(1.0, rel=5e-3), each


def test_the_sum_of_tied_embeddings_is_known():
    tied = {**SMALL_LLAMA["model"], "tied_embeddings": True}
    job = load_job({**SMALL_LLAMA, "model": tied, "parallelism": {"pp": 2}})
    found = Compared(run_of(expect(job)), job).result()
    assert found.matched_second == 1.0
    (tied_sum,) = (each for each in found.operations if each.operation == "dp.tied_embeddings")
    assert tied_sum.slowdown == pytest.approx(1.0, rel=5e-3)


def test_longer_sequences_are_a_shape(job, expected):
    longer = load_job({**SMALL_LLAMA, "training": {**SMALL_LLAMA["training"], "seq_length": 1024}})
    found = Compared(run_of(expected), longer).result()
    assert found.tokens == 2.0
    assert any("tokens" in text for text in found.warnings)
    for each in found.operations:
        if each.kind == "gemm":
            factors = {factor.name: factor.value for factor in each.factors}
            assert factors["shape"] == pytest.approx(2.0), each
            assert factors["count"] == pytest.approx(1.0), each


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("layers.3.norm1", "attention.norm"), ("layers.3.norm2", "mlp.norm"),
        ("layers.3.mlp.gate", "mlp.fc1"), ("layers.3.mlp.up", "mlp.fc1"),
        ("layers.3.mlp.down", "mlp.fc2"), ("nn.Module: down", "mlp.fc2"),
    ],
)  # fmt: skip
def test_names_of_a_plain_model_are_known(name, label):
    labels = ("attention.norm", "mlp.norm", "mlp.fc1", "mlp.fc2")
    assert label_of(name, labels) == label


def test_a_gate_is_the_router_where_there_are_experts():
    labels = ("mlp.fc1", "mlp.fc2", "moe.router")
    assert label_of("layers.9.mlp.gate", labels) == "moe.router"
    assert label_of("layers.9.mlp.gate_proj", labels) == "mlp.fc1"
