"""Mixers with a state of fixed size, against their papers' counts in plain numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.errors import ConfigError
from projector.lower.batch import JobBatch, job_columns
from projector.lower.workloads import build_workloads, lay_out
from projector.operations.emit import emit_operations
from projector.operations.recurrent import RECURRENT
from projector.operations.table import BACKWARD, FORWARD, GEMM
from projector.projection.api import project_jobs, project_performance
from projector.serving.deployment import Deployment
from projector.serving.memory import serving_memory

MODEL = {
    "num_layers": 1, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 8,
    "vocab_size": 32000, "position_embedding": "none", "tied_embeddings": True,
}  # fmt: skip


def job_of(mixer, *, heads=16, width=64, groups=4, size=32, seq=2048, chunk=None, **split):
    rank = {"dt_rank": 64} if mixer in {"mamba1", "rwkv7"} else {}
    recurrent = {
        "num_heads": heads, "head_dim": width, "num_groups": groups, "state_size": size,
        "chunk_size": chunk, "conv_kernel": 0 if mixer in {"linear", "rwkv7"} else 4, **rank,
    }  # fmt: skip
    gpus = split.get("tp", 1) * split.get("cp", 1)
    return load_job(
        {
            "model": {**MODEL, "layer_types": [mixer], "recurrent": recurrent},
            "parallelism": split,
            "training": {"micro_batch_size": 2, "global_batch_size": 2, "seq_length": seq},
            "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": gpus},
        }
    )


def rows_of(job, mixer):
    """Return the rows of the one recurrent layer, with their labels."""
    batch = JobBatch.of([job])
    table = emit_operations(build_workloads(batch, job_columns(batch), lay_out(batch)).rows)
    mine = np.array([label.startswith(f"{mixer}.") for label in table.labels])[table.label]
    rows = np.flatnonzero(mine)
    return table.take(rows, table.workload[rows])


def core_flop(job, mixer, phase):
    """Add up the products of the recurrence itself."""
    table = rows_of(job, mixer)
    around = {f"{mixer}.{name}" for name in ("in", "out", "x", "dt")}
    around |= {f"{mixer}.{a}_{b}" for a in ("decay", "gate", "low") for b in ("up", "down")}
    inside = np.array([label not in around for label in table.labels])[table.label]
    chosen = inside & (table.kind == GEMM) & (table.phase == phase)
    done = 2.0 * table.m * table.n * table.k * table.batch * table.repeats
    return float(done[chosen].sum())


def flop_of_a_token(mixer, heads, width, groups, size, chunk):
    """Count one token's products, the attention inside a chunk included."""
    value = heads * width
    if mixer == "mamba2":
        # States in and out of a chunk, scores of a group, and three quarters of a chunk's square.
        inside = 2 * (3 * chunk // 4) * value
        return 4 * size * value + 2 * chunk * size * groups + inside
    if mixer in {"gdn", "kda"}:
        return heads * (6 * size * width + 6 * chunk * size + 4 * chunk * width)
    if mixer == "rwkv7":
        # Four matrices of a chunk, w and u, the state three times, and the outputs.
        return heads * (8 * size * width + 10 * chunk * size + 8 * chunk * width)
    if mixer == "linear":
        return heads * (4 * size * width + 2 * chunk * size + 2 * chunk * width)
    return 0


@given(
    mixer=st.sampled_from(RECURRENT),
    heads=st.sampled_from([4, 16, 32]),
    width=st.sampled_from([32, 64, 128]),
    groups=st.sampled_from([1, 2, 4]),
    size=st.sampled_from([16, 64, 128]),
    chunk=st.sampled_from([None, 32, 64, 256]),
)
def test_products_are_those_of_the_papers(mixer, heads, width, groups, size, chunk):
    job = job_of(mixer, heads=heads, width=width, groups=groups, size=size, chunk=chunk)
    tokens = 2 * 2048
    length = chunk or {"mamba2": 128, "rwkv7": 16}.get(mixer, 64)
    expected = tokens * flop_of_a_token(mixer, heads, width, groups, size, length)
    assert core_flop(job, mixer, FORWARD) == pytest.approx(expected, rel=1e-12)
    backward = core_flop(job, mixer, BACKWARD)
    # It makes states and products anew, and has two gradients of each.
    assert 2.0 * expected <= backward <= 3.5 * expected


@pytest.mark.parametrize("mixer", RECURRENT)
def test_tensor_and_context_parallelism_divide_the_work(mixer):
    whole = core_flop(job_of(mixer), mixer, FORWARD)
    assert core_flop(job_of(mixer, tp=2), mixer, FORWARD) == pytest.approx(whole / 2)
    assert core_flop(job_of(mixer, cp=2), mixer, FORWARD) == pytest.approx(whole / 2)
    labels = rows_of(job_of(mixer, cp=2), mixer).labels
    assert (f"{mixer}.cp.all_to_all" in labels) == (mixer != "conv")


def test_a_layer_of_mamba_2_keeps_what_its_fused_function_keeps():
    job = job_of("mamba2")
    table = rows_of(job, "mamba2")
    value, key, heads, hidden, tokens = 16 * 64, 4 * 32, 16, 1024, 2 * 2048
    # Inputs of the projections and of the norm, everything the projection gives, and the scan's
    # output (state-spaces/mamba ssd_combined.py): 5 d + 2 G N + H.
    kept = hidden + (2 * value + 2 * key + heads) + value + value + value
    assert table.saved_bytes.sum() == pytest.approx(2.0 * tokens * kept)


def test_attention_beside_mamba_2_shares_its_norm():
    def layer_table(kind):
        job = job_of("mamba2")
        job = load_job(job.model_dump() | {"model": job.model.model_dump() | {"layer_types": kind}})
        batch = JobBatch.of([job])
        table = emit_operations(build_workloads(batch, job_columns(batch), lay_out(batch)).rows)
        labels = np.array(table.labels)[table.label]
        outside = [label.startswith(("embedding", "head", "loss", "final")) for label in labels]
        rows = np.flatnonzero(~np.array(outside))
        return {labels[row] for row in rows}, table.take(rows, table.workload[rows])

    (both, together), (_, attends), (_, mixes) = (
        layer_table([kind]) for kind in ("attention+mamba2_dense", "dense", "mamba2")
    )
    assert {"attention.core", "mamba2.scan", "mixers.sum", "attention.norm"} <= both
    # One norm, whose output both read and one keeps.
    tokens, hidden = 2 * 2048, MODEL["hidden_size"]
    apart = attends.parameters.sum() + mixes.parameters.sum() - hidden
    assert together.parameters.sum() == apart
    once = 2 * 2.0 * tokens * hidden
    saved = attends.saved_bytes.sum() + mixes.saved_bytes.sum() - once
    assert together.saved_bytes.sum() == pytest.approx(saved)


def test_a_layer_of_rwkv_7_keeps_six_mixes_and_what_its_kernels_read():
    table = rows_of(job_of("rwkv7", heads=16, width=64, groups=16, size=64), "rwkv7")
    value, low, tokens = 16 * 64, 64, 2 * 2048
    # Six mixes, the thin product, r, k, v, a, b and decays, norm, gate, and the last product.
    kept = 6 * 1024 + low + 6 * value + 2 * value + value
    assert table.saved_bytes.sum() == pytest.approx(2.0 * tokens * kept)


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("falcon_h1_34b", 4.04),
        ("lfm2_1.2b", 0.0117),
        ("rwkv7_2.9b", 0.635),
        ("nemotron_h_8b", 4.08),
        ("nemotron3_nano_30b_a3b", 2.05),
        ("qwen3_next_80b_a3b", 2.06),
        ("kimi_linear_48b_a3b", 2.09),
        ("jamba_v0.1", 0.56),
    ],
)
def test_state_of_a_sequence(name, mib):
    memory = serving_memory(
        Deployment.parse({"model": name, "cluster": {"device": "b300"}, "tp": 1})
    )
    model = load_model(name)
    layers = sum(mixer in RECURRENT for mixer in model.mixers)
    assert memory.stage_state_bytes.sum() / layers / 2**20 == pytest.approx(mib, abs=0.011)
    longer = memory.stage_cache_bytes(2048) - memory.stage_cache_bytes(1024)
    tokens = model.mixers.count("attention") * memory.deployment.cached_element_bytes
    width = 512 + 64 if model.mla else 2 * model.query_groups * model.head_dim
    assert longer.sum() == pytest.approx(1024 * tokens * width)


