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
