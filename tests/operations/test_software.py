"""What the software of a job runs: FP8 attention, eager operators, scales by row, early kernels."""

import pytest

from projector.config.load import load_job
from projector.errors import ConfigError
from projector.kernels.device import MATRIX_TYPES
from projector.operations.emit import emit_operations
from projector.operations.mlp import EAGER_LAYER, EAGER_RMS
from projector.operations.table import ATTENTION, BACKWARD, FORWARD
from projector.projection.api import project_performance
from projector.projection.evaluate import evaluate

TOKENS = 4096
JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"fsdp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": TOKENS},
    "cluster": {"device": "h100"},
}


def job_of(**overrides):
    return load_job(JOB, {f"training.{name}": value for name, value in overrides.items()})


def table_of(job):
    return emit_operations(evaluate([job]).workloads.rows)


def rows_of(table, label, phase):
    return (table.labels.index(label) == table.label) & (table.phase == phase)


def seconds(job):
    return project_performance(job).iteration_time_s


def test_fp8_attention_quantises_its_operands_and_keeps_them_narrow():
    wide = table_of(job_of(precision="fp8"))
    narrow = table_of(job_of(precision="fp8", fp8_attention=True))
    assert {*narrow.dtype[narrow.kind == ATTENTION]} == {MATRIX_TYPES.index("fp8")}
    # 32 query and 2 * 8 key and value heads of 128, read in 16 bits and written in 8.
    forward = rows_of(narrow, "attention.quantise", FORWARD)
    assert narrow.bytes[forward][0] == 3.0 * TOKENS * 48 * 128
    assert narrow.bytes[rows_of(narrow, "attention.quantise", BACKWARD)][0] == 3.0 * TOKENS * 4096
    kept = [t.saved_bytes[rows_of(t, "attention.kept", FORWARD)][0] for t in (wide, narrow)]
    assert kept[0] - kept[1] == TOKENS * 48 * 128


def test_fp8_attention_needs_narrow_layers_and_a_kernel():
    assert seconds(job_of(fp8_attention=True)) == seconds(job_of())
    for device in ("h100", "b200"):
        base = load_job(JOB, {"cluster.device": device, "training.precision": "fp8"})
        assert seconds(load_job(base, {"training.fp8_attention": True})) < seconds(base)
    with pytest.raises(ConfigError, match="no FP8 variant") as caught:
        seconds(job_of(precision="fp8", fp8_attention=True, attention_kernel="fa3"))
    assert caught.value.key == "training.fp8_attention"


def test_eager_operators_take_more_passes_unless_compiled():
    fused, eager = table_of(job_of()), table_of(job_of(elementwise="eager"))
    elements = float(TOKENS * 4096)
    for phase, passes, before in ((FORWARD, EAGER_RMS[0], 4.0), (BACKWARD, EAGER_RMS[1], 6.0)):
        assert eager.bytes[rows_of(eager, "mlp.norm", phase)][0] == passes * elements
        assert fused.bytes[rows_of(fused, "mlp.norm", phase)][0] == before * elements
    joined = rows_of(eager, "attention.qkv.join", BACKWARD)
    assert eager.bytes[joined][0] == 4.0 * TOKENS * 48 * 128
    assert "attention.qkv.join" not in fused.labels
    compiled = job_of(torch_compile=True)
    assert seconds(load_job(compiled, {"training.elementwise": "eager"})) == seconds(compiled)
    assert seconds(job_of(elementwise="eager")) > seconds(job_of())


def test_a_layer_norm_is_one_kernel_of_pytorch():
    job = load_job(job_of(elementwise="eager"), {"model": "gpt3_1.3b", "training.seq_length": 2048})
    table = table_of(job)
    elements = 2048.0 * job.model.hidden_size
    assert table.bytes[rows_of(table, "mlp.norm", FORWARD)][0] == EAGER_LAYER[0] * elements
    assert table.bytes[rows_of(table, "mlp.norm", BACKWARD)][0] == EAGER_LAYER[1] * elements


def test_scales_by_row_slow_narrow_gemms_alone():
    by_tensor = job_of(precision="fp8", fp8_recipe="tensorwise")
    by_row = job_of(precision="fp8", fp8_recipe="rowwise")
    assert seconds(by_row) > seconds(by_tensor)
    one = {"cluster.software.rowwise_gemm_share": 1.0}
    # Scales of rows are found once more for the other layout, by three passes of 16 bits.
    assert seconds(by_tensor) < seconds(load_job(by_row, one)) < seconds(by_row)
    assert seconds(load_job(job_of(fp8_recipe="rowwise"), one)) == seconds(job_of())


def test_early_kernels_slow_grouped_gemms_alone():
    experts = {"model": "qwen3_30b_a3b", "cluster.device": "b200", "parallelism.ep": 8}
    sparse = load_job(JOB, {**experts, "parallelism.fsdp": False})
    slower = {"cluster.software.grouped_gemm_share": 0.5}
    assert seconds(load_job(sparse, slower)) > seconds(sparse)
    assert seconds(load_job(JOB, slower)) == seconds(load_job(JOB))
    early = {"name": "megatron_bridge", "release": "25.11"}
    framework = load_job(sparse, {"training.framework": early})
    assert framework.cluster.software.grouped_gemm_share == 0.7
    newest = load_job(sparse, {"training.framework": "megatron_bridge"})
    assert newest.cluster.software.grouped_gemm_share == 1.0
