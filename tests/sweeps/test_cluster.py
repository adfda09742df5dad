"""A sweep on a Dask cluster is the one of this machine, whatever happens to the cluster."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, get_task_stream

import projector as pj
from projector.cli.main import run
from projector.config.space import Space
from projector.errors import ConfigError, ProjectorError, UnsupportedError
from projector.sweeps import cluster, store
from projector.sweeps.engine import estimate, sweep
from sweeps.grid import AXES, grid

AXES_OF_A_RUN = {**AXES, "training.global_batch_size": [64, 128, 192]}
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from projector.sweeps import engine, store
from sweeps.grid import grid

if __name__ == "__main__":
    store.CHUNK_POINTS = 16
    engine.sweep(
        grid(), {out!r}, engine="dask", workers=2, progress=lambda *now: print(*now, flush=True)
    )
"""


@contextmanager
def local(**settings):
    """A cluster as a user has it."""
    with LocalCluster(
        threads_per_worker=1, protocol="tcp://", dashboard_address="127.0.0.1:0", **settings
    ) as found:
        yield found


@pytest.fixture(scope="module")
def two():
    """Two processes, started again as often as a test ends one."""
    again = {"distributed.deploy.lost-worker-timeout": "1 day"}
    with dask.config.set(again), local(n_workers=2, silence_logs=50) as found:
        yield found


