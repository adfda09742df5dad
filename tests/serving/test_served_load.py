import numpy as np
import pytest

from projector.errors import ConfigError
from projector.serving.load import Load, Scheduler

COUNT = 20_000


def load(**settings):
    return Load.parse({"rate_per_s": 4.0, "requests": COUNT} | settings)


@pytest.mark.parametrize(
    ("arrival", "cv"), [("poisson", 1.0), ("gamma", 2.0), ("gamma", 0.5), ("constant", 0.0)]
)
def test_gaps_have_mean_and_spread(arrival, cv):
    drawn = load(arrival=arrival, cv=cv or 1.0).draw()
    gaps = np.diff(drawn.arrival_s, prepend=0.0)
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_lengths():
    drawn = load(
        input_tokens={"kind": "uniform", "low": 10, "high": 20},
        output_tokens={"kind": "lognormal", "mean": 300, "cv": 0.5},
    ).draw()
    assert set(drawn.input_tokens) == set(range(10, 21))
    assert drawn.output_tokens.mean() == pytest.approx(300, rel=0.02)
    assert drawn.output_tokens.std() == pytest.approx(150, rel=0.05)
    assert set(load(input_tokens=7).draw().input_tokens) == {7}


def test_table_of_lengths(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n5,50\n7,70\n")
    drawn = load(table=str(path)).draw()
    pairs = set(zip(drawn.input_tokens.tolist(), drawn.output_tokens.tolist(), strict=True))
    assert pairs == {(5, 50), (7, 70)}


def test_random_numbers_depend_on_seed_and_position_alone():
    settings = {"output_tokens": {"kind": "lognormal", "mean": 300, "cv": 0.5}}
    few, many = load(requests=10, **settings).draw(), load(**settings).draw()
    for short, long in zip(few, many, strict=True):
        np.testing.assert_array_equal(short, long[:10])
    faster = load(rate_per_s=8.0, **settings).draw()
    np.testing.assert_allclose(faster.arrival_s, many.arrival_s / 2.0)
    np.testing.assert_array_equal(faster.output_tokens, many.output_tokens)
    other = load(seed=1, **settings).draw()
    assert not np.array_equal(other.output_tokens, many.output_tokens)
    # Lengths stay where only the arrivals differ.
    closed = Load.parse({"arrival": "closed", "concurrency": 3, "requests": COUNT} | settings)
    np.testing.assert_array_equal(closed.draw().output_tokens, many.output_tokens)


def test_duration_cuts_the_load():
    drawn = load(duration_s=100.0).draw()
    assert len(drawn.arrival_s) == len(drawn.output_tokens) == pytest.approx(400, rel=0.2)
    with pytest.raises(ConfigError, match="no request arrives"):
        load(duration_s=1e-9).draw()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"rate_per_s": None}, "rate_per_s"),
        ({"rate_per_s": -1.0}, "rate_per_s"),
        ({"arrival": "offline"}, "rate_per_s"),
        ({"arrival": "closed", "rate_per_s": None}, "concurrency"),
        ({"concurrency": 3}, "concurrency"),
        ({"input_tokens": 0}, "input_tokens.mean"),
        ({"input_tokens": {"kind": "uniform", "low": 5, "high": 4}}, "input_tokens.high"),
        ({"input_tokens": {"kind": "lognormal"}}, "input_tokens.mean"),
        ({"table": "nowhere.csv"}, "table"),
        ({"requests": 0}, "requests"),
        ({"warm_up": 0.5}, "warm_up"),
        ({"ratte_per_s": 3}, "ratte_per_s"),
    ],
)
def test_bad_loads(settings, key):
    with pytest.raises(ConfigError) as caught:
        load(**settings)
    assert caught.value.key == key


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "input_tokens,output_tokens\n", "", "x"])
def test_bad_tables(tmp_path, text):
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load(table=str(path))
    path.write_text("input_tokens,output_tokens\n0,3\n")
    with pytest.raises(ConfigError, match="from 1"):
        load(table=str(path))


def test_scheduler_knows_the_names_of_engines():
    scheduler = Scheduler.parse({"max_batch_size": 8, "max_num_tokens": 100, "block_size": 32})
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (8, 100)
    assert scheduler.page_tokens == 32
