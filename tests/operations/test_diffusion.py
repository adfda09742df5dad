"""Layers of diffusion transformers, against counts in plain numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.errors import ConfigError, ProjectorError, UnsupportedError
from projector.lower.batch import JobBatch, job_columns
from projector.lower.workloads import build_workloads, lay_out
from projector.measure.programs import benchmark_record
from projector.operations.counts import count_model
from projector.operations.emit import emit_operations
from projector.operations.table import ATTENTION, FORWARD
from projector.projection.api import emit_job, project_jobs, project_performance
from projector.serving.deployment import Deployment
from projector.validate.traces.compare import Compared

HIDDEN, FFN, HEADS, TEXT = 1024, 4096, 8, 256

MODEL = {
    "num_layers": 1, "hidden_size": HIDDEN, "ffn_hidden_size": FFN, "num_attention_heads": HEADS,
    "activation": "gelu", "attention_bias": "qkv+out", "mlp_bias": True, "qk_norm": "head",
    "normalization": "layernorm",
    "diffusion": {"latent_size": 64, "text_tokens": TEXT, "text_size": 4096, "pooled_size": 768},
}  # fmt: skip

KINDS = ("double_stream", "single_stream", "dit")


def job_of(*kinds, seq=1024, micro=2, model=None, training=None, **split):
    gpus = split.get("tp", 1) * split.get("cp", 1) * split.get("pp", 1)
    return load_job(
        {
            "model": {**MODEL, "num_layers": len(kinds), "layer_types": kinds, **(model or {})},
            "parallelism": split,
            "training": {
                "micro_batch_size": micro, "global_batch_size": micro, "seq_length": seq,
                **(training or {}),
            },
            "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": gpus},
        }
    )  # fmt: skip


def table_of(job):
    batch = JobBatch.of([job])
    return emit_operations(build_workloads(batch, job_columns(batch), lay_out(batch)).rows)


def forward_flop(job):
    table = table_of(job)
    return float(table.flop[table.phase == FORWARD].sum())


def flop_of(kind, seq, micro):
    """Count the products of a layer and of both ends, forward."""
    hidden, ffn = HIDDEN, FFN
    linear = 4 * hidden * hidden + 2 * hidden * ffn
    pairs = 4 * seq * seq * hidden
    latents = seq if kind == "dit" else seq - TEXT
    vectors = {"double_stream": 12, "single_stream": 3, "dit": 6}[kind]
    layer = 2 * seq * linear + pairs + 2 * vectors * hidden * hidden
    if kind == "dit":
        layer += 2 * (2 * seq + 2 * TEXT) * hidden * hidden + 4 * seq * TEXT * hidden
    ends = 2 * latents * 2 * 64 * hidden + 2 * TEXT * 4096 * hidden
    ends += 2 * hidden * (256 + hidden + 768 + hidden) + 2 * 2 * hidden * hidden
    return micro * (layer + ends)


@given(
    kind=st.sampled_from(KINDS),
    seq=st.sampled_from([512, 1024, 4096]),
    micro=st.sampled_from([1, 2, 8]),
)
def test_products_are_those_of_the_layers(kind, seq, micro):
    expected = flop_of(kind, seq, micro)
    assert forward_flop(job_of(kind, seq=seq, micro=micro)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_and_context_parallelism_divide_layers(kind):
    whole, two = job_of(kind), job_of(kind, "single_stream" if kind != "dit" else "dit")
    layer = forward_flop(two) - forward_flop(whole)
    for split in ({"tp": 2}, {"cp": 2}, {"tp": 2, "cp": 2}):
        ranks = split.get("tp", 1) * split.get("cp", 1)
        parts = [forward_flop(job_of(*job.model.layer_kinds, **split)) for job in (two, whole)]
        # Each rank of context parallelism has the modulation, and all of the text that latents
        # attend to.
        assert layer / ranks <= (parts[0] - parts[1]) * (1 + 1e-12) <= 1.2 * layer / ranks


@pytest.mark.parametrize("kind", KINDS)
def test_all_tokens_see_each_other(kind):
    table = table_of(job_of(kind))
    attention = table.kind == ATTENTION
    assert not table.causal[attention].any()
    seen = {int(keys) for keys in table.n[attention]}
    assert seen == ({1024, TEXT} if kind == "dit" else {1024})


def test_modulation_sees_a_sample_and_not_its_tokens():
    table = table_of(job_of("double_stream", micro=4))
    labels = np.array(table.labels)[table.label]
    of_latents = (labels == "modulation") & (table.phase == FORWARD)
    assert set(table.m[of_latents].tolist()) == {4}
    assert max(table.parameters[of_latents]) == 6 * HIDDEN * (HIDDEN + 1)


def test_two_streams_have_weights_of_their_own_and_share_attention():
    labels = table_of(job_of("double_stream")).labels
    for name in ("attention.qkv", "attention.proj", "mlp.fc1", "mlp.fc2", "modulation"):
        assert {name, f"text.{name}"} <= {*labels}
    assert "text.attention.core" not in labels


def test_a_layer_keeps_what_its_backward_reads():
    table = table_of(job_of("single_stream", micro=1, training={"torch_compile": True}))
    of_ends = ("embedding", "head", "modulation")
    layer = np.array([not label.startswith(of_ends) for label in table.labels])[table.label]
    # Input of the norm, of the projection, Q, K, V, what norms of Q and K read, input of the
    # activation, what the last projection reads, and the branch for its gate's gradient; sums of
    # exponentials in FP32.
    kept = HIDDEN + HIDDEN + 3 * HIDDEN + 2 * HIDDEN + FFN + (HIDDEN + FFN) + HIDDEN
    expected = 1024 * (2.0 * kept + 4.0 * HEADS)
    assert table.saved_bytes[layer].sum() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("flux.1_dev", 11_901_408_320),
        ("flux.1_schnell", 11_891_178_560),
        ("wan2.1_t2v_1.3b", 1_418_996_800),
        ("wan2.1_t2v_14b", 14_288_491_584),
        ("wan2.2_t2v_a14b", 14_288_491_584),
        ("wan2.2_ti2v_5b", 4_999_787_712),
    ],
)
def test_published_models_have_the_parameters_of_their_checkpoints(name, parameters):
    job = {
        "model": name,
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4608},
        "cluster": {"device": "b300", "nodes": 1},
    }
    assert count_model(load_job(job)).parameters_total == parameters


@pytest.mark.parametrize("kinds", [("double_stream", "single_stream"), ("dit",)])
def test_more_work_takes_longer_and_ranks_divide_memory(kinds):
    base, longer, wider, split = project_jobs(
        [
            job_of(*kinds, seq=1024, micro=1), job_of(*kinds, seq=2048, micro=1),
            job_of(*kinds, seq=1024, micro=2), job_of(*kinds, seq=1024, micro=1, tp=2),
        ]
    )  # fmt: skip
    assert base.iteration_time_s < longer.iteration_time_s
    assert base.iteration_time_s < wider.iteration_time_s
    peaks = [each.memory.peak_bytes for each in (split, base, longer)]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["dit", "single_stream"]}, "join text .* or attend to it"),
        ({"layer_types": ["dense"]}, "need each other"),
        ({"diffusion": None}, "vocab_size: is required"),
        ({"diffusion": None, "vocab_size": 32000}, "need each other"),
        ({"diffusion": {"latent_size": 64}}, "double_stream need text"),
        ({"diffusion": {"latent_size": 64, "text_tokens": 8}}, "go together"),
        ({"vocab_size": 32000}, "has no vocab_size"),
        ({"sliding_window": 64}, "has no sliding_window"),
    ],
)
def test_what_no_diffusion_transformer_is_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        job_of("double_stream", "double_stream", model=change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seq": TEXT}, "leaves no latents behind 256 tokens of text"),
        ({"training": {"packed_tokens": 128}}, "packed_tokens: is not modelled for a diffusion"),
        ({"training": {"adapter": "lora"}}, "adapter: is not modelled for a diffusion"),
        ({"seq": 1020, "cp": 3, "cp_comm_type": "p2p"}, "cp .3. does not divide the 256 tokens"),
    ],
)
def test_jobs_that_cannot_exist_are_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        project_performance(job_of("double_stream", **change))


def test_what_is_not_known_of_one_says_so():
    said, model = "is a diffusion transformer: ", load_model("flux.1_dev")
    job = job_of("double_stream")
    with pytest.raises(ProjectorError, match=said):
        Deployment.parse({"model": model, "cluster": {"device": "h100", "nodes": 1}})
    for name in ("megatron", "primus", "torchtitan", "deepspeed"):
        with pytest.raises(UnsupportedError, match=said):
            emit_job(job, name)
    with pytest.raises(UnsupportedError, match=said):
        project_performance(job, fidelity="first-order")
    with pytest.raises(UnsupportedError, match=said):
        benchmark_record(job)
    with pytest.raises(UnsupportedError, match=said):
        Compared(None, job)


def test_the_mlp_of_a_single_stream_is_not_made_again_by_itself():
    # Its projection gives queries, keys and values too.
    modules = {"recompute": {"granularity": "selective", "modules": ["mlp"]}}
    none, mlp = project_jobs([job_of("single_stream"), job_of("single_stream", training=modules)])
    assert mlp.memory.peak_bytes == none.memory.peak_bytes
    none, mlp = project_jobs([job_of("double_stream"), job_of("double_stream", training=modules)])
    assert mlp.memory.peak_bytes < none.memory.peak_bytes
