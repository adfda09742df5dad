"""Numbers with a letter behind them, in fields, overrides and options."""

import json

import pytest

from projector.cli.main import run
from projector.config.load import load_job, parse_override
from projector.errors import ConfigError
from projector.units import read_amount

JOB = {
    "model": "llama3.1_8b",
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 4},
}


@pytest.mark.parametrize(
    ("text", "name", "amount"),
    [
        ("8k", "", 8000.0),
        ("8K", "global_batch_size", 8000.0),
        ("8k", "seq_length", 8192.0),
        ("128k", "max_position_embeddings", 131072.0),
        ("1.5M", "", 1.5e6),
        ("300B", "", 3e11),
        ("15.6T", "", 15.6e12),
        ("1,000", "", 1000.0),
        ("4096", "interval_s", 4096.0),
        # No numbers, and letters that could be another unit.
        ("4,8", "", "4,8"),
        ("8 kB", "", "8 kB"),
        ("bf16", "", "bf16"),
        ("5m", "interval_s", "5m"),
        ("80G", "hbm_gib", "80G"),
        (None, "", None),
        (8, "", 8),
    ],
)
def test_amounts(text, name, amount):
    assert read_amount(text, name) == amount


def test_overrides_of_numbers_take_letters():
    given = ["seq_length=8k", "global_batch_size=1k", "run.tokens=15T", "usd_per_gpu_hour=2"]
    job = load_job(JOB, dict(map(parse_override, given)))
    assert (job.training.seq_length, job.training.global_batch_size) == (8192, 1000)
    assert job.run.tokens == 15e12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training.seq_length=8q", "whole number"),
        ("training.global_batch_size=1.0005k", "whole number"),
        ("parallelism.tp=4,8", "whole number"),
        ("run.checkpoint.interval_s=5m", "a number"),
    ],
)
def test_other_texts_are_one_error(text, words):
    key, value = parse_override(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_job(JOB, {key: value})
    assert caught.value.key == key


def test_text_stays_text():
    with pytest.raises(ConfigError, match="region"):
        load_job(JOB, {"run.energy.grid": "1k"})


def test_options_take_letters(capsys):
    assert run(["gemm", "512", "512", "512", "--batch", "1k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gemms"][0]["batch"] == 1000
    assert run(["search", "--top", "1.0005k"]) == 2
    assert "'1.0005k' is not a valid integer" in capsys.readouterr().err
    assert run(["search", "--most-seconds", "5m"]) == 2
    assert "'5m' is not a valid float" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("performance --tp 2", "write tp=VALUE, which sets parallelism.tp"),
        ("performance --mbs 2", "which sets training.micro_batch_size"),
        ("memory --nodes 2", "which sets cluster.nodes"),
        ("search --max-tp 8", "tp=8 keeps one degree"),
        ("serve --nodes 2", "--gpus how many a search may take"),
        ("performance --foo 2", "No such option '--foo' (see"),
        ("serve --gpu 2", "Did you mean"),
    ],
)
def test_an_unknown_option_names_what_does_it(line, words, capsys):
    assert run(line.split()) == 2
    assert words in capsys.readouterr().err
