"""Names of schedules and the rules they have."""

import subprocess
import sys

import pytest

from projector.errors import ScheduleError
from projector.schedule import registry


@pytest.mark.parametrize(
    ("name", "vpp", "expected"),
    [
        ("auto", 1, "1f1b"),
        ("auto", 2, "interleaved"),
        ("gpipe", 1, "gpipe"),
        ("interleaved", 4, "interleaved"),
    ],
)
def test_resolve(name, vpp, expected):
    assert registry.resolve(name, vpp).name == expected


def test_unknown_name_suggests():
    with pytest.raises(ScheduleError, match="did you mean '1f1b'") as error:
        registry.resolve("1F1")
    assert error.value.allowed == ["auto", *registry.SCHEDULES]
    assert error.value.to_dict()["key"] == "schedule"
    with pytest.raises(ScheduleError, match="no schedule 'xyz'; choose one of auto, gpipe"):
        registry.resolve("xyz")


def test_every_name_that_others_rely_on():
    assert {*registry.SCHEDULES} >= {
        "gpipe", "1f1b", "interleaved", "1f1b-v", "zerobubble", "zerobubble-h2", "zbv-formatted",
        "zbv-greedy-min", "zbv-greedy-half", "zbv-greedy-zb", "dualpipe", "seaailab",
        "seaailab-ilp",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "microbatches", "key", "match"),
    [
        ("1f1b", 4, 2, 8, "vpp", "schedule 1f1b has one chunk a rank, but vpp is 2"),
        ("gpipe", 4, 2, 8, "vpp", "schedule gpipe has one chunk"),
        ("zerobubble", 4, 2, 8, "vpp", "schedule zerobubble has one chunk"),
        ("zerobubble-h2", 4, 2, 8, "vpp", "schedule zerobubble-h2 has one chunk"),
        ("interleaved", 1, 2, 8, "pp", "at least two ranks"),
        ("auto", 1, 2, 8, "pp", "at least two ranks"),
        ("interleaved", 4, 1, 8, "vpp", "at least two chunks"),
        ("interleaved", 4, 2, 10, "microbatches", "nearest that fit: 8 or 12"),
        ("interleaved", 4, 2, 3, "microbatches", "nearest that fit: 4$"),
        ("1f1b", 0, 1, 8, "pp", "pp must be an integer >= 1, not 0"),
        ("1f1b", 4, -1, 8, "vpp", "vpp must be an integer >= 1"),
        ("1f1b", 1025, 1, 8, "pp", "pp must be at most 1024, not 1025"),
        ("interleaved", 4, 65, 8, "vpp", "vpp must be at most 64, not 65"),
        ("1f1b", 4, 1, 2.5, "microbatches", "microbatches must be an integer >= 1, not 2.5"),
        ("1f1b", 4, 1, True, "microbatches", "microbatches must be an integer"),
        ("1f1b", 1024, 1, 10**6, "microbatches", "is too large; at most"),
    ],
)
def test_rules(name, pp, vpp, microbatches, key, match):
    with pytest.raises(ScheduleError, match=match) as error:
        registry.build(name, pp, vpp, microbatches)
    assert error.value.key == key
    assert error.value.allowed is not None


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "group"),
    [("interleaved", 3, 2, None), ("interleaved", 12, 5, 13), ("auto", 48, 3, None),
     ("1f1b", 1024, 1, None), ("dualpipe", 6, 1, None)],
)  # fmt: skip
def test_a_number_of_microbatches_that_is_offered_runs(name, pp, vpp, group):
    with pytest.raises(ScheduleError, match="is too large") as error:
        registry.check(name, pp, vpp, 10**9, group)
    offered = error.value.allowed
    assert registry.check(name, pp, vpp, offered, group).microbatches == offered


def applicable(pp: int, vpp: int, microbatches: int) -> list[str]:
    """Return the names of the schedules that can run."""
    names = []
    for name in registry.SCHEDULES:
        try:
            registry.check(name, pp, vpp, microbatches)
        except ScheduleError:
            continue
        names.append(name)
    return names


def test_applicable():
    one_chunk = ["gpipe", "1f1b", "zerobubble", "zerobubble-h2"]
    assert applicable(4, 1, 3) == [*one_chunk, "seaailab", "seaailab-ilp"]
    assert applicable(4, 1, 8) == [*one_chunk, "dualpipe", "seaailab", "seaailab-ilp"]
    v_shaped = [
        "1f1b-v",
        "zbv-formatted",
        *(f"zbv-greedy-{mode}" for mode in ("min", "half", "zb")),
    ]
    assert applicable(4, 2, 8) == ["interleaved", *v_shaped]
    assert applicable(4, 2, 9) == v_shaped
    assert applicable(4, 3, 9) == []


def test_names_load_no_compiler():
    code = "import projector.schedule.registry, sys; print('numba' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
