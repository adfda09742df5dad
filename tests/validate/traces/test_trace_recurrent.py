"""Kernels of recurrent mixers are known by their names, whatever their library."""

import pytest
from runs_of_jobs import TYPES, of_activities

from projector.config.load import load_job
from projector.trace import names as tables
from projector.trace.activity import ATTENTION, BACKWARD, FORWARD, OPTIMIZER, VECTOR
from projector.validate.traces.compare import Compared
from projector.validate.traces.expected import expect
from projector.validate.traces.products import label_in, label_of
from synthetic import Kernel, activities

KERNELS = {
    "mamba2": {
        "conv": ["void causal_conv1d_channellast_fwd_kernel<Causal_conv1d_traits>(ConvParamsBase)"],
        "states": ["_chunk_state_fwd_kernel", "_chunk_state_bwd_db_kernel"],
        "scores": ["_bmm_chunk_fwd_kernel", "_bmm_chunk_bwd_kernel"],
        "scan": [
            "_chunk_scan_fwd_kernel",
            "_chunk_scan_chunk_state_bwd_dx_kernel",
            "_chunk_scan_bwd_dcb_kernel",
            "_chunk_scan_bwd_ddAcs_stable_kernel",
        ],
        "pass": ["_chunk_cumsum_fwd_kernel", "_state_passing_fwd_kernel"],
        "norm": ["_layer_norm_fwd_1pass_kernel", "_layer_norm_bwd_kernel"],
    },
    "mamba1": {"scan": ["void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits>"]},
    "gdn": {
        "conv": ["causal_conv1d_fwd_kernel", "causal_conv1d_bwd_kernel"],
        "solve": ["chunk_gated_delta_rule_fwd_kkt_solve_kernel", "merge_16x16_to_64x64_inverse"],
        "corrections": ["recompute_w_u_fwd_kernel", "prepare_wy_repr_bwd_kernel"],
        "state": [
            "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
            "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",
        ],
        "outputs": ["chunk_fwd_kernel_o", "chunk_bwd_kernel_dqkwg", "chunk_bwd_kernel_dv_local"],
        "gates": ["chunk_local_cumsum_scalar_kernel", "l2norm_fwd_kernel", "gdn_gate_fwd_kernel"],
        "norm": ["layer_norm_gated_fwd_kernel"],
    },
    "kda": {
        "solve": ["chunk_kda_fwd_kernel_inter_solve_fused", "chunk_kda_bwd_kernel_intra"],
        "corrections": ["recompute_w_u_fwd_kda_kernel"],
        "outputs": ["chunk_gla_fwd_kernel_o", "chunk_kda_bwd_kernel_wy_dqkg_fused"],
        "gates": ["kda_gate_chunk_cumsum_vector_kernel"],
    },
    "linear": {
        "state": ["chunk_fwd_kernel_h", "chunk_bwd_kernel_dh"],
        "outputs": ["chunk_fwd_kernel_o", "chunk_bwd_kernel_dv"],
    },
}  # fmt: skip
PRODUCTS = {"states", "scores", "scan", "state", "solve", "corrections", "outputs"}
RECURRENT = {"num_heads": 16, "head_dim": 64, "num_groups": 4, "state_size": 64, "dt_rank": 32}


def job_of(*kinds, groups=4):
    return load_job(
        {
            "model": {
                "num_layers": 4, "hidden_size": 512, "ffn_hidden_size": 1536, "vocab_size": 4096,
                "num_attention_heads": 8, "num_query_groups": 2, "layer_types": list(kinds),
                "recurrent": RECURRENT | {"num_groups": groups},
            },
            "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 2048},
            "cluster": {"device": "h100", "nodes": 1},
        }
    )  # fmt: skip


@pytest.mark.parametrize("mixer", KERNELS)
def test_each_kernel_is_a_part_of_the_mixer(mixer):
    names = expect(job_of(mixer, "attention", groups=1 if mixer == "mamba1" else 4)).names
    labels = dict.fromkeys(name.label for name in names)
    types = tables.load_trace_names().kernel_types
    for part, kernels in KERNELS[mixer].items():
        assert f"{mixer}.{part}" in labels
        for kernel in kernels:
            assert label_in(kernel, labels) == f"{mixer}.{part}", kernel
            if part in PRODUCTS:
                assert tables.types([kernel], types).tolist() == [ATTENTION], kernel


def test_a_transformer_has_no_such_kernels():
    labels = ["attention.qkv", "attention.norm", "mlp.fc1"]
    assert label_in("_layer_norm_fwd_1pass_kernel", labels) is None
    assert label_of("in_proj", labels) == "attention.qkv"
    assert label_of("mixer.in_proj", ["attention.qkv", "mamba2.in"]) == "mamba2.in"


@pytest.mark.parametrize("mixer", ["mamba2", "gdn", "linear"])
def test_a_run_with_kernels_of_libraries_is_matched_whole(mixer):
    """Beside attention, whose kernels are no parts of the mixer."""
    job = job_of(f"{mixer}_dense", "dense")
    expected, kernels, now = expect(job), [], 0
    own = KERNELS[mixer]
    for row in expected.rows:
        part = row.name.label.partition(".")
        phase = {"forward": FORWARD, "optimizer": OPTIMIZER}.get(row.name.phase, BACKWARD)
        called = own.get(part[2], [""])[0] if part[0] == mixer else ""
        attends = row.kind == "attention" or (bool(called) and part[2] in PRODUCTS)
        length = max(round(row.time_s * row.runs * 1e9), 1)
        if row.kind == "collective":
            continue
        kernels.append(
            Kernel(
                name=called or "kernel", start=now, end=now + length, phase=phase, iteration=0,
                type=ATTENTION if attends else TYPES.get(row.kind, VECTOR),
                operation="aten::op" if called else row.name.label,
            )
        )  # fmt: skip
        now += length
    found = Compared(of_activities(activities(*kernels)), job).result()
    compared = {f"{mixer}.{part}" for part in own} | {"attention.core"}
    assert compared <= {each.operation for each in found.operations}
    for each in found.operations:
        if each.operation in compared:
            assert each.slowdown == pytest.approx(1.0, rel=2e-3), each
