import pytest

from projector.validate.kind import FROM_ROW, FROM_RULE
from projector.validate.param_counts import KIND, architecture

HEADER = (  # noqa: SIM905
    "model,layers,hidden,ffn,heads,head_dim,kv_heads,vocab,experts,topk,moe_ffn,shared_ffn,"
    "dense_layers,q_lora,kv_lora,qk_nope,qk_rope,v_head,tied_embeddings,extra,computed_total,"
    "computed_active"
).split(",")
ROWS = """
Llama-3/3.1-8B|32|4096|14336|32|128|8|128256|||||||||||False||8030261248|8030261248
Qwen2.5-7B|28|3584|18944|28|128|4|152064|||||||||||False|qkv bias|7615616512|7615616512
Qwen3-30B-A3B|48|2048|6144|32|128|4|151936|128|8|768||||||||False|qk norm|30532122624|3353032704
DeepSeek-V3|61|7168|18432|128|||129280|256|8|2048|2048|3|1536|512|128|64|128|False|correction bias|671026419200|37552297472
gpt-oss-120b|36|2880|2880|64|64|8|201088|128|4|2880||||||||False|active counts all|116829156672|5711982912
Grok-1|64|6144|32768|48|128|8|131072|8|2|32768||||||||True||315684034560|83755800576
megatron-22B|48|6144|24576|64|96|64|51200|||||||||||True|learned positions 2048, biases|22074273792|22074273792
MPT-125m|12|768|3072|12|64|12|50368|||||||||||True|biases on, LayerNorm, learned positions = seq_len (2048)|125311488|125311488
"""  # noqa: E501
TABLE = [dict(zip(HEADER, line.split("|"), strict=True)) for line in ROWS.strip().splitlines()]


def row(name, **changes):
    return {**next(line for line in TABLE if line["model"] == name), **changes}


def project(line):
    return KIND.project([line])[0]


@pytest.mark.parametrize("line", TABLE, ids=lambda line: line["model"])
def test_counts_are_exact(line):
    found = project(line)
    assert (found.status, found.ratio, found.mark) == ("ok", 1.0, FROM_ROW)


def test_the_larger_error_is_reported():
    found = project(row("Grok-1", computed_active="60000000000"))
    assert found.ratio == pytest.approx(83755800576 / 6e10)
    assert found.measured == 6e10


def test_dimensions_are_those_of_the_row():
    half = project(row("Llama-3/3.1-8B", layers="16"))
    assert half.predicted == 8030261248 - 16 * (8030261248 - 2 * 128256 * 4096 - 4096) // 32


def test_an_unknown_name_is_built_from_its_dimensions():
    line = row("Llama-3/3.1-8B", model="Nobody-8B")
    found = project(line)
    assert (found.ratio, found.mark) == (1.0, FROM_RULE)
    assert "no shipped model" in found.note


def test_every_row_is_eligible():
    assert KIND.why_not_eligible({}) == ""


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("layers", "many", "layers is 'many', not a number"),
        ("layers", "1e9", "layers is '1e9', more than 10,000"),
        ("hidden", "0.5", "not a whole number"),
        ("computed_total", "", "computed_total is ''"),
        ("dense_layers", "99", "dense_layers is 99, but there are 61 layers"),
        ("v_head", "", "v_head is missing beside kv_lora"),
    ],
)
def test_bad_rows_say_why(column, text, message):
    assert message in project(row("DeepSeek-V3", **{column: text})).status


def test_features_of_extra():
    model, _, _ = architecture(
        {
            "model": "Nobody", "layers": "2", "hidden": "64", "ffn": "256", "heads": "4",
            "vocab": "100", "extra": "biases, learned positions 32, qk norm, sinks",
        }
    )  # fmt: skip
    assert (model.activation, model.attention_bias, model.mlp_bias) == ("gelu", "qkv+out", True)
    assert (model.position_embedding, model.max_position_embeddings) == ("learned", 32)
    assert (model.qk_norm, model.attention_sinks) == ("head", True)
