"""Rows of a space of deployments are what `project_serving` says of the same documents."""

import numpy as np
import pytest
import yaml

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError, ProjectorError
from projector.sweeps.rows import Projector, reason_of
from projector.sweeps.serving import PERCENTILE_COLUMNS, SLO
from projector.sweeps.table import axis_kinds, load_space

LOAD = {"batch": 16, "context": 1024, "output": 128, "usd_per_gpu_hour": 2.5}
BASE = {"model": "llama3_8b", "device": "h100", "tp": 2, "dtype": "bf16", "load": LOAD}
RATED = {**LOAD, "rate_per_s": 8.0, "requests": 100, "ttft_ms": 300, "tpot_ms": 30}
MOE = {"model": "mixtral_8x7b", "device": "mi300x", "load": LOAD}
DRAFTS = {"tokens": 3, "acceptance": 0.7, "draft_share": 0.1}

SPACES = {
    "devices, splits and types": (
        BASE,
        {
            "device": ["h100", "mi300x"],
            "tp": [1, 3, 8],
            "pp": [1, 2],
            "dtype": ["bf16", "fp8"],
            "batch": [1, 48, 100_000],
        },
    ),
    "lengths, limits and fields of a device": (
        BASE,
        {
            "load.context": [1, 3000],
            "load.output": [None, 1, 300],
            "load.chunk_tokens": [None, 512],
            "load.prompts": [None, 4, 32],
            "cluster.device.hbm_gib": [20.0, 80.0],
            "max_num_batched_tokens": [2048, 8192],
        },
    ),
    "experts on several nodes": (
        MOE,
        {"tp": [1, 2, 8], "attention_dp": [1, 8], "ep": [1, 8], "prefix_share": [0.0, 0.5]},
    ),
    "drafts, and devices that prefill": (
        BASE,
        {
            "speculative": [None, DRAFTS],
            "disaggregated": [None, {"prefill": {"tp": 1}}],
            "load.batch": [1, 64],
        },
    ),
    "open batches": (
        {**BASE, "load": {"context": 512, "output": 64}},
        {"dtype": ["bf16", "fp8"], "load.batch": [None, 8], "model": ["llama3_8b", "llama3.1_70b"]},
    ),
    "open splits": (
        {key: value for key, value in BASE.items() if key != "tp"},
        {"model": ["llama3_8b", "llama3.1_70b"], "load.batch": [None, 1, 900, 10**6], "pp": [1, 2]},
    ),
    "rates": (
        {**BASE, "load": RATED},
        {
            "device": ["h100", "mi300x"],
            "load.rate_per_s": [0.5, 200.0],
            "load.tpot_ms": [None, 1.0, 30.0],
            "scheduler.max_num_seqs": [8, 64],
        },
    ),
    "promises without a rate": (
        {**BASE, "load": {**LOAD, "ttft_ms": 100}},
        {"load.batch": [1, 64, 10**6], "load.tpot_ms": [None, 12.0], "load.context": [512, 8192]},
    ),
}


def alone(base, overrides):
    """Return the projection of one document, and whether it keeps what it promises."""
    promises = {f"load.{name}": base["load"].get(name) for name in ("ttft_ms", "tpot_ms")}
    promises |= {name: overrides[name] for name in promises if name in overrides}
    if "rate_per_s" in base["load"]:
        result = pj.project_serving(deployment=base, overrides=overrides)
        served, capacity = result.under_load, result.capacity
        return result, capacity.replicas is not None if capacity else not served.saturated
    # A load without a rate promises nothing; a space compares, as a search does.
    result = pj.project_serving(deployment=base, overrides={**overrides, **dict.fromkeys(promises)})
    reached = result.ttft_s, 1.0 / result.tokens_per_s_per_user
    limits = zip(promises.values(), reached, strict=True)
    return result, result.fits and all(limit is None or s <= limit / 1e3 for limit, s in limits)


def compare(row, result, met):
    for name in ("ttft_s", "tpot_s", "prompts_s", "tokens_per_s_per_user", "tokens_per_s_per_gpu"):
        assert row[name] == getattr(result, name), name
    for name in ("gpus", "max_batch", "fits", "verdict"):
        assert row[name] == getattr(result, name), name
    told, memory = result.to_dict(), result.to_dict()["memory"]
    assert {name: row[name] for name in told["parallelism"]} == told["parallelism"]
    assert row["load.batch"] == result.batch
    assert row["bound_prefill"] == result.prefill.bound
    assert row["bound_decode"] == result.decode.bound
    assert (row["peak_gib"], row["usable_gib"]) == (memory["peak_gib"], memory["usable_gib"])
    assert row.get("usd_per_million_tokens") == result.usd_per_million_tokens
    assert row.get(SLO, met) == met
    assert row["status"] == ("ok" if result.fits else "does_not_fit")
    served = result.under_load
    for name, which in PERCENTILE_COLUMNS.items() if "replicas" in row else ():
        assert row[name] == (served.percentile_s(*which) if served else None), name
    if result.capacity is not None:
        assert row["replicas"] == (result.capacity.replicas or 0)
        assert row["replica_rate_per_s"] == result.capacity.replica_rate_per_s


