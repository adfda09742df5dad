"""torch's own reader of memory snapshots takes those that are projected."""

import copy
import pickle

import pytest

from projector.report.memory_snapshot import Allocation, Frame, save_snapshot, snapshot_of

torch = pytest.importorskip("torch")
viewer = pytest.importorskip("torch.cuda._memory_viz")

GIB = 1 << 30


@pytest.fixture
def snapshot(tmp_path):
    def made(num_bytes, start_ps, end_ps, category, *names):
        frames = tuple(Frame("forward", 0, name) for name in names)
        return Allocation(0, num_bytes, start_ps, end_ps, category, frames)

    rows = [
        made(4 * GIB, -1, None, "weights", "embedding"),
        made(GIB, 10**9, 4 * 10**9, "activations", "attention.qkv", "layer 0"),
        made(GIB + 3, 2 * 10**9, 3 * 10**9, "activations", "mlp.fc1", "layer 0"),
        made(2 * GIB, 2 * 10**9, None, "optimizer", "update"),
    ]
    path = tmp_path / "snapshot.pickle"
    save_snapshot(snapshot_of(rows, [16 * GIB]), path)
    return pickle.loads(path.read_bytes())


def test_the_summary_of_segments(snapshot):
    text = viewer.segsum(snapshot)
    assert "total_reserved: 16.0GiB" in text
    assert "total_allocated: 6.0GiB" in text


def test_the_trace_as_text(snapshot):
    text = viewer.trace(snapshot)
    assert "Device 0" in text
    assert "cudaMalloc" in text
    assert text.count("# free completed") == 2


def test_flame_graphs(snapshot):
    for flame_graph in (viewer.memory, viewer.segments):
        lines = flame_graph(snapshot, format_flamegraph=lambda text: text).splitlines()
        found = {line.rpartition(" ")[0].rpartition(";")[2] for line in lines}
        assert {"forward:0:embedding", "forward:0:update"} <= found
    assert viewer.compare([], snapshot["segments"], format_flamegraph=lambda text: text).startswith(
        "only_after;"
    )


def test_pages(snapshot):
    for page in (
        viewer.trace_plot(snapshot),
        viewer.trace_plot(snapshot, plot_segments=True),
        viewer.segment_plot(snapshot),
        viewer.trace_plot(copy.deepcopy(snapshot), filter_freed=True),
    ):
        assert "snapshot.pickle" in page
