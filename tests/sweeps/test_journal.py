"""What a sweep on disk says of itself may be spoilt, and what cannot be read may be whole."""

import errno
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from projector.errors import ConfigError, OutOfMemoryError
from projector.sweeps import jobs, journal, store, workers
from projector.sweeps.engine import sweep
from sweeps.grid import grid


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "CHUNK_POINTS", 48)
        folder = tmp_path_factory.mktemp("whole") / "rows.parquet"
        result = sweep(grid(), folder, workers=1)
        yield folder, result


@pytest.fixture
def copy(whole, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in whole[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"chunk": True},
        {"chunk": 0.0},
        {"chunk": "0"},
        {"chunk": None},
        {"chunk": 10**400},
        {"points": -1},
        {"points": [48]},
        {"rows": 49},
        {"fit": 41},
        {"at_risk": 31},
        {"bytes": False},
        {"infeasible": None},
        {"infeasible": []},
        {"infeasible": {"why": "many"}},
        {"infeasible": {"why": 1.5}},
        {"infeasible": {"why": True}},
        {"infeasible": {"why": -1}},
        {"infeasible": {"why": {"deep": 1}}},
        {"infeasible": {"why": 49}},
    ],
    ids=str,
)
def test_a_line_of_wrong_types_is_none(change, copy, whole):
    lines = (copy / journal.JOURNAL).read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[0])
    scale = {"points": entry["points"], "rows": entry["rows"]}
    changed = {
        name: value if not isinstance(value, int) or isinstance(value, bool) or value > 100
        else value + scale.get("points", 0) if value > 0 else value
        for name, value in change.items()
    }  # fmt: skip
    lines[0] = json.dumps({**entry, **changed}).encode() + b"\n"
    (copy / journal.JOURNAL).write_bytes(b"".join(lines))
    assert next(journal.entries(copy))[1] is None
    result = sweep(grid(), copy, workers=1)
    assert result.totals == whole[1].totals


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 900 + "1" + "}" * 900, "1" * 5000])
def test_deep_and_long_lines(text, copy, whole):
    with (copy / journal.JOURNAL).open("ab") as stream:
        stream.write(text.encode() + b"\n")
    assert sweep(grid(), copy, workers=1).totals == whole[1].totals
    (copy / journal.MANIFEST).write_text(text)
    other = grid(**{"training.seq_length": 4096})
    with pytest.raises(ConfigError, match=r"its _sweep\.json cannot be read"):
        sweep(other, copy, workers=1)


def test_a_line_without_end_is_read_in_pieces(copy, monkeypatch):
    monkeypatch.setattr(journal, "LONGEST_LINE", 100)
    assert all(len(line) <= 100 for line, _ in journal.entries(copy))


def test_devices_are_no_journals(copy):
    (copy / journal.JOURNAL).unlink()
    (copy / journal.JOURNAL).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="is a device, not a file"):
        sweep(grid(), copy, workers=1)
    (copy / journal.MANIFEST).unlink()
    (copy / journal.MANIFEST).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="is a device, not a file"):
        sweep(grid(), copy, workers=1)


def test_what_cannot_be_written_is_said_once(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, tmp_path, tmp_path / "no" / "where"):
        with pytest.raises(ConfigError) as caught:
            sweep(grid(), place, workers=1)
        assert caught.value.message.count("cannot be written") == 1


def _fails(error):
    def read(*_, **__):
        raise error

    return read


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 4096 failed"),
        OSError("Couldn't deserialize thrift: std::bad_alloc\n"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
    ids=["here", "Arrow", "within Arrow", "system"],
)
def test_memory_that_ran_out_is_no_change_of_files(error, copy, whole, monkeypatch):
    result = sweep(grid(), copy, workers=1)
    monkeypatch.setattr(pq, "ParquetFile", _fails(error))
    with pytest.raises(OutOfMemoryError, match="memory ran out while") as caught:
        result.to_arrow()
    assert "delete" not in caught.value.message
    # Nor is it damage: what is whole is not computed again.
    with pytest.raises(OutOfMemoryError, match="the sweep is kept"):
        sweep(grid(), copy, workers=1)
    monkeypatch.undo()
    assert sweep(grid(), copy, workers=1).warnings == ()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_what_the_system_refuses_is_no_change_of_files(number, copy, monkeypatch):
    result = sweep(grid(), copy, workers=1)
    monkeypatch.setattr(pq, "ParquetFile", _fails(OSError(number, os.strerror(number))))
    with pytest.raises(ConfigError, match=os.strerror(number)) as caught:
        result.to_arrow()
    assert "delete" not in caught.value.message
    with pytest.raises(ConfigError, match=os.strerror(number)):
        sweep(grid(), copy, workers=1)
    monkeypatch.undo()
    assert sweep(grid(), copy, workers=1).warnings == ()


def test_a_part_that_is_gone_is_named_when_rows_are_copied(copy, tmp_path):
    result = sweep(grid(), copy, workers=1)
    (copy / "part-000000.parquet").unlink()
    with pytest.raises(ConfigError, match=r"has changed since it was swept: it is missing"):
        result.write(tmp_path / "other")


def test_memory_that_runs_out_in_a_worker_is_told_in_a_sentence():
    def project():
        raise np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype(np.float64))

    with pytest.raises(OutOfMemoryError, match="give it fewer workers"):
        workers.unwrap(workers.answer(project), 3)


def test_a_process_without_memory_becomes_no_worker(monkeypatch):
    ended = []
    monkeypatch.setattr(workers, "_become_worker", _fails(MemoryError()))
    monkeypatch.setattr(workers.os, "_exit", ended.append)
    workers._prepare()
    assert ended == [workers.NOT_STARTED]


def test_memory_that_runs_out_here_names_no_file(monkeypatch):
    monkeypatch.setattr(jobs, "evaluate_possible", _fails(MemoryError()))
    with pytest.raises(MemoryError):
        sweep(grid(), workers=1)
