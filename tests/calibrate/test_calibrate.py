import csv
import itertools
import json

import numpy as np
import pytest
import yaml

from projector.calibrate.fit import changed, field_of, fit
from projector.calibrate.profile import load_base, profile_text, write_profile
from projector.calibrate.run import calibrate, folds, held_out
from projector.cli.main import run
from projector.config import resources
from projector.config.device_file import load_device
from projector.errors import ConfigError, ProjectorError
from projector.single.gemm import gemm_time
from projector.validate import attention, collectives, gemm

DEVICE = "h100"
CLOCK = "sustained_clock_mhz.bf16"
TRUTH = {CLOCK: 1100.0, "gemm_overhead_us": 6.0, "gemm_hbm_efficiency": 0.6}
FIELDS = tuple(TRUTH)

SHAPES = itertools.product(
    (8, 64, 512, 2048, 8192), ((1024, 4096), (4096, 1024), (4096, 14336), (28672, 8192), (512, 512))
)


def gemm_rows(count=None):
    rows = [
        {
            "gpu": "NVIDIA H100-80GB", "op": "gemm", "in_dtype": "bf16", "out_dtype": "bf16",
            "m": str(m), "n": str(n), "k": str(k), "runtime_us": "1", "tflops": "", "doubt": "",
            "clock_note": "",
        }
        for m, (n, k) in SHAPES_LIST
    ]  # fmt: skip
    return rows[:count]


SHAPES_LIST = list(SHAPES)


def measured(rows, values=TRUTH, noise=0.0):
    """Fill in what a device with these values would take."""
    device = changed(load_device(DEVICE), values)
    time_us = gemm.read(rows).times_s(lambda _: device) * 1e6
    factor = np.exp(noise * np.random.default_rng(1).standard_normal(len(rows)))
    return [
        {**row, "runtime_us": repr(float(time))}
        for row, time in zip(rows, time_us * factor, strict=True)
    ]


