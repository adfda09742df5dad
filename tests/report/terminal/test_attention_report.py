import json

import pytest

from projector.cli.main import run
from projector.errors import ConfigError
from projector.report.terminal.single import read_shapes
from projector.single.attention import project_attention

OPTIONS = {"gpu": "h100", "head_dim": 128, "kv_heads": None, "v_head_dim": None, "window": 0}


def call(capsys, *arguments):
    code = run(["attention", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_shape_on_the_command_line_is_the_projection(capsys):
    code, out, _ = call(capsys, 2, 32, 4096, "--kv-heads", 8, "--gpu", "b200", "--json", "--quiet")
    expected = project_attention(2, 32, 4096, kv_heads=8, head_dim=128, device="b200").to_dict()
    found = json.loads(out)
    assert code == 0
    assert {key: found[key] for key in expected} == json.loads(json.dumps(expected))
    assert {"schema_version", "version", "warnings", "uncertainty"} <= found.keys()


def test_a_table_takes_what_it_does_not_say_from_the_options(tmp_path):
    table = tmp_path / "shapes.csv"
    table.write_text("batch,heads,seq,kv_heads,head_dim\n1,8,64,2,\n2,16,128,,256\n")
    found = read_shapes((), str(table), OPTIONS)
    assert found["device"] == "h100"
    assert found["seq_q"].tolist() == found["seq_kv"].tolist() == [64, 128]
    assert found["kv_heads"].tolist() == [2, 16]
    assert found["head_dim"].tolist() == found["v_head_dim"].tolist() == [128, 256]


def test_every_term_is_explained(capsys):
    code, out, _ = call(capsys, 1, 16, 8192, "--backward", "--explain", "--impl", "fa3")
    assert code == 0
    for word in ("matrix", "softmax", "mask", "tiles", "idle", "atomics", "memory", "passes"):
        assert word in out
    assert "waves" in out


def test_documents_of_one_kernel(capsys, tmp_path):
    table = tmp_path / "documents.csv"
    table.write_text("batch,heads,seq\n1,16,500\n1,16,900\n")
    _, out, _ = call(capsys, "--csv", table, "--packed")
    assert "as one kernel" in " ".join(out.split())
    _, out, _ = call(capsys, "--csv", table, "--packed", "--json")
    found = json.loads(out)
    assert found["time_ms"] < sum(row["time_ms"] for row in found["rows"])


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_written(capsys, tmp_path, suffix):
    target = tmp_path / f"attention.{suffix}"
    table = tmp_path / "shapes.csv"
    table.write_text("batch,heads,seq,window\n1,16,500,\n64,16,1,\n4,32,8192,128\n")
    code, _, err = call(capsys, "--csv", table, "--plot", target, "--gpu", "mi355x", "--quiet")
    assert (code, err) == (0, "")
    first = target.read_bytes()
    assert len(first) > 5000
    call(capsys, "--csv", table, "--plot", target, "--gpu", "mi355x", "--quiet")
    assert target.read_bytes() == first


@pytest.mark.parametrize(
    ("shape", "text", "key"),
    [
        ((), None, "shape"),
        (("1", "2", "3"), "batch,heads,seq\n1,2,3\n", "shape"),
        (("1", "2"), None, "shape"),
        (("1", "2", "3", "-4"), None, "seq_kv"),
        ((), "batch,heads\n1,2\n", "seq"),
        ((), "batch,heads,seq\n", "csv"),
        ((), "batch,heads,seq\n1,2\n", "seq"),
        ((), "batch,heads,seq\n1,2,3,4\n", "csv"),
        ((), "batch,heads,seq\n1,x,3\n", "heads"),
        ((), "batch,heads,seq\n1,-2,3\n", "heads"),
    ],
)
def test_bad_shapes_name_what_is_wrong(tmp_path, shape, text, key):
    table = None
    if text is not None:
        table = str(tmp_path / "shapes.csv")
        (tmp_path / "shapes.csv").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_shapes(shape, table, OPTIONS)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--gpu", "abacus"], "device"),
        (["--impl", "abacus"], "impl"),
        (["--dtype", "int3"], "dtype"),
        (["--impl", "trtllm_fmha_fp8"], "dtype"),
        (["--kv-heads", "3"], "kv_heads"),
        (["--clock-mhz", "99999"], "clock_mhz"),
        (["--window", "-1"], "window"),
        (["--window", "99999999999999999999"], "window"),
        (["--kv-heads", "99999999999999999999"], "kv_heads"),
        (["--run", "idle"], "run"),
        (["--plot", "a.txt"], "plot"),
    ],
)
def test_bad_options_are_refused_by_name(capsys, arguments, key):
    code, out, err = call(capsys, 1, 8, 64, *arguments, "--json")
    assert code == 2
    assert json.loads(out)["key"] == key
    assert err.startswith("error: ")


def test_a_type_without_rows_is_said_beside_the_result(capsys):
    code, out, err = call(capsys, 1, 8, 64, "--dtype", "fp8")
    assert code == 0
    assert "warning: attention 'default' of" in err
    assert call(capsys, 1, 8, 64, "--dtype", "fp8", "--quiet") == (0, out, "")
    _, out, err = call(capsys, 1, 8, 64, "--dtype", "fp8", "--json")
    assert err == ""
    assert "fp8" in json.loads(out)["warnings"][0]
