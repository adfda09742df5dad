"""Rules that several schedules share."""

from projector.errors import ScheduleError


def one_chunk(name: str, vpp: int) -> None:
    """Refuse virtual stages."""
    if vpp != 1:
        msg = (
            f"schedule {name} has one chunk a rank, but vpp is {vpp}; "
            "set vpp = 1 or choose interleaved"
        )
        raise ScheduleError(msg, key="vpp", value=vpp, allowed=1)


def one_chunk_of_any(name: str, pp: int, vpp: int, microbatches: int) -> None:  # noqa: ARG001
    """Refuse virtual stages; any number of ranks and microbatches."""
    one_chunk(name, vpp)


def two_chunks(name: str, pp: int, vpp: int, microbatches: int) -> None:  # noqa: ARG001
    """Refuse anything but two chunks on at least two ranks, as a V has."""
    if pp < 2:
        msg = f"schedule {name} needs at least two ranks, but pp is {pp}; set pp >= 2"
        raise ScheduleError(msg, key="pp", value=pp, allowed="pp >= 2")
    if vpp != 2:
        msg = f"schedule {name} has two chunks a rank, but vpp is {vpp}; set vpp = 2"
        raise ScheduleError(msg, key="vpp", value=vpp, allowed=2)


def microbatches_held(mode: str, pp: int) -> int:
    """Return the microbatches (of both chunks) that a V-shaped schedule lets a rank hold."""
    return {"min": -(-(pp + 2) // 3), "half": -(-pp // 2) + 1, "zb": pp}[mode]