@pytest.mark.parametrize("mixer", RECURRENT)
def test_one_job_is_a_batch_of_one(mixer):
    jobs = [job_of(mixer, seq=seq) for seq in (1024, 2048, 4096)]
    together = [step.iteration_time_s for step in project_jobs(jobs)]
    assert together == [project_performance(job).iteration_time_s for job in jobs]
    assert together == sorted(together)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["mamba2"], "recurrent": None}, "needs? model.recurrent|recurrent"),
        ({"layer_types": ["moe"]}, "moe"),
        ({"layer_types": "M*X"}, "pattern of layers"),
        ({"layer_types": ["mamba3"]}, "layer_types"),
        (
            {"recurrent": {"num_heads": 3, "head_dim": 8, "num_groups": 2, "state_size": 8}},
            "divide",
        ),
    ],
)
def test_what_does_not_fit_together(changes, words):
    base = {**MODEL, "name": "tried"}
    with pytest.raises(ConfigError, match=words):
        load_job(
            {
                "model": {**base, **changes},
                "training": {"micro_batch_size": 1, "global_batch_size": 1, "seq_length": 64},
                "cluster": {"device": "h100"},
            }
        )


def test_a_pattern_of_letters_is_a_list():
    job = job_of("mamba2")
    letters = job.model.model_copy(update={"layer_types": None}).model_dump()
    letters |= {"num_layers": 5, "layer_types": "M-M*-"}
    model = type(job.model).parse(letters)
    assert model.layer_kinds == ("mamba2", "mlp", "mamba2", "attention", "mlp")
    assert model.mixers.count("attention") == 1


