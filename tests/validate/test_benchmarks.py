import pytest

from projector.validate.collectives import loop_of, with_loop_s
from projector.validate.words import said

TORCH = {"source": "ml-engineering", "library": "torch all_reduce_bench NCCL 2.27.7"}
ONE_THREAD = {"source": "Azure/AI-benchmarking-guide ND_H100_v5_results.md", "library": ""}
QUEUED = {"source": "nccl-tests", "library": "NCCL 2.29.2"}


def test_a_queued_call_costs_nothing():
    assert loop_of(QUEUED) is None
    assert with_loop_s(1e-5, loop_of(QUEUED), "nvidia", 8) == 1e-5


def test_a_call_on_an_idle_device_adds_its_launch():
    assert with_loop_s(1e-5, loop_of(TORCH), "amd", 8) == pytest.approx(31e-6)


@pytest.mark.parametrize(
    ("vendor", "ranks", "time_s", "shown_s"),
    [
        ("nvidia", 8, 1e-5, 29.6e-6),
        ("nvidia", 4, 1e-5, 14.8e-6),
        ("amd", 8, 1e-5, 48e-6),
        ("nvidia", 8, 1e-3, 1e-3),
        ("another", 8, 1e-5, 1e-5),
    ],
)
def test_one_thread_launches_device_after_device(vendor, ranks, time_s, shown_s):
    assert with_loop_s(time_s, loop_of(ONE_THREAD), vendor, ranks) == pytest.approx(shown_s)


@pytest.mark.parametrize(
    ("library", "notes", "algorithm"),
    [
        ("NCCL 2.18.5 NVLS", "", "in_network"),
        ("NCCL 2.25.1 Ring", "", "ring"),
        ("RCCL ROCm 6.4.1 NCCL_ALGO=Ring", "", "ring"),
        ("NCCL", "NCCL_ALGO=Tree NCCL_PROTO=LL128", "tree"),
        ("NCCL", "NVLS disabled (ring)", "ring"),
        ("NCCL", "NCCL picks NVLS", ""),
        ("NCCL 2.29.2", "default settings", ""),
    ],
)
def test_a_forced_algorithm(library, notes, algorithm):
    assert said({"library": library, "notes": notes}, "algorithm") == algorithm