def write_table(path, rows):
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "gemm.csv", measured(gemm_rows()))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A calibration of `FIELDS` by the table of `table`, made once: it takes seconds."""
    table = write_table(tmp_path_factory.mktemp("calibrated") / "gemm.csv", measured(gemm_rows()))
    return calibrate("gemm_measured", table, DEVICE, fields=FIELDS)


def value_of(calibration, path):
    (field,) = (each for each in calibration.fields if each.field == path)
    return field.value


def test_altered_fields_are_recovered(calibrated):
    found = calibrated
    for path, truth in TRUTH.items():
        assert value_of(found, path) == pytest.approx(truth, rel=0.03)
    assert found.fitted.before["median_ape"] > 0.1
    assert found.fitted.after["p90_ape"] < 0.03
    assert found.cross_validation.after["p90_ape"] < 0.05
    assert found.warnings == []


@pytest.mark.thorough
def test_wild_rows_move_little(tmp_path):
    rows = measured(gemm_rows(), noise=0.03)
    for position in (3, 11):
        rows[position]["runtime_us"] = repr(float(rows[position]["runtime_us"]) * 30.0)
    table = write_table(tmp_path / "gemm.csv", rows)
    found = calibrate("gemm_measured", table, DEVICE, fields=FIELDS)
    for path, truth in TRUTH.items():
        assert value_of(found, path) == pytest.approx(truth, rel=0.15)


def test_rows_put_aside_improve(tmp_path):
    table = write_table(tmp_path / "gemm.csv", measured(gemm_rows(), noise=0.05))
    found = calibrate("gemm_measured", table, DEVICE, fields=FIELDS, holdout=0.5)
    assert found.fitted.rows + found.holdout.rows == len(SHAPES_LIST)
    assert found.fitted.groups + found.holdout.groups == 5
    assert found.holdout.rows >= 5
    assert found.holdout.after["median_ape"] < 0.5 * found.holdout.before["median_ape"]
    assert found.holdout.after["p90_ape"] < found.holdout.before["p90_ape"]


@pytest.mark.thorough
def test_the_order_of_the_table_changes_nothing(tmp_path, table, calibrated):
    rows = measured(gemm_rows())
    other = write_table(tmp_path / "other.csv", rows[::-1])
    first = calibrated.to_dict()
    again = calibrate("gemm_measured", table, DEVICE, fields=FIELDS).to_dict()
    turned = calibrate("gemm_measured", other, DEVICE, fields=FIELDS)
    assert again == first
    for field in first["fields"]:
        assert value_of(turned, field["field"]) == pytest.approx(field["value"], rel=1e-3)


@pytest.mark.thorough
def test_default_fields_follow_the_types_of_the_rows(table):
    found = calibrate("gemm_measured", table, DEVICE)
    names = [field.field for field in found.fields]
    assert [name for name in names if name.startswith("sustained")] == [CLOCK]
    assert "l2_fill_bytes_per_clk_per_cu" in names


def test_attention_is_recovered(tmp_path):
    efficiency = "attention_kernels.fa3.forward_efficiency"
    device = changed(load_device(DEVICE), {efficiency: 0.5})
    rows = [
        {
            "gpu": "H100", "impl": "FlashAttention-3", "dtype": "bf16", "pass": "fwd",
            "batch": "2", "q_heads": "16", "kv_heads": "16", "seq_len": str(length),
            "head_dim": str(dim), "v_head_dim": str(dim), "causal": causal, "tflops": "",
            "time_ms": "1",
        }
        for length in (1024, 4096, 16384)
        for dim in (64, 128)
        for causal in ("True", "False")
    ]  # fmt: skip
    times = attention.read(rows).times_s(lambda _: device) * 1e3
    rows = [{**row, "time_ms": repr(float(t))} for row, t in zip(rows, times, strict=True)]
    table = write_table(tmp_path / "attention.csv", rows)
    found = calibrate("attention_measured", table, DEVICE)
    assert value_of(found, efficiency) == pytest.approx(0.5, rel=0.1)
    backward = next(f for f in found.fields if f.field.endswith("fa3.backward_efficiency"))
    assert (backward.seen, backward.value) == (False, backward.prior)
    assert any("backward_efficiency: no row" in warning for warning in found.warnings)


def test_collectives_are_recovered_and_a_share_leaves_its_bound(tmp_path):
    truth = {
        "scale_up_efficiency": 0.6,
        "collective_start_us": 30.0,
        "collective_self_copy_share": 0.4,
    }
    profile = tmp_path / "h100.yaml"
    profile.write_text(
        "extends: h100\nsources: {test: a share at its bound}\n"
        "collective_self_copy_share: {value: 0.0, source: test}\n"
    )
    start = load_device(str(profile))
    assert field_of(start, "collective_self_copy_share").prior == 0.0
    device = changed(start, truth)
    rows = [
        {
            "gpu": "H100", "n_nodes": nodes, "n_gpus": gpus, "collective": name,
            "message_bytes": str(1 << power), "value": "1", "unit": "us", "metric": "time",
            "notes": "",
        }
        for name in ("all_gather", "reduce_scatter", "alltoall")
        for power in range(12, 31, 3)
        for nodes, gpus in (("1", "2"), ("1", "4"), ("1", "8"), ("2", "16"))
    ]  # fmt: skip
    times = collectives.read(rows).times_s(lambda _: device) * 1e6
    rows = [{**row, "value": repr(float(t))} for row, t in zip(rows, times, strict=True)]
    table = write_table(tmp_path / "collectives.csv", rows)
    found = calibrate("collectives_measured", table, str(profile), fields=tuple(truth))
    for path, value in truth.items():
        assert value_of(found, path) == pytest.approx(value, rel=0.05)
    assert found.left_out == {"more than one node, which the network decides": 21}


def test_the_profile_loads_and_changes_projections(table, tmp_path, calibrated):
    found = calibrated
    out = tmp_path / "mine.yaml"
    write_profile(found, out, table=table)
    device = load_device(out)
    shipped = load_device(DEVICE)
    assert yaml.safe_load(out.read_text())["extends"] == DEVICE
    assert device.sustained_clock_mhz["bf16"] == value_of(found, CLOCK)
    assert device.sustained_clock_mhz["fp8"] == shipped.sustained_clock_mhz["fp8"]
    assert device.l2_mib == shipped.l2_mib
    for part in ("fit of 3 fields", "gemm.csv", found.digest[:16], "25 rows of 5 groups"):
        assert part in device.sources[CLOCK]
    assert "fit of" not in device.sources["l2_mib"]
    expected = gemm_time(8192, 4096, 14336, device=changed(shipped, TRUTH))
    assert gemm_time(8192, 4096, 14336, device=str(out)) == pytest.approx(expected, rel=0.03)
    assert gemm_time(8192, 4096, 14336, device=DEVICE) < 0.9 * expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gemm.csv", "mine.yaml"]


def test_a_profile_is_calibrated_further(table, tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    write_profile(calibrate("gemm_measured", table, DEVICE, fields=[CLOCK]), first, table=table)
    found = calibrate("gemm_measured", table, str(first), fields=["gemm_overhead_us"])
    write_profile(found, second, table=table)
    assert yaml.safe_load(second.read_text())["extends"] == DEVICE
    one, two = load_device(first), load_device(second)
    assert two.sustained_clock_mhz == one.sustained_clock_mhz
    assert two.sources[CLOCK] == one.sources[CLOCK]
    assert two.gemm_overhead_us == value_of(found, "gemm_overhead_us")
    with pytest.raises(ConfigError, match="is an input of the calibration"):
        write_profile(found, first, table=table, force=True)


@pytest.mark.thorough
def test_a_tile_can_be_fitted(tmp_path):
    shipped = load_device(DEVICE)
    paths = [f"gemm_tiles.{i}.efficiency" for i in range(20)]
    table = write_table(tmp_path / "gemm.csv", measured(gemm_rows(), dict.fromkeys(paths, 0.5)))
    found = calibrate("gemm_measured", table, DEVICE, fields=paths)
    out = tmp_path / "tiles.yaml"
    write_profile(found, out, table=table)
    tiles = load_device(out).gemm_tiles
    assert [(t.m, t.n, t.k_bytes) for t in tiles] == [
        (t.m, t.n, t.k_bytes) for t in shipped.gemm_tiles
    ]
    seen = [field for field in found.fields if field.seen]
    assert seen
    for field in seen:
        assert tiles[int(field.field.split(".")[1])].efficiency == field.value


def test_nothing_is_written_where_it_must_not_be(table, tmp_path):
    found = calibrate("gemm_measured", table, DEVICE, fields=[CLOCK])
    out = tmp_path / "mine.yaml"
    write_profile(found, out, table=table)
    text = out.read_text()
    assert text == profile_text(found)
    with pytest.raises(ConfigError, match="--force"):
        write_profile(found, out, table=table)
    out.write_text("old")
    write_profile(found, out, table=table, force=True)
    assert out.read_text() == text
    shipped = resources.find("hardware", DEVICE, key="device")
    before = shipped.read_bytes()
    for place, message in (
        (shipped, "shipped"),
        (shipped.with_name("mine.yaml"), "shipped"),
        (tmp_path / "mine.txt", "must end in"),
        (tmp_path / "nowhere" / "mine.yaml", "cannot be written"),
    ):
        with pytest.raises(ConfigError, match=message):
            write_profile(found, place, table=table, force=True)
    assert shipped.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "lower", "upper", "logarithmic"),
    [
        ("hbm_efficiency", 0.0, 1.0, True),
        ("gemm_overlap_loss", 0.0, 1.0, False),
        ("attention.softmax_exposed", 0.0, 2.0, False),
        ("collective_self_copy_share", 0.0, 2.0, False),
        ("gemm_efficiency.bf16", 0.0, 1.0, True),
        ("gemm_tiles.0.efficiency", 0.0, 1.0, True),
    ],
)
def test_bounds_are_those_of_the_schema(path, lower, upper, logarithmic):
    field = field_of(load_device(DEVICE), path)
    assert (field.upper, field.logarithmic) == (upper, logarithmic)
    assert field.lower == lower if not logarithmic else 0.0 < field.lower <= field.prior / 10
    for bound, coordinate in zip((field.lower, field.upper), field.bounds, strict=True):
        assert field.value(coordinate) == pytest.approx(bound)


def test_a_clock_stays_below_the_peak():
    device = load_device(DEVICE)
    assert field_of(device, CLOCK).upper == device.peak_clock_mhz


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("hbm_efficency", "did you mean 'hbm_efficiency'"),
        ("sustained_clock_mhz.nvfp4", "no number"),
        ("name", "no number"),
        ("compute_units", "no number"),
        ("mall_mib", "a fit cannot start from 0"),
    ],
)
def test_what_cannot_be_fitted_says_so(path, message):
    with pytest.raises(ConfigError, match=message):
        field_of(load_device(DEVICE), path)


def test_folds_hold_out_whole_groups_whatever_the_order():
    groups = [f"g{i % 7}" for i in range(40)]
    parts = folds(groups)
    assert len(parts) == 5
    assert np.array_equal(np.sum(parts, axis=0), np.ones(40))
    chosen = [{g for g, out in zip(groups, part, strict=True) if out} for part in parts]
    assert sum(map(len, chosen)) == 7
    turned = [
        {g for g, out in zip(groups[::-1], part, strict=True) if out}
        for part in folds(groups[::-1])
    ]
    assert turned == chosen
    assert folds(["one"] * 4) == []
    assert not held_out(groups, 0.0).any()
    assert 0.3 <= held_out(groups, 0.5).mean() <= 0.5


def test_a_prior_holds_what_rows_do_not_say():
    field = field_of(load_device(DEVICE), "gemm_overhead_us")
    found = fit([field], lambda points: np.ones((len(points), 3)), np.ones(3))
    assert not found.seen.any()
    assert np.isnan(found.errors).all()
    assert found.coordinates == 0.0


def test_time_that_is_no_time_is_refused():
    field = field_of(load_device(DEVICE), "gemm_overhead_us")
    with pytest.raises(ConfigError, match="not positive"):
        fit([field], lambda points: np.zeros((len(points), 3)), np.ones(3))


def test_doubtful_and_unreadable_rows_are_left_out_and_counted(tmp_path):
    rows = measured(gemm_rows())
    rows[0]["doubt"] = "a throttled card"
    rows[1]["in_dtype"] = "int3"
    rows[2]["n"] = ""
    rows[3]["m"] = "many"
    rows[4]["gpu"] = "B200"
    rows[5]["gpu"] = "a toaster"
    table = write_table(tmp_path / "gemm.csv", rows)
    found = calibrate("gemm_measured", table, DEVICE, fields=[CLOCK])
    assert found.fitted.rows == len(rows) - 6
    assert found.left_out == {
        "another device": 2,
        "doubtful: a throttled card": 1,
        "no n": 1,
        "unknown precision 'int3'": 1,
        "m is 'many', not a number": 1,
    }


def test_a_group_alone_cannot_be_cross_validated(tmp_path):
    rows = [row for row in measured(gemm_rows()) if (row["n"], row["k"]) == ("4096", "1024")]
    table = write_table(tmp_path / "gemm.csv", rows)
    found = calibrate("gemm_measured", table, DEVICE, fields=[CLOCK])
    assert (found.folds, found.cross_validation) == ((), None)
    assert any("one group" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "memory"}, "cannot be calibrated to"),
        ({"kind": "gem_measured"}, "unknown kind"),
        ({"device": "mi300x"}, "no row that mi300x can be fitted to"),
        ({"device": "h1000"}, "unknown GPU"),
        ({"fields": ["gemm_overhed_us"]}, "did you mean 'gemm_overhead_us'"),
        ({"fields": ["tdp_w"]}, "no row of gemm.csv depends on tdp_w"),
        ({"holdout": 1.0}, "not a share"),
        ({"holdout": 0.01}, "every group is larger than 0.01"),
        ({"path": "missing.csv"}, "cannot be read"),
    ],
)
def test_mistakes_are_explained(table, changes, message):
    given = {"kind": "gemm_measured", "path": table, "device": DEVICE, "fields": FIELDS, **changes}
    with pytest.raises(ProjectorError, match=message):
        calibrate(**given)


def test_too_few_rows_are_refused(tmp_path):
    table = write_table(tmp_path / "gemm.csv", measured(gemm_rows(2)))
    with pytest.raises(ConfigError, match="2 rows cannot fit 3 fields"):
        calibrate("gemm_measured", table, DEVICE, fields=FIELDS)


@pytest.mark.thorough
def test_a_profile_of_its_own_has_the_rows_that_name_its_path(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(resources.find("hardware", DEVICE, key="device").read_text())
    base = load_base(str(own))
    assert (base.device, base.files) == (str(own), (own,))
    rows = [{**row, "gpu": str(own)} for row in measured(gemm_rows(12))]
    table = write_table(tmp_path / "gemm.csv", rows)
    found = calibrate("gemm_measured", table, str(own), fields=FIELDS)
    out = tmp_path / "out.yaml"
    write_profile(found, out, table=table)
    assert "extends" not in out.read_text()
    written, values = load_device(str(out)), {each.field: each.value for each in found.fields}
    assert written.name == load_device(DEVICE).name
    assert written.gemm_overhead_us == values["gemm_overhead_us"]
    assert written.sustained_clock_mhz["bf16"] == values["sustained_clock_mhz.bf16"]
    # Rows that name the first profile are those of the calibrated one, too.
    assert calibrate("gemm_measured", table, str(out), fields=FIELDS).fitted.rows == len(rows)


def test_a_profile_extends_another_beside_it(tmp_path):
    (tmp_path / "first.yaml").write_text(f"extends: {DEVICE}\ntdp_w: 500\n")
    second = tmp_path / "second.yaml"
    second.write_text("extends: first.yaml\nhbm_efficiency: 0.5\n")
    base = load_base(str(second))
    assert base.files == (second, tmp_path / "first.yaml")
    assert base.overrides == {"tdp_w": 500, "hbm_efficiency": 0.5}
    assert base.profile.tdp_w == 500


def test_the_command_writes_and_prints_one_object(table, tmp_path, capsys):
    out = tmp_path / "mine.yaml"
    arguments = [
        "calibrate", "gemm_measured", str(table), "--device", "H100", "--json", "--quiet",
        "--fields", ",".join(FIELDS), "--holdout", "0.4", "--out", str(out),
    ]  # fmt: skip
    assert run(arguments) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert found["device"] == DEVICE
    assert found["output"] == str(out)
    assert found["holdout"]["after"]["median_ape"] < found["holdout"]["before"]["median_ape"]
    assert [field["field"] for field in found["fields"]] == list(FIELDS)
    assert load_device(out).gemm_overhead_us == found["fields"][1]["value"]
    assert run(arguments) == 2
    refused = capsys.readouterr()
    assert json.loads(refused.out)["key"] == "out"
    assert "--force" in refused.err


def test_the_report_shows_before_and_after(table, capsys):
    arguments = ["calibrate", "gemm_measured", str(table), "--device", DEVICE]
    assert run([*arguments, "--fields", f"{CLOCK},tdp_w"]) == 0
    printed = capsys.readouterr()
    assert "all folds" in printed.out
    assert "not seen" in printed.out
    assert "warning: tdp_w: no row depends on it" in printed.err
    assert "fitting 2 fields to 25 rows" in printed.err
