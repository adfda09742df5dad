"""A device calibrated to a user's own runs."""

import json

import pytest
import yaml

from projector.calibrate.profile import load_base, write_own_profile
from projector.calibrate.runs import calibrate_to_runs, load_runs, read_table, times_s
from projector.cli.main import run
from projector.config import resources
from projector.config.device_file import load_device
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.bands import time_band

JOB = {
    "model": "llama3_8b",
    "parallelism": {"zero_stage": 3},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 1},
}


def write_job(path, **changes):
    data = json.loads(json.dumps(JOB))
    for field, value in changes.items():
        section, _, name = field.partition("__")
        data[section][name] = value
    path.write_text(yaml.safe_dump(data))
    return str(path)


def seconds(path, **overrides):
    return float(times_s([load_job(path, overrides)])[0])


@pytest.fixture
def job(tmp_path):
    return write_job(tmp_path / "job.yaml")


def calibrated(paths, factors):
    times_ms = [1e3 * seconds(path) * factor for path, factor in zip(paths, factors, strict=True)]
    return calibrate_to_runs(*load_runs(paths, times_ms))


def moved(calibration):
    return {field.field: field for field in calibration.fields}


def test_a_run_as_projected_moves_nothing(job):
    calibration = calibrated([job], [1.0])
    for field in calibration.fields:
        assert field.value == pytest.approx(field.prior, rel=1e-3)
    assert calibration.widths_needed == pytest.approx(0.0, abs=1e-9)
    assert "next to nothing" in calibration.warnings[0]


@pytest.mark.parametrize("factor", [0.93, 1.08])
def test_a_run_moves_constants_towards_itself(job, factor):
    calibration = calibrated([job], [factor])
    (own,) = calibration.runs
    before, after = own.before_s / own.measured_s - 1.0, own.after_s / own.measured_s - 1.0
    assert before == pytest.approx(1.0 / factor - 1.0)
    assert abs(after) < 0.5 * abs(before)
    share = moved(calibration)["training_gemm_share.16_bit"]
    assert (share.shift < 0.0) == (factor > 1.0)
    assert abs(share.shift) < 3.0
    assert share.width_left < 0.8


def test_constants_that_no_run_depends_on_are_named(job):
    calibration = calibrated([job], [1.05])
    narrow = moved(calibration)["training_gemm_share.8_bit"]
    assert not narrow.seen
    assert (narrow.value, narrow.shift) == (narrow.prior, 0.0)
    assert narrow.field not in calibration.values
    assert narrow.field in calibration.warnings[-1]


def test_several_runs_tell_constants_apart(tmp_path):
    paths = [
        write_job(tmp_path / f"{seq}.yaml", training__seq_length=seq)
        for seq in (2048, 16384, 65536)
    ]
    slow = {"cluster.device.training_attention_share": 0.8}
    times_ms = [1e3 * seconds(path, **slow) for path in paths]
    calibration = calibrate_to_runs(*load_runs(paths, times_ms))
    found = moved(calibration)
    assert found["training_attention_share"].value == pytest.approx(0.8, abs=0.05)
    assert found["training_attention_share"].width_left < 0.5
    assert abs(found["training_gemm_share.16_bit"].shift) < 0.3


@pytest.mark.parametrize(("factor", "word"), [(2.0, "slower"), (0.5, "faster")])
def test_a_run_beyond_the_priors_is_called_so(job, factor, word):
    calibration = calibrated([job], [factor])
    assert calibration.widths_needed > 3.0
    assert f"{word} than projected by a factor of 2.00" in calibration.warnings[0]
    assert "check recomputation" in calibration.warnings[0]


@pytest.mark.parametrize("factors", [(10.0,), (0.1,), (0.8, 1.25)])
def test_runs_that_are_not_explained_narrow_no_band(factors, job, tmp_path):
    profile = tmp_path / "own.yaml"
    calibration = calibrated([job] * len(factors), factors)
    write_own_profile(calibration, profile)
    assert load_device(str(profile)).calibrated_to == ()
    assert any("keep the band of their class" in warning for warning in calibration.warnings)
    plain, own = load_job(job), load_job(job, {"cluster.device": str(profile)})
    assert time_band(own) == time_band(plain)


def test_a_calibration_is_a_fixed_point(job, tmp_path):
    """A profile that already takes what was measured is left nearly as it is."""
    profile = tmp_path / "own.yaml"
    write_own_profile(calibrated([job], [1.06]), profile)
    time_ms = 1e3 * seconds(job, **{"cluster.device": str(profile)})
    again = calibrate_to_runs(*load_runs([job], [time_ms], device=str(profile)))
    assert all(abs(field.shift) < 0.01 for field in again.fields)