@pytest.fixture
def client(two):
    with Client(two, set_as_default=False) as found:
        # A test before may have cost it one.
        found.wait_for_workers(2)
        yield found


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "_lock"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files of a run on this machine."""
    folder = tmp_path_factory.mktemp("local") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "CHUNK_POINTS", 48)
        sweep(grid(AXES_OF_A_RUN), folder, workers=1)
    return content(folder)


@pytest.mark.parametrize("kind", ["address", "file", "client"])
def test_files_are_those_of_this_machine(kind, two, client, expected, tmp_path, monkeypatch):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": two.scheduler_address}))
    scheduler = {"address": two.scheduler_address, "file": file, "client": client}[kind]
    most = []
    take = cluster.TaskCrew._next
    monkeypatch.setattr(
        cluster.TaskCrew, "_next", lambda crew: most.append(len(crew._waiting)) or take(crew)
    )
    out = tmp_path / "out"
    found = pj.sweep(grid(AXES_OF_A_RUN), out, engine="dask", scheduler=scheduler)
    assert content(out) == expected
    assert found.output == str(out)
    assert max(most) == 2 * cluster.AHEAD
    # Nothing stays behind, and the cluster does.
    assert client.status == "running"
    assert len(client.nthreads()) == 2
    until(lambda: not any(client.has_what().values()))
    until(lambda: not any("projector" in name for name in two.scheduler.task_metadata))


def test_a_cold_sweep_reaches_every_worker(two, client, monkeypatch):
    """Also where there are few tasks and nothing is known of how long they take."""
    monkeypatch.setattr(store, "CHUNK_POINTS", 100)
    two.scheduler.task_prefixes.pop("projector-sweep", None)
    with get_task_stream(client) as seen:
        sweep(grid(), engine="dask", scheduler=client)
    chunks = [task["worker"] for task in seen.data if isinstance(task["key"], tuple)]
    assert 2 <= len(chunks) <= 2 * len(client.nthreads())
    assert {*chunks} == {*client.nthreads()}


@pytest.mark.thorough
def test_a_worker_that_is_killed(two, client, expected, tmp_path):
    victims = list(client.run(os.getpid).values())

    def murder(done, total, rows):
        if done > 200 and victims:
            os.kill(victims.pop(), signal.SIGKILL)
            victims.clear()

    sweep(
        grid(AXES_OF_A_RUN),
        tmp_path / "out",
        engine="dask",
        scheduler=two.scheduler_address,
        progress=murder,
    )
    assert not victims
    assert content(tmp_path / "out") == expected


@pytest.mark.thorough
def test_a_caller_that_is_killed_continues_elsewhere(two, tmp_path, monkeypatch):
    out, script = tmp_path / "out", tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1]), out=str(out)))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for _ in range(7):
            assert process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.kill()
    until(lambda: not any(child.is_running() for child in children))
    monkeypatch.setattr(store, "CHUNK_POINTS", 16)
    assert 1 <= len((out / "_chunks.jsonl").read_bytes().splitlines()) < 14
    sweep(grid(), out, engine="dask", scheduler=two.scheduler_address)
    sweep(grid(), tmp_path / "fresh", workers=1)
    assert content(out) == content(tmp_path / "fresh")


def until(true):
    """Wait for what happens behind the scenes."""
    end = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


class Deadly(Space):
    """A space that ends whoever projects it."""

    def overrides_at(self, places, derived):
        if os.getpid() != self.owner:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().overrides_at(places, derived)


@pytest.mark.thorough
def test_points_that_end_every_worker(two, client, tmp_path, monkeypatch):
    monkeypatch.setattr(two.scheduler, "allowed_failures", 0)
    space = Deadly(grid().base, grid().axes, {}, [])
    space.owner = os.getpid()
    with pytest.raises(ProjectorError, match=r"1 workers .* died with chunk \d+") as caught:
        sweep(space, tmp_path / "out", engine="dask", scheduler=client)
    assert caught.value.key == "workers"
    assert client.status == "running"


class Broken(Space):
    """A space with a mistake of our own."""

    def overrides_at(self, places, derived):
        if os.getpid() != self.owner:
            raise ZeroDivisionError
        return super().overrides_at(places, derived)


class Refused(Space):
    """A space that workers cannot have."""

    def __setstate__(self, state):
        message = "not here"
        raise ConfigError(message, key="base", value=1, allowed="elsewhere")


def test_what_goes_wrong_in_a_task(client, monkeypatch):
    space = grid()
    broken = Broken(space.base, space.axes, {}, [])
    broken.owner = os.getpid()
    with pytest.raises(RuntimeError, match="failed at chunk 0") as caught:
        sweep(broken, engine="dask", scheduler=client)
    assert "ZeroDivisionError" in caught.value.__notes__[0]
    with pytest.raises(ConfigError, match="not here") as caught:
        sweep(Refused(space.base, space.axes, {}, []), engine="dask", scheduler=client)
    assert (caught.value.key, caught.value.value) == ("base", 1)
    # Another projector there, and none.
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "fingerprint", lambda: "9.9.9 (abc)")
        with pytest.raises(UnsupportedError, match=r"not 9\.9\.9 \(abc\); install the same"):
            sweep(space, engine="dask", scheduler=client)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_CALL", cluster._CALL.replace("projector", "of_nobody"))
        with pytest.raises(UnsupportedError, match="No module named 'of_nobody'"):
            sweep(space, engine="dask", scheduler=client)
    # A reader that stops takes its tasks along.
    with pytest.raises(KeyboardInterrupt):
        sweep(space, engine="dask", scheduler=client, progress=interrupt)
    until(lambda: not any(client.has_what().values()))
    assert sweep(space, engine="dask", scheduler=client).rows == 153


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.thorough
def test_a_cluster_that_goes(tmp_path):
    with local(n_workers=1, processes=False, silence_logs=50) as found:

        def leave(done, total, rows):
            if done > 100:
                found.close()

        with pytest.raises(ProjectorError, match=r"is lost .* is kept") as caught:
            sweep(
                grid(),
                tmp_path / "out",
                engine="dask",
                scheduler=found.scheduler_address,
                progress=leave,
            )
    assert caught.value.key == "scheduler"
    assert 1 <= len((tmp_path / "out" / "_chunks.jsonl").read_bytes().splitlines()) < 5


def test_a_cluster_without_workers(monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE_S", 0.2)
    monkeypatch.setattr(cluster, "POLL_S", 0.1)
    with local(n_workers=0) as found:
        space = {"engine": "dask", "scheduler": found.scheduler_address}
        with pytest.raises(ProjectorError, match="has had no worker for"):
            sweep(grid(), **space)
        assert estimate(grid(), **space).legal == 153


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [
        ("tcp://", "neither an address"),
        ("tcp://host", "neither an address"),
        ("pigeon://host:1", "neither an address"),
        ("no/such/file.json", "neither an address"),
        ("", "neither an address"),
        (3, "got 3"),
        (Path(__file__), "not a Dask scheduler file"),
    ],
)
def test_schedulers_that_are_none(scheduler, told):
    with pytest.raises(ConfigError, match=told) as caught:
        sweep(grid(), engine="dask", scheduler=scheduler)
    assert caught.value.key == "scheduler"
    assert caught.value.allowed == cluster.ALLOWED
    json.dumps(caught.value.to_dict())


def test_schedulers_that_do_not_answer(two, client, tmp_path, monkeypatch):
    (worker, *_) = client.nthreads()
    with pytest.raises(ConfigError, match=r"no Dask scheduler answers .* \(a Worker does\)"):
        sweep(grid(), tmp_path / "out", engine="dask", scheduler=worker)
    monkeypatch.setattr(cluster, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Dask scheduler answers at {address}"):
            sweep(grid(), tmp_path / "out", engine="dask", scheduler=address)
    with pytest.raises(ConfigError, match="no Dask scheduler answers"):
        sweep(grid(), tmp_path / "out", engine="dask", scheduler=address)
    assert not (tmp_path / "out").exists()


def test_clients_that_cannot_be_waited_for(two):
    client = Client(two, set_as_default=False)
    client.close()
    with pytest.raises(ConfigError, match="is closed"):
        sweep(grid(), engine="dask", scheduler=client)


def test_options_that_exclude_each_other(two):
    with pytest.raises(ConfigError, match="leave out 2") as caught:
        sweep(grid(), engine="dask", scheduler=two.scheduler_address, workers=2)
    assert caught.value.key == "workers"


def test_dask_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[dask\]'"):
        sweep(grid(), engine="dask")


def test_a_cluster_that_does_not_start(monkeypatch):
    def fail(**_):
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr("distributed.LocalCluster", fail)
    with pytest.raises(ProjectorError, match="__main__") as caught:
        sweep(grid(), engine="dask", workers=2)
    assert caught.value.key == "engine"


@pytest.mark.thorough
def test_the_command(two, tmp_path, capsys):
    space = tmp_path / "space.yaml"
    space.write_text(
        json.dumps({"base": grid().to_dict()["base"], "axes": {"parallelism.tp": [1, 2]}})
    )
    arguments = ["sweep", str(space), "--engine", "dask", "--scheduler", two.scheduler_address]
    assert run([*arguments, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    assert run([*arguments, "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["legal"] == 2