@pytest.mark.parametrize("name", SPACES)
def test_rows_equal_projections_bit_for_bit(name):
    base, axes = SPACES[name]
    space = load_space({"base": base, "axes": axes})
    batch = Projector(space, axis_kinds(space)).project(np.arange(space.size))
    rows, reasons = iter(batch.table.to_pylist()), {}
    for point in range(space.size):
        try:
            result, met = alone(base, space.overrides(point))
        except ProjectorError as error:
            reason = reason_of(error)
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        compare(next(rows), result, met)
    assert next(rows, None) is None
    assert batch.infeasible == reasons
    assert batch.rows > space.size // 4


def test_what_cannot_be_simulated_is_refused_by_itself():
    apart = {"disaggregated": [None, {"prefill": {"tp": 1}}]}
    result = pj.sweep({"base": {**BASE, "load": RATED}, "axes": apart}, workers=1)
    assert (result.rows, sum(result.infeasible.values())) == (1, 1)
    assert "a load is simulated on devices that prefill and decode" in next(iter(result.infeasible))
    both = {**BASE, "load": RATED, "disaggregated": {"prefill": {"tp": 1}}}
    assert pj.sweep({"base": both, "axes": {"tp": [1, 2]}}, workers=1).rows == 0


def test_the_best_choice_keeps_what_is_promised():
    load = {**LOAD, "tpot_ms": 12.0}
    axes, batches = {"device": ["h100", "mi300x"]}, {"load.batch": [1, 8, 64, 512, 10**6]}
    whole = pj.sweep({"base": {**BASE, "load": load}, "axes": axes | batches}, workers=1)
    found = pj.sweep({"base": {**BASE, "load": load}, "axes": axes, "best_of": batches}, workers=1)
    rows, kept = whole.to_arrow().to_pylist(), found.to_arrow().to_pylist()
    for row in kept:
        others = [each for each in rows if each["cluster.device"] == row["cluster.device"]]
        within = [each for each in others if each["fits"] and each[SLO]]
        assert row == max(within, key=lambda each: each["tokens_per_s_per_gpu"])
        assert any(each["tokens_per_s_per_gpu"] > row["tokens_per_s_per_gpu"] for each in others)
    assert found.not_best == len(rows) - len(kept)
    ranked = whole.best(100)
    assert {row["load.batch"] for row in ranked} <= {1, 8, 64}
    assert all(row[SLO] and row["fits"] for row in ranked)
    assert all(row[SLO] for row in whole.pareto(["ttft_s", "tokens_per_s_per_user"]).to_pylist())


def test_a_sweep_on_disk_is_continued_and_verified_by_any_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("projector.sweeps.serving.ServingSpace.most_points", 16)
    axes = {"tp": [1, 2, 4, 8], "load.batch": {"range": [1, 16]}}
    space = load_space({"base": BASE, "axes": axes, "constraints": ["gpus * batch <= 64"]})
    alone = pj.sweep(space, tmp_path / "alone", workers=1)
    (tmp_path / "alone" / "part-000002.parquet").write_bytes(b"")
    again = pj.sweep(space, tmp_path / "alone", verify=True)
    assert "is computed again" in again.warnings[0]
    both = pj.sweep(space, tmp_path / "both", workers=2)
    assert again.to_arrow().equals(both.to_arrow())
    assert (alone.rows, alone.infeasible) == (both.rows, {"constraint: gpus * batch <= 64": 8})


def test_expressions_and_short_names_are_those_of_a_serving_file(tmp_path):
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(BASE))
    (tmp_path / "space.yaml").write_text(
        "base: serve.yaml\n"
        "axes:\n"
        "  tp: [1, 2]\n"
        "  context: {scale: [1, 2]}\n"
        "  load.batch: {expression: 'gpus * 2048 // context * 4'}\n"
    )
    space = load_space(tmp_path / "space.yaml")
    assert space.fields == ("tp", "load.context", "load.batch")
    assert [space.overrides(point)["load.batch"] for point in range(4)] == [8, 4, 16, 8]
    assert pj.sweep(space, workers=1).rows == 4
    stated = {**BASE, "load": {**LOAD, "batch": 17}}
    other = load_space({"base": stated, "axes": {"tp": [1]}})
    open_split = {key: value for key, value in stated.items() if key != "tp"}
    assert other.digest != load_space({"base": open_split, "axes": {"tp": [1]}}).digest


