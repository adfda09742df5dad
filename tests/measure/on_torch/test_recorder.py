"""A training loop on a CPU, recorded."""

import gzip
import json

import pytest

torch = pytest.importorskip("torch")

from projector.errors import ConfigError  # noqa: E402
from projector.measure.launch import record_command  # noqa: E402
from projector.measure.recorder import plain_name, record_trace  # noqa: E402

SCRIPT = """
import sys
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
critic = torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
for _ in range(int(sys.argv[1])):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    critic.step()
    optimizer.zero_grad()
assert __name__ == "__main__"
sys.exit(0)
"""


def loop(recorder, steps):
    layer = torch.nn.Linear(8, 8)
    for _ in range(steps):
        layer(torch.randn(4, 8)).sum().backward()
        recorder.step()


def events(path):
    with gzip.open(path) as stream:
        return json.load(stream)["traceEvents"]


def annotations(path):
    return [event["name"] for event in events(path) if event.get("cat") == "user_annotation"]


def test_two_lines_in_a_loop_record_the_iterations_after_the_warm_up(tmp_path):
    with record_trace(tmp_path / "new" / "traces", warmup=2, active=3, period_s=0.01) as recorder:
        loop(recorder, 7)
    assert recorder.path == tmp_path / "new" / "traces" / "rank0.json.gz"
    found = annotations(recorder.path)
    assert [name for name in found if name.startswith("ProfilerStep")] == [
        "ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"
    ]  # fmt: skip
    assert found.count("nn.Module: Linear") == 3
    assert not (recorder.path.parent / "counters.sh").exists()


def test_a_loop_that_ends_in_the_warm_up_is_told(tmp_path, capsys):
    with record_trace(tmp_path, warmup=5, active=2, samples=False) as recorder:
        loop(recorder, 3)
    assert not recorder.path.exists()
    assert "nothing was recorded: the loop ended after 3 iterations" in capsys.readouterr().err


def test_a_loop_that_ends_early_keeps_what_it_had(tmp_path):
    with record_trace(tmp_path, warmup=1, active=50, samples=False, modules=False) as recorder:
        loop(recorder, 4)
    found = annotations(recorder.path)
    assert "ProfilerStep#1" in found
    assert "ProfilerStep#3" in found


def test_hooks_are_gone_after_an_error(tmp_path):
    recorders = []

    def breaks():
        with record_trace(tmp_path, warmup=1, active=2, samples=False) as recorder:
            recorders.append(recorder)
            loop(recorder, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks()
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks
    assert recorders[0].path.exists()


@pytest.mark.parametrize(
    ("key", "value"), [("warmup", 0), ("active", 0), ("period_s", 0.0), ("period_s", float("nan"))]
)
def test_counts_that_make_no_sense_are_refused(tmp_path, key, value):
    with pytest.raises(ConfigError) as refused, record_trace(tmp_path / "x", **{key: value}):
        pass
    assert refused.value.key == key
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"), record_trace(tmp_path / "file" / "x"):
        pass


@pytest.mark.thorough
def test_a_script_is_recorded_as_it_is(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [str(script), "6"]
    left = record_command(command, tmp_path / "out", ["--warmup", "2", "--active", "3"])
    assert len(left.traces) == 1
    found = annotations(left.traces[0])
    # Two optimizers step in each iteration; the first one ends it.
    assert [name for name in found if name.startswith("ProfilerStep")] == [
        "ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"
    ]  # fmt: skip
    assert found.count("nn.Module: 2") == 3


def test_wrappers_do_not_count_as_modules():
    name = "module._fsdp_wrapped_module.layers.3._checkpoint_wrapped_module.mlp"
    assert plain_name(name) == "layers.3.mlp"
    assert plain_name("module") == ""


def test_a_script_may_change_its_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with record_trace("traces", warmup=1, active=2, samples=False) as recorder:
        monkeypatch.chdir(tmp_path / "elsewhere")
        loop(recorder, 4)
    assert recorder.path == tmp_path / "traces" / "rank0.json.gz"
    assert recorder.path.exists()


def test_training_goes_on_where_the_trace_cannot_be_written(tmp_path, capfd):
    with record_trace(tmp_path, warmup=1, active=2, samples=False) as recorder:
        recorder.path.mkdir()
        loop(recorder, 4)
    assert recorder.steps == 4
    assert "rank0.json.gz cannot be written" in capfd.readouterr().err


def test_a_process_has_one_recorder(tmp_path):
    def second():
        with record_trace(tmp_path / "b", warmup=1, active=2):
            pass

    with record_trace(tmp_path / "a", warmup=1, active=2, samples=False) as recorder:
        with pytest.raises(ConfigError, match="profiled already"):
            second()
        loop(recorder, 4)
    assert recorder.path.exists()
    with torch.profiler.profile(), pytest.raises(ConfigError, match="profiled already"):
        second()


@pytest.mark.parametrize("counts", [{"warmup": 1.5}, {"active": "a"}, {"period_s": float("nan")}])
def test_counts_that_make_no_sense_are_shown(tmp_path, counts):
    with pytest.raises(ConfigError, match=repr(next(iter(counts.values())))):
        record_trace(tmp_path, **counts).__enter__()