def sparse_job(seq=4096, **split):
    mla = {"kv_lora_rank": 256, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32, "v_head_dim": 64}
    sparse = {"index_heads": 8, "index_head_dim": 64, "index_topk": 512}
    gpus = split.get("tp", 1) * split.get("cp", 1)
    return load_job(
        {
            "model": {**MODEL, "mla": mla | sparse},
            "parallelism": {"cp_comm_type": "all_gather", **split},
            "training": {"micro_batch_size": 2, "global_batch_size": 2, "seq_length": seq},
            "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": gpus},
        }
    )


def test_sparse_attention_sees_the_keys_that_an_indexer_chooses():
    table = rows_of(sparse_job(), "attention")
    labels = np.array(table.labels)[table.label]
    tokens, heads, latent, rope, topk = 2 * 4096, 8, 256, 32, 512
    seen = topk - topk**2 / (2 * 4096)
    (core,) = np.flatnonzero((labels == "attention.core") & (table.phase == FORWARD))
    assert table.flop[core] == pytest.approx(2 * tokens * heads * seen * (2 * latent + rope))
    (scores,) = np.flatnonzero((labels == "attention.index.scores") & (table.phase == FORWARD))
    assert table.flop[scores] == 2 * tokens * 2048 * 8 * 64
    product = 2 * table.m[scores] * table.n[scores] * table.k[scores] * table.batch[scores]
    assert product == table.flop[scores]
    # Ranks of tensor parallelism have the indexer whole; those of a sequence divide it.
    for split, share in (({"tp": 2}, 1.0), ({"cp": 2}, 0.5)):
        divided = rows_of(sparse_job(**split), "attention")
        names = np.array(divided.labels)[divided.label]
        found = divided.flop[(names == "attention.index.scores") & (divided.phase == FORWARD)]
        assert found.item() == share * table.flop[scores]


def test_sparse_attention_pays_where_sequences_are_long():
    def ratio(seq):
        # Few heads leave the tiles of a kernel empty that reads keys once for all heads.
        sparse = load_job(sparse_job(seq).model_dump(), {"model.num_attention_heads": 128})
        dense = load_job(sparse.model_dump(), {"model.mla.index_heads": 0})
        times = [project_performance(job).iteration_time_s for job in (sparse, dense)]
        return times[0] / times[1]

    assert ratio(2048) > ratio(32768) > ratio(131072)
    assert ratio(131072) < 1.0
