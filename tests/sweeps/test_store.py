"""A sweep on disk is whole at any moment, and continues."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from projector.errors import ConfigError, OutOfMemoryError
from projector.sweeps import journal, store
from projector.sweeps.engine import sweep
from projector.sweeps.table import load_space
from sweeps.grid import AXES, BASE, grid

SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from projector.sweeps import engine, store
from sweeps.crews import start_at_once
from sweeps.grid import grid
start_at_once()
store.CHUNK_POINTS = 16
told = []
def tell(*now):
    print(*now, flush=True)
    told.append(now)
    while len(told) == 5:
        time.sleep(1)
engine.sweep(grid(), {out!r}, workers={workers}, progress=tell)
"""


def content(folder):
    """Return every file with its bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def _patched():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "CHUNK_POINTS", 48)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, _patched):
    """A finished sweep, its result and its content."""
    folder = tmp_path_factory.mktemp("whole") / "rows.parquet"
    return folder, sweep(grid(), folder), content(folder)


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of the finished sweep."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, data in whole[2].items():
        (folder / name).write_bytes(data)
    return folder


def test_the_dataset_is_the_table(whole):
    folder, result, _ = whole
    table = sweep(grid()).to_arrow()
    assert result.to_arrow().equals(table)
    assert ds.dataset(folder).to_table().equals(table)
    assert pq.read_table(folder).equals(table)
    assert result.output == str(folder)
    assert result.rate_per_s == pytest.approx(result.rows / result.seconds)


def test_names_and_metadata(whole):
    folder, _, files = whole
    parts = sorted(name for name in files if not name.startswith("_"))
    # The last points are illegal: a chunk without rows has no part.
    assert parts == [f"part-{number:06d}.parquet" for number in range(4)]
    assert len(files["_chunks.jsonl"].splitlines()) == 5
    space = grid()
    metadata = pq.read_schema(folder / parts[0]).metadata
    assert metadata[b"projector.space_digest"].decode() == space.digest
    assert json.loads(metadata[b"projector.space"]) == space.to_dict()
    assert metadata[b"projector.schema_version"] == b"1"
    assert b"projector.version" in metadata
    assert json.loads(files["_sweep.json"])["digest"] == space.digest


def test_columns_are_optional_where_values_may_be_missing(tmp_path):
    axes = {
        "parallelism.tp": [1, 2],
        "parallelism.sharding_group_size": [None, 2],
        "training.global_batch_size": {"expression": "32 * tp"},
    }
    whole = sweep({"base": BASE, "axes": axes}, tmp_path / "rows")
    schema = whole.to_arrow().schema
    optional = {field.name for field in schema if field.nullable}
    assert optional == {"parallelism.sharding_group_size", "training.global_batch_size"}
    assert pq.read_schema(tmp_path / "rows" / "part-000000.parquet").equals(schema)


def test_a_part_may_lack_values_that_others_have(copy):
    first = copy / "part-000000.parquet"
    table = pq.read_table(first)
    values = [None, *table.column("mfu").to_pylist()[1:]]
    column = table.column_names.index("mfu")
    lacking = table.set_column(column, "mfu", pa.array(values, pa.float64()))
    first.write_bytes(store.encode(lacking, table.schema))
    line, *rest = (copy / "_chunks.jsonl").read_text().splitlines()
    line = json.dumps(json.loads(line) | {"bytes": first.stat().st_size})
    (copy / "_chunks.jsonl").write_text("\n".join([line, *rest, ""]))
    result = sweep(grid(), copy)
    assert (result.warnings, result.rate_per_s) == ((), None)
    assert result.to_arrow().column("mfu").to_pylist()[: len(values)] == values


def test_a_finished_sweep_is_left_as_it_is(whole):
    folder, result, files = whole
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = sweep(grid(), folder)
    assert (again.rows, again.infeasible) == (result.rows, result.infeasible)
    assert (again.rate_per_s, again.seconds) == (None, 0.0)
    assert content(folder) == files
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_sweep_continues(workers, tmp_path, monkeypatch):
    out = tmp_path / "out"
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), out=str(out), workers=workers)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with process:
        for _ in range(5):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    monkeypatch.setattr(store, "CHUNK_POINTS", 16)
    finished = len((out / "_chunks.jsonl").read_bytes().splitlines())
    assert 1 <= finished < 14
    kept = {path: path.stat().st_mtime_ns for path in sorted(out.glob("part-*"))[:finished]}
    result = sweep(grid(), out, workers=1)
    fresh = tmp_path / "fresh"
    sweep(grid(), fresh, workers=1)
    assert content(out) == content(fresh)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert result.rows == sweep(grid()).rows


@pytest.mark.usefixtures("at_once")
def test_rows_do_not_depend_on_workers(whole, tmp_path, monkeypatch):
    sweep(grid(), tmp_path / "out", workers=2)
    assert content(tmp_path / "out") == whole[2]


def test_what_memory_holds_is_written_the_same(whole, tmp_path):
    sweep(grid()).write(tmp_path / "one")
    whole[1].write(tmp_path / "two")
    whole[1].write(whole[0])
    assert content(tmp_path / "one") == content(tmp_path / "two") == whole[2]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[: len(data) // 2], "bytes, not"),
        (lambda data: b"x" * len(data), "is damaged"),
        (lambda data: data[:-8] + b"12345678", "is damaged"),
        (None, "is missing"),
    ],
)
def test_a_damaged_part_is_computed_again(damage, told, copy, whole):
    part = copy / "part-000001.parquet"
    if damage is None:
        part.unlink()
    else:
        part.write_bytes(damage(part.read_bytes()))
    result = sweep(grid(), copy)
    (warning,) = result.warnings
    assert "part-000001.parquet is computed again" in warning
    assert told in warning
    assert result.to_dict()["warnings"] == [warning]
    parts = {name: data for name, data in content(copy).items() if name[0] != "_"}
    assert parts == {name: data for name, data in whole[2].items() if name[0] != "_"}
    assert result.infeasible == whole[1].infeasible
    assert sweep(grid(), copy).warnings == ()


def test_a_journal_that_was_cut_short(copy, whole):
    journal = copy / "_chunks.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    (copy / "_new-part-000003.parquet").write_bytes(b"half")
    (copy / "part-000007.parquet").write_bytes(b"of nobody")
    result = sweep(grid(), copy)
    assert content(copy) == whole[2]
    assert result.rows == whole[1].rows


def test_a_journal_of_nonsense(copy, whole):
    (copy / "_chunks.jsonl").write_bytes(b'nonsense\n{"chunk": -1}\n[]\n\xff\n')
    sweep(grid(), copy)
    assert content(copy) == whole[2]


def test_another_space_is_refused(copy, whole):
    other = grid({**AXES, "cluster.nodes": [1, 2, 4]})
    with pytest.raises(ConfigError, match=r"another sweep: axes\.cluster\.nodes\.points was"):
        sweep(other, copy)
    assert content(copy) == whole[2]
    with pytest.raises(ConfigError, match=r"training\.seq_length was 2048, is 4096"):
        sweep(grid(**{"training.seq_length": 4096}), copy)
    result = sweep(other, copy, overwrite=True)
    assert result.to_arrow().equals(sweep(other).to_arrow())
    assert ds.dataset(copy).count_rows() == result.rows


def test_overwriting_computes_again(copy, whole):
    result = sweep(grid(), copy, overwrite=True)
    assert result.rate_per_s > 0
    assert content(copy) == whole[2]


def test_a_name_that_cannot_be_read(copy):
    (copy / "_sweep.json").write_text("{")
    other = grid(**{"training.seq_length": 4096})
    with pytest.raises(ConfigError, match="cannot be read"):
        sweep(other, copy)
    sweep(other, copy, overwrite=True)


def test_any_bit_of_a_name_may_be_wrong(copy, whole):
    path = copy / "_sweep.json"
    name = path.read_bytes()
    for place in range(0, len(name), len(name) // 8):
        damaged = bytearray(name)
        damaged[place] ^= 1 << place % 7
        path.write_bytes(damaged)
        result = sweep(grid(), copy, workers=1)
        assert content(copy) == whole[2]
        assert result.totals == whole[1].totals
    path.write_bytes(b"{}")
    (copy / "part-000001.parquet").write_bytes(b"of nobody")
    with pytest.raises(ConfigError, match="cannot be read"):
        sweep(grid(), copy)


def test_pages_are_verified_where_asked(copy, whole):
    part = copy / "part-000001.parquet"
    data = bytearray(part.read_bytes())
    with pq.ParquetFile(part) as file:
        column = file.metadata.row_group(0).column(3)
    data[column.data_page_offset + column.total_compressed_size - 2] ^= 1
    part.write_bytes(data)
    result = sweep(grid(), copy, workers=1)
    assert result.warnings == ()
    with pytest.raises(ConfigError, match="--verify"):
        result.to_arrow()
    (warning,) = sweep(grid(), copy, workers=1, verify=True).warnings
    assert "part-000001.parquet is computed again: it is damaged" in warning
    assert sweep(grid(), copy, workers=1, verify=True).warnings == ()
    parts = {name: data for name, data in content(copy).items() if name[0] != "_"}
    assert parts == {name: data for name, data in whole[2].items() if name[0] != "_"}


def test_a_limit_in_which_readers_would_abort_is_refused(tmp_path, monkeypatch):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = (used + (100 << 20), resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    with pytest.raises(OutOfMemoryError, match=r"ulimit -v.* allow 512 MiB or more"):
        sweep(grid(), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_places_that_are_no_sweep(overwrite, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="it is a file"):
        sweep(grid(), file, overwrite=overwrite)
    with pytest.raises(ConfigError, match="something else than a sweep"):
        sweep(grid(), tmp_path, overwrite=overwrite)
    with pytest.raises(ConfigError, match="no folder"):
        sweep(grid(), tmp_path / "no" / "where", overwrite=overwrite)
    with pytest.raises(ConfigError, match="cannot be written"):
        sweep(grid(), "/proc/sweep", overwrite=overwrite)
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(ConfigError, match="cannot be written"):
            sweep(grid(), tmp_path / name, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "mine"


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, whole):
    out, write = tmp_path / "out", Path.write_bytes

    def full(path, data):
        if path.name.endswith("000002"):
            write(path, data[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ConfigError, match="out cannot be written: No space left") as caught:
        sweep(grid(), out, workers=1)
    assert caught.value.key == "out"
    assert len((out / "_chunks.jsonl").read_bytes().splitlines()) == 2
    assert list(out.glob("_new-*")) == []
    monkeypatch.setattr(Path, "write_bytes", write)
    sweep(grid(), out)
    assert content(out) == whole[2]


@pytest.mark.usefixtures("at_once", "new_workers")
def test_what_workers_cannot_write_is_one_error(tmp_path, monkeypatch, whole):
    out = tmp_path / "out"
    largest = max(len(data) for name, data in whole[2].items() if name.startswith("part-"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, limits[1]))
    try:
        with pytest.raises(ConfigError, match="out cannot be written: File too large") as caught:
            sweep(grid(), out, workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.key == "out"
    assert list(out.glob("_new-*")) == []
    sweep(grid(), out, workers=2)
    assert content(out) == whole[2]


def test_drafts_of_a_run_that_is_gone_are_no_parts(copy, whole):
    (copy / "_chunks.jsonl").unlink()
    draft = store.write_draft(copy / "_new-0123-", 3, b"half")
    assert draft.size == 4
    sweep(grid(), copy)
    assert content(copy) == whole[2]


def test_a_full_disk_leaves_no_half_of_a_line(copy, whole):
    (copy / "_chunks.jsonl").unlink()

    class Full:
        def __init__(self, path):
            self.stream = path.open("ab", buffering=0)

        def fileno(self):
            return self.stream.fileno()

        def write(self, line):
            return self.stream.write(line[:10])

    stream = Full(copy / "_chunks.jsonl")
    with pytest.raises(OSError, match="No space left"):
        store._append(stream, b"a line that is long\n")
    stream.stream.close()
    assert (copy / "_chunks.jsonl").read_bytes() == b""


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("at_once")
def test_an_interrupt_leaves_what_is_finished(workers, tmp_path, whole, monkeypatch):
    out = tmp_path / "out"

    def interrupt(done, total, rows):
        if done > 120:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(grid(), out, progress=interrupt, workers=workers)
    assert list(out.glob("_new-*")) == []
    assert len((out / "_chunks.jsonl").read_bytes().splitlines()) == 2
    assert pq.read_table(out).num_rows > 0
    sweep(grid(), out)
    assert content(out) == whole[2]


def test_two_runs_do_not_write_one_sweep(copy):
    (copy / "_chunks.jsonl").unlink()

    def second(*_):
        with pytest.raises(ConfigError, match="another run is writing"):
            sweep(grid(), copy)

    sweep(grid(), copy, progress=second)


def test_a_finished_sweep_may_be_read_only(copy, whole, monkeypatch):
    take = store.Store._take_lock
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(store.Store, "_take_lock", lambda _: denied)
    assert sweep(grid(), copy).rows == whole[1].rows
    (copy / "part-000000.parquet").unlink()
    with pytest.raises(ConfigError, match="Permission denied"):
        sweep(grid(), copy)
    monkeypatch.setattr(store.Store, "_take_lock", take)
    sweep(grid(), copy)


def test_many_reasons_are_counted_together():
    totals = journal.Totals()
    for number in range(journal.MOST_REASONS + 50):
        totals.add(journal.Totals(infeasible={f"reason {number}": 1}))
    assert len(totals.infeasible) == journal.MOST_REASONS + 1
    assert totals.infeasible[journal.OTHER_REASONS] == 50


def test_files_that_change_afterwards_are_not_read_as_rows(copy):
    result = sweep(grid(), copy)
    part = copy / "part-000001.parquet"
    data = part.read_bytes()
    # One bit of the values; the footer stays as it was.
    column = pq.read_metadata(part).row_group(0).column(0)
    place = column.data_page_offset + column.total_compressed_size - 1
    part.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(ConfigError, match=r"part-000001\.parquet has changed"):
        result.to_arrow()
    part.unlink()
    with pytest.raises(ConfigError, match="rows, not 153"):
        result.pareto()


@pytest.mark.parametrize("spelling", ["v-half", "zerobubble-heuristic"])
def test_parts_of_planned_schedules_are_small_by_any_name(monkeypatch, spelling):
    monkeypatch.setattr(store, "CHUNK_POINTS", 4096)
    base = Path(__file__).parents[2] / "examples" / "mixtral_8x22b_mi355x.yaml"
    axes = {"training.schedule": [spelling], "parallelism.tp": [1, 2]}
    space = load_space({"base": str(base), "axes": axes})
    assert store.chunk_points(space) == store.PLANNED_CHUNK_POINTS