@pytest.mark.parametrize("text", ["gpus <= 1", "tp == 1"])
def test_no_expression_reads_a_split_that_is_left_open(text):
    whole = {"base": {**BASE, "model": "llama3.1_70b"}, "axes": {"dtype": ["bf16", "fp8"]}}
    open_split = {key: value for key, value in whole["base"].items() if key != "tp"}
    with pytest.raises(ConfigError, match="reads the split, and tp is left open"):
        load_space({**whole, "base": open_split, "constraints": [text]})
    assert pj.sweep({**whole, "constraints": ["gpus <= 2"]}, workers=1).rows == 2
    tied = {"tp": [1, 2], "load.output": {"expression": "8 * tp"}}
    assert pj.sweep({"base": open_split, "axes": tied}, workers=1).rows == 2


def test_a_load_without_settings_makes_a_serving_file():
    nothing = load_space({"base": {**BASE, "load": None}, "axes": {"load.batch": [1, 2]}})
    assert pj.sweep(nothing, workers=1).rows == 2
    with pytest.raises(ConfigError, match="load: should be a mapping"):
        load_space({"base": {**BASE, "load": 5}, "axes": {"tp": [1]}})
    deployment = {key: value for key, value in BASE.items() if key != "load"}
    with pytest.raises(ConfigError, match="also needs a section load"):
        load_space({"base": deployment, "axes": {"tp": [1]}})


def test_a_table_without_rows_has_its_names(tmp_path):
    axes = {"tp": [1], "load.batch": [1, 2]}
    names = []
    for rows, constraints in ((2, []), (0, ["1 > 2"])):
        swept = pj.sweep({"base": BASE, "axes": axes, "constraints": constraints}, workers=1)
        swept.to_csv(tmp_path / "rows.csv")
        first, *others = (tmp_path / "rows.csv").read_text().splitlines()
        assert len(others) == rows
        names.append(first)
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"parallelism.tp": [1]}, "the base has no field 'parallelism.tp'"),
        ({"speculative.tokens": [1]}, "the base has no speculative"),
        ({"tp": [1], "load.batch": {"expression": "dp"}}, "no such field"),
    ],
)
def test_what_a_serving_file_does_not_have_is_refused(axes, words):
    with pytest.raises(ConfigError, match=words):
        load_space({"base": BASE, "axes": axes})


def test_the_command_lists_what_keeps_its_promises(tmp_path, capsys):
    space = tmp_path / "space.yaml"
    load = {**LOAD, "tpot_ms": 12.0}
    space.write_text(yaml.safe_dump({"base": {**BASE, "load": load}, "axes": {"tp": [1, 2]}}))
    page, picture, table = (tmp_path / name for name in ("page.html", "front.svg", "rows.csv"))
    files = "--html", str(page), "--plot", f"pareto={picture}", "--csv", str(table)
    assert run(["sweep", str(space), "--workers", "1", *files]) == 0
    out = capsys.readouterr().out
    assert "Best that keep what is promised" in out
    assert "TTFT ms" in out
    assert "Throughput against speed" in page.read_text()
    assert picture.stat().st_size
    assert len(table.read_text().splitlines()) == 3
    space.write_text(
        yaml.safe_dump({"base": {**BASE, "load": {**load, "tpot_ms": 0.1}}, "axes": {"tp": [1]}})
    )
    assert run(["sweep", str(space), "--workers", "1"]) == 0
    assert "No row that fits keeps what its load promises" in capsys.readouterr().out


def test_the_command_lists_the_replicas_that_a_rate_needs(tmp_path, capsys):
    space, rates = tmp_path / "space.yaml", {"load.rate_per_s": [1.0, 200.0]}
    space.write_text(yaml.safe_dump({"base": {**BASE, "load": RATED}, "axes": rates}))
    assert run(["sweep", str(space), "--workers", "1"]) == 0
    head, *rows = capsys.readouterr().out.split("Best that keep")[1].splitlines()[1:4]
    at = head.index("replicas") + len("replicas")
    few, many = (int(row[:at].split()[-1]) for row in rows)
    assert 1 == few < many