def test_profile_projects_what_the_report_says(job, tmp_path):
    calibration = calibrated([job], [1.1])
    profile = tmp_path / "own.yaml"
    write_own_profile(calibration, profile)
    own = load_device(str(profile))
    assert own.calibrated_to == ("Llama-3-8B, bf16",)
    source = own.sources["training_gemm_share.16_bit"]
    assert source.startswith("fit to 1 own run by projector")
    assert seconds(job, **{"cluster.device": str(profile)}) == pytest.approx(
        calibration.runs[0].after_s
    )


def test_band_of_what_was_calibrated(job, tmp_path):
    profile = tmp_path / "own.yaml"
    write_own_profile(calibrated([job], [1.05]), profile)
    device = {"cluster.device": str(profile)}
    alike = time_band(load_job(job, {**device, "training.seq_length": 8192}))
    class_band = time_band(load_job(job, {"training.seq_length": 8192}))
    assert "calibrated" in alike.basis or alike == class_band
    assert alike.high_90 / alike.low_90 <= class_band.high_90 / class_band.low_90
    other = time_band(load_job(job, {**device, "training.precision": "fp8"}))
    shipped = time_band(load_job(job, {"training.precision": "fp8"}))
    assert other == shipped


# Input ---------------------------------------------------------------------------------------


def test_table_of_runs(tmp_path, job):
    table = tmp_path / "runs.csv"
    table.write_text("job,measured_ms\njob.yaml,512.5\n")
    assert read_table(table) == ([job], [512.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job,measured_ms\n", "has no row"),
        ("job,measured_ms\njob.yaml,fast\n", "line 2 of .* no number in measured_ms"),
        ("job,ms\njob.yaml,5\n", "line 2"),
        ("job,measured_ms\n,5\n", "line 2"),
    ],
)
def test_tables_that_say_nothing(tmp_path, text, message):
    table = tmp_path / "runs.csv"
    table.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_table(table)


def test_no_such_table(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_table(tmp_path / "none.csv")


@pytest.mark.parametrize("time_ms", [0.0, -1.0, float("nan"), float("inf")])
def test_times_are_positive(job, time_ms):
    with pytest.raises(ConfigError, match="not a positive number of milliseconds"):
        load_runs([job], [time_ms])


def test_runs_share_a_device(tmp_path, job):
    other = write_job(tmp_path / "other.yaml", cluster__device="a100")
    with pytest.raises(ConfigError, match="name the device or profile with --device"):
        load_runs([job, other], [500.0, 500.0])
    base, runs = load_runs([job, other], [500.0, 500.0], device="h100")
    assert base.device == "h100"
    assert len(runs) == 2


def test_overrides_hold_for_every_job(job):
    _, runs = load_runs([job], [500.0], {"training.micro_batch_size": 2})
    assert runs[0].loaded().training.micro_batch_size == 2


# Command -------------------------------------------------------------------------------------


def test_command(job, tmp_path, capsys):
    out = tmp_path / "own.yaml"
    arguments = ["calibrate", "--from-run", job, "--measured-ms", "900", "--out", str(out)]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "h100"
    assert found["output"] == str(out)
    assert {"field", "prior", "value", "shift", "width_left", "seen"} == found["fields"][0].keys()
    assert found["runs"][0]["measured_ms"] == 900.0
    assert load_base(str(out)).device == "h100"
    assert run(arguments) == 2
    assert "exists" in capsys.readouterr().err
    assert run([*arguments, "--force", "--quiet"]) == 0
    report = capsys.readouterr().out
    assert "training_gemm_share.16_bit" in report
    assert "no run depends on it" in report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-run", "JOB"], "1 --from-run and 0 --measured-ms"),
        (["--measured-ms", "5"], "0 --from-run and 1 --measured-ms"),
        (
            ["--from-run", "JOB", "--measured-ms", "5", "--holdout", "0.5"],
            "--holdout is for tables",
        ),
        (["--from-run", "JOB", "--measured-ms", "5", "--fields", "a"], "--fields is for tables"),
        (["--from-run", "JOB", "--measured-ms", "5", "gemm_measured"], "gemm_measured"),
        ([], "KIND and FILE.csv, or --from-run"),
        (["gemm_measured", "file.csv"], "--device"),
    ],
)
def test_mistakes(job, capsys, arguments, message):
    assert run(["calibrate", *(job if text == "JOB" else text for text in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_shipped_profiles_are_never_written(job, capsys):
    target = str(resources.data_dir("hardware") / "h100.yaml")
    arguments = ["calibrate", "--from-run", job, "--measured-ms", "900", "--out", target]
    assert run([*arguments, "--force"]) == 2
    assert "is a shipped profile" in capsys.readouterr().err


def test_job_files_are_never_written(job, capsys):
    arguments = ["calibrate", "--from-run", job, "--measured-ms", "900", "--out", job, "--force"]
    assert run(arguments) == 2
    assert "is an input of the calibration" in capsys.readouterr().err
