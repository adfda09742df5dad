"""Axes of figures are in words with units, hardware as multiples of the base chip's."""

import re
from pathlib import Path

import pytest

from projector.config.load import load_job
from projector.config.space import flat_fields
from projector.projection.results import SCALARS
from projector.projection.run import RUN_SCALARS
from projector.report.figures import words
from projector.report.figures.words import (
    FIELDS,
    base_value,
    label_of,
    labels_of,
    relative_ticks,
    words_of,
)
from projector.searches.fields import SECTIONS


def sample_job():
    return load_job(
        {"model": "llama3.1_8b", "cluster": {"device": "h100", "nodes": 1},
         "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096}}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "label"),
    [
        ("cluster.device.hbm_peak_tb_per_s", "memory bandwidth, TB/s"),
        ("cluster.network.nic_gbit_per_s", "NIC bandwidth, Gbit/s"),
        (
            "cluster.device.matrix_flop_per_clk_per_cu.bf16",
            "BF16 matrix rate, FLOP per clock and compute unit",
        ),
        ("cluster.device.gemm_overhead_us", "GEMM overhead, µs"),
        ("cluster.software.allocator.pool_gib", "allocator pool, GiB"),
        ("parallelism.tp", "tensor parallel (TP)"),
        ("training.global_batch_size", "global batch, sequences"),
        ("breakdown_ms.tp_comm", "TP comm of a step, ms"),
        ("tokens_per_s_per_gpu", "speed, tokens/s/GPU"),
        (
            "cluster.device.scale_up_gb_per_s+cluster.device.scale_up_peer_gb_per_s",
            "scale-up bandwidth + scale-up to one peer, GB/s",
        ),
    ],
)
def test_fields_are_named_in_words_with_units(field, label):
    assert label_of(field) == label


def test_no_label_is_a_dotted_name_or_has_an_underscore():
    fields = [*flat_fields(sample_job()), *(each.name for each in (*SCALARS, *RUN_SCALARS))]
    labels = [label_of(field) for field in fields if not field.startswith("model.")]
    assert [label for label in labels if "_" in label] == []
    assert [label for label in labels if ".." in label or not label] == []


def test_scalars_have_the_unit_that_they_declare():
    declared = {scalar.name: scalar.unit for scalar in SCALARS if scalar.unit not in {"", "1"}}
    named = {name: words_of(name).unit for name in declared}
    assert named == declared


def test_labels_of_one_figure_differ():
    rates = [field for field in flat_fields(sample_job()) if field.startswith(SECTIONS)]
    labels = labels_of(rates)
    assert len(set(labels)) == len(rates)
    assert labels_of(["a.seq_length", "b.seq_length"]) == [
        "sequence, tokens (a.seq_length)", "sequence, tokens (b.seq_length)",
    ]  # fmt: skip
    assert FIELDS["seq_length"].label == "sequence, tokens"


def test_ticks_of_hardware_are_multiples_of_the_base_chip():
    base = sample_job().model_dump(mode="json")
    field = "cluster.device.hbm_peak_tb_per_s"
    value = base_value(base, field)
    assert value == 3.35
    ticks = relative_ticks(field, [1.675, 3.35, 6.7], value)
    assert ticks is not None
    assert ticks.texts == ["0.5\u00d7", "1\u00d7", "2\u00d7"]
    assert ticks.label == "memory bandwidth (1\u00d7 = 3.35 TB/s)"


@pytest.mark.parametrize(
    ("field", "values", "base"),
    [
        ("parallelism.tp", [1, 2], 1.0),
        ("cluster.device.hbm_gib", [80.0, "x"], 80.0),
        ("cluster.device.hbm_gib", [80.0], None),
        ("cluster.device.hbm_gib", [80.0], 0.0),
    ],
)
def test_other_axes_keep_their_values(field, values, base):
    assert relative_ticks(field, values, base) is None


BARE = {"s", "ms", "us", "\N{MICRO SIGN}s", "%", "MHz", "GB/s", "GiB", "TFLOP/s", "cores", "days"}


def test_no_axis_is_labelled_with_a_bare_unit():
    report = Path(words.__file__).parents[1]
    sources = list(report.glob("**/*.py"))
    assert len(sources) > 30
    pattern = re.compile(r'(?:set_[xy]label\(|sup[xy]label\(|_layout\(|fig\.label\(\w+, )f?"(.*?)"')
    labels = [found for path in sources for found in pattern.findall(path.read_text("utf-8"))]
    lines = [line for path in sources for line in path.read_text("utf-8").splitlines()]
    texts = (re.findall(r'"(.*?)"', line) for line in lines if ".label(" in line)
    labels += [text for found in texts for text in found]
    assert len(labels) > 30
    assert [label for label in labels if label in BARE] == []


def test_a_base_may_lack_a_field():
    assert base_value(None, "cluster.nodes") is None
    assert base_value({"cluster": {"nodes": True}}, "cluster.nodes") is None
    assert base_value({"a": {"b": {"value": 2}}}, "a.b") == 2.0
