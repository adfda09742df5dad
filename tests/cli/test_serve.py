import json

import pytest

from projector.cli.main import run

SERVE = ("serve", "--model", "llama3.1_8b", "--device", "h100")


@pytest.fixture
def projector_run(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_report_and_json_agree(projector_run):
    code, out, _ = projector_run(*SERVE, "--batch", "8", "--json")
    found = json.loads(out)
    assert code == 0
    code, text, _ = projector_run(*SERVE, "--batch", "8")
    assert code == 0
    assert f"{found['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU" in text
    assert f"{found['max_batch']:,}" in text


def test_a_batch_that_does_not_fit_exits_3_and_says_what_would(projector_run):
    code, out, _ = projector_run(*SERVE, "--batch", "4000", "--context", "8192")
    assert code == 3
    assert "DOES NOT FIT" in out
    assert "largest batch" in out


def test_bad_input_exits_2_with_its_object(projector_run):
    code, out, err = projector_run(*SERVE, "--batch", "0", "--json")
    assert code == 2
    assert json.loads(out)["key"] == "load.batch"
    assert err.startswith("error:")


@pytest.mark.parametrize("width", ["80", "120"])
def test_report_fits_the_terminal(projector_run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    code, out, _ = projector_run(
        "serve", "--model", "deepseek_v3", "--device", "mi300x", "--tp", "8", "--pp", "2",
        "--batch", "100", "--output", "500",
    )  # fmt: skip
    assert code in {0, 3}
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= int(width)
    assert len(out.splitlines()) < 56


def test_a_front_is_drawn_and_written_as_a_page(projector_run, tmp_path):
    figure, page = tmp_path / "front.svg", tmp_path / "front.html"
    code, out, err = projector_run(*SERVE, "--front", "--plot", figure, "--html", page)
    assert code == 0
    assert "knee" in out
    assert figure.read_text().startswith("<?xml")
    text = page.read_text()
    assert "Throughput against speed" in text
    assert "http://" not in text.split("</script>")[-1]
    assert str(page) in err


def test_without_a_front_there_is_nothing_to_draw(projector_run, tmp_path):
    code, _, err = projector_run(*SERVE, "--batch", "4", "--plot", tmp_path / "f.png")
    assert code == 2
    assert "leave out batch" in err


def test_a_simulated_load_is_reported(projector_run):
    load = ("--context", "512", "--output", "64", "--rate", "20", "--requests", "100")
    code, out, _ = projector_run(*SERVE, "--batch", "8", *load, "--ttft-ms", "500")
    assert code == 0
    assert "1 replica keeps TTFT 500 ms for 99 % of requests" in out
    assert "p99" in out
