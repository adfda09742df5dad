"""Sweeps into an object store: `memory` of this process, and a server that speaks S3."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError, UnsupportedError
from projector.sweeps import journal, places, store
from projector.sweeps.engine import sweep
from sweeps.grid import AXES, BASE, grid

pytest.importorskip("upath", reason="extra cloud")

CHUNK_POINTS = 16
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from projector.sweeps import engine, store
from sweeps.grid import grid

store.CHUNK_POINTS = {points}
engine.sweep(grid(), {out!r}, workers=1, progress=lambda *now: print(*now, flush=True))
"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(store, "CHUNK_POINTS", CHUNK_POINTS)


@pytest.fixture(scope="module")
def server():
    """A server in this process; what is set makes everyone use it."""
    pytest.importorskip("s3fs", reason="extra cloud")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    boto3 = pytest.importorskip("boto3")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        yield boto3.client("s3")
    running.stop()


@pytest.fixture(params=["memory", "s3"])
def out(request, tmp_path):
    """A folder of a store, of this test alone."""
    name = f"bucket-{tmp_path.name.lower().replace('_', '-')}"[:60].rstrip("-")
    if request.param == "s3":
        request.getfixturevalue("server").create_bucket(Bucket=name)
    return f"{request.param}://{name}/rows.parquet"


@pytest.fixture
def expected(tmp_path):
    folder = tmp_path / "local"
    sweep(grid(), folder, workers=1)
    return folder


def content(out):
    return {path.name: path.read_bytes() for path in places.folder_of(out).iterdir()}


def parts(out):
    return {name: read for name, read in content(out).items() if name.startswith("part-")}


def lines(out):
    return sorted(line for line, _ in journal.entries(places.folder_of(out)))


def same(out, expected):
    assert parts(out) == parts(expected)
    assert lines(out) == lines(expected)
    assert content(out)["_sweep.json"] == (expected / "_sweep.json").read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_are_those_of_a_folder(workers, out, expected):
    found = pj.sweep(grid(), out, workers=workers)
    same(out, expected)
    here = pj.sweep(grid(), expected)
    assert found.output == out
    assert found.to_arrow().equals(here.to_arrow())
    assert found.best(3) == here.best(3)
    assert found.pareto().equals(here.pareto())


def test_a_finished_sweep_is_left_alone(out):
    first = sweep(grid(), out, workers=1)
    kept = content(out)
    again = sweep(grid(), out, workers=1)
    assert (again.computed, again.rows) == (0, first.rows)
    assert content(out) == kept


def test_what_was_interrupted_goes_on(out, expected):
    def stop(done, *_):
        if done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(grid(), out, workers=1, progress=stop)
    begun = lines(out)
    assert 0 < len(begun) < len(lines(expected))
    done = []
    found = sweep(grid(), out, workers=1, progress=lambda *now: done.append(now[0]))
    assert len(done) == len(lines(expected)) - len(begun)
    assert found.rows == sweep(grid(), expected).rows
    same(out, expected)


@pytest.mark.parametrize("damage", ["gone", "cut", "line"])
def test_what_is_missing_is_computed_again(damage, out, expected):
    sweep(grid(), out, workers=1)
    folder = places.folder_of(out)
    part = folder / min(parts(out))
    if damage == "line":
        places.write(folder / f"{journal.LINE}000002", b'{"chunk": \n')
    elif damage == "cut":
        places.write(part, part.read_bytes()[:-5])
    else:
        part.unlink()
    found = sweep(grid(), out, workers=1)
    assert len(found.warnings) == (damage != "line")
    same(out, expected)


def test_verify_finds_a_wrong_byte(out, expected):
    sweep(grid(), out, workers=1)
    part = places.folder_of(out) / min(parts(out))
    whole = bytearray(part.read_bytes())
    whole[len(whole) // 4] ^= 1
    places.write(part, whole)
    assert sweep(grid(), out, workers=1).computed == 0
    found = sweep(grid(), out, workers=1, verify=True)
    assert f"{part.name} is computed again" in found.warnings[0]
    same(out, expected)


def test_another_sweep_is_kept_unless_overwritten(out):
    sweep(grid(), out, workers=1)
    other = grid({**AXES, "training.global_batch_size": [64]})
    with pytest.raises(ConfigError, match="holds another sweep"):
        sweep(other, out, workers=1)
    assert sweep(other, out, workers=1, overwrite=True).rows == sweep(other, workers=1).rows


def test_a_run_that_was_overwritten_writes_no_more(out):
    """Nothing locks a store; what another run has begun there since is not mixed with ours."""
    other = grid({**AXES, "training.global_batch_size": [64]})
    with pytest.raises(ConfigError, match="another run has overwritten it with another sweep"):
        sweep(
            grid(), out, workers=1, progress=lambda *_: sweep(other, out, workers=1, overwrite=True)
        )
    kept = content(out)
    assert sweep(other, out, workers=1, verify=True).computed == 0
    assert content(out) == kept


def test_something_else_is_kept(out):
    folder = places.folder_of(out)
    places.write(folder / "notes.txt", b"mine")
    with pytest.raises(ConfigError, match="something else than a sweep"):
        sweep(grid(), out, workers=1)
    assert content(out) == {"notes.txt": b"mine"}


def test_rows_are_written_to_a_store_and_back(out, expected, tmp_path):
    sweep(grid(), workers=1).write(out)
    same(out, expected)
    sweep(grid(), out).write(tmp_path / "back")
    assert parts(tmp_path / "back") == parts(expected)


@pytest.fixture
def space(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump({"base": BASE, "axes": AXES}), encoding="utf-8")
    return str(file)


def test_the_command(server, space, tmp_path, capsys):
    server.create_bucket(Bucket="of-the-command")
    out = "s3://of-the-command/a/b/rows.parquet"
    arguments = ["sweep", space, "--out", out, "--workers", "1", "--quiet"]
    assert run([*arguments, "--csv", str(tmp_path / "rows.csv")]) == 0
    assert f"Rows: {out}" in capsys.readouterr().out
    assert (tmp_path / "rows.csv").stat().st_size > 0
    assert run([*arguments, "--verify"]) == 0


@pytest.mark.thorough
def test_a_process_that_is_killed_loses_nothing(server, expected):
    server.create_bucket(Bucket="of-the-killed")
    out = "s3://of-the-killed/rows.parquet"
    tests = str(Path(__file__).parents[1])
    script = SCRIPT.format(tests=tests, points=CHUNK_POINTS, out=out)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    begun = lines(out)
    assert 2 <= len(begun) < len(lines(expected))
    assert set(begun) <= set(lines(expected))
    sweep(grid(), out, workers=1)
    same(out, expected)


@pytest.mark.thorough
def test_workers_of_a_cluster_write_parts_themselves(server, expected, monkeypatch):
    distributed = pytest.importorskip("distributed")
    server.create_bucket(Bucket="of-the-cluster")
    out = "s3://of-the-cluster/rows.parquet"
    carried = []
    put = store.Store.put
    monkeypatch.setattr(
        store.Store, "put", lambda self, part: carried.append(part.content) or put(self, part)
    )
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as two,
        distributed.Client(two, set_as_default=False) as client,
    ):
        sweep(grid(), out, engine="dask", scheduler=client)
    assert carried
    assert not any(carried)
    same(out, expected)


@pytest.mark.parametrize("out", ["ftp://host/rows", "http://host/rows"])
def test_other_stores_are_refused(out):
    with pytest.raises(ConfigError, match=r"legal: a folder, s3://"):
        sweep(grid(), out, workers=1)


def test_a_bucket_that_is_not_there(server):
    with pytest.raises(ConfigError, match="cannot be written"):
        sweep(grid(), "s3://of-nobody/rows", workers=1)


def test_a_store_that_does_not_answer(server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(ConfigError, match="cannot be written"):
        sweep(grid(), "s3://of-nobody/rows", workers=1)
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_part_says_which_sweep_it_is(out):
    found = sweep(grid(), out, workers=1)
    first = places.folder_of(out) / min(parts(out))
    with first.open("rb") as stream:
        assert pq.read_schema(stream).metadata == found.plan.schema().metadata


@pytest.mark.parametrize("out", ["s3://", "s3:///", "s3:///rows", "gs://", "memory://"])
def test_a_store_without_a_bucket_is_refused(out):
    with pytest.raises(ConfigError, match=r"names no bucket; write \w+://BUCKET/FOLDER"):
        sweep(grid(), out, workers=1)


@pytest.mark.parametrize("name", ["run*", "r[u]n1", "run?"])
def test_a_pattern_is_no_name_of_a_folder(name):
    """Fsspec would remove what is in all folders that it matches."""
    sweep(grid(), "memory://of-patterns/run1", workers=1)
    kept = content("memory://of-patterns/run1")
    with pytest.raises(ConfigError, match="would name other folders too"):
        sweep(grid(), f"memory://of-patterns/{name}", workers=1, overwrite=True)
    assert content("memory://of-patterns/run1") == kept


def test_the_command_says_that_its_memory_is_lost(space, capsys):
    assert run(["sweep", space, "--out", "memory://of-a-command/rows", "--workers", "1"]) == 0
    assert "the rows are lost" in capsys.readouterr().err


def test_a_store_that_says_nothing(server, monkeypatch):
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(places, "LONGEST_ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UnsupportedError, match=r"no answer for 0\.5 s"):
            sweep(grid(), "s3://of-nobody/rows", workers=1)
    s3fs.S3FileSystem.clear_instance_cache()
