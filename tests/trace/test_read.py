"""Reading traces."""

from pathlib import Path

import pytest

from projector.trace.read import load_trace

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "rank", "world", "vendor", "device_events"),
    [
        ("a100_ddp2", 0, 2, "NVIDIA", 2700 + 960 + 114),
        ("b200_eager_rank0", 0, 8, "NVIDIA", 768 + 161),
        ("mi250_toy", 0, 0, "AMD", 14 + 2),
        ("mi300x_resnet_ddp8", 0, 8, "AMD", 2995 + 550 + 108),
    ],
)
def test_every_event_of_a_device_is_read(
    name: str, rank: int, world: int, vendor: str, device_events: int
) -> None:
    trace = load_trace(DATA / f"{name}.json.gz")
    (one,) = trace.ranks
    assert (one.rank, one.world_size, one.vendor) == (rank, world, vendor)
    assert int((one.events.kind <= 2).sum()) == device_events
    assert one.events.start_ps.min() >= 0
    assert not trace.problems
