"""Sweeps of spaces as users write them."""

import json

import pytest
import yaml

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError, ProjectorError
from projector.sweeps.engine import sweep
from projector.sweeps.table import load_space
from projector.units import to_ms
from sweeps.grid import BASE, excluded

SPACE = {
    "base": BASE,
    "axes": {
        "parallelism.tp": [1, 2, 4, 3],
        "parallelism.pp": [1, 2],
        "training.micro_batch_size": {"powers_of_two": [1, 4]},
        "cluster.nodes": [1, 2],
        "training.global_batch_size": {"expression": "256 // (tp - 2) * nodes"},
    },
    "constraints": ["tp * pp <= 4", "gpus >= 8"],
}


def test_rows_of_a_space_are_its_jobs():
    space, found = load_space(SPACE), sweep(SPACE)
    expected, left_out = [], 0
    for point in range(space.size):
        try:
            overrides = space.overrides(point)
            if excluded(space, overrides) is not None:
                left_out += 1
                continue
            result = pj.project_performance(pj.load_job(BASE, overrides))
        except ProjectorError:
            left_out += 1
        else:
            expected.append((*(overrides[name] for name in space.fields), result.iteration_time_s))
    names = [*space.fields, "iteration_time_ms"]
    rows = found.to_arrow(names).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (*axes, to_ms(seconds)) for *axes, seconds in expected
    ]
    assert sum(found.infeasible.values()) == left_out > 0 < len(rows)
    # What cannot be computed is a point that is left out, not the end.
    assert any("cannot be computed" in reason for reason in found.infeasible)
    assert "constraint: tp * pp <= 4" in found.infeasible


@pytest.mark.usefixtures("at_once")
def test_a_space_goes_to_workers(monkeypatch):
    alone = sweep(SPACE)
    together = sweep(SPACE, workers=2)
    assert together.to_arrow().equals(alone.to_arrow())
    assert together.infeasible == alone.infeasible


def test_the_command_reads_a_file(tmp_path, capsys):
    file, out = tmp_path / "space.yaml", tmp_path / "rows.parquet"
    file.write_text(yaml.safe_dump(SPACE, sort_keys=False))
    assert run(["sweep", str(file), "--out", str(out), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == sweep(SPACE).rows
    assert run(["sweep", str(file), "--dry-run"]) == 0
    assert "48" in capsys.readouterr().out
    other = SPACE | {"axes": SPACE["axes"] | {"cluster.nodes": [1, 2, 4]}}
    with pytest.raises(ConfigError, match=r"axes\.cluster\.nodes\.points was \[\[1\],\[2\]\], is"):
        sweep(other, out)


def test_what_is_no_space():
    for wrong in (3, None, "nowhere.yaml", {}):
        with pytest.raises(ConfigError):
            sweep(wrong)
