"""Sweeps whose workers are there from the first chunk on, however little there is to do."""

from concurrent.futures import wait

from projector.sweeps import workers


def start_at_once(patch=setattr):
    """Let the sweeps of this process begin with all their workers; ``patch`` as ``setattr``."""
    enter = workers._Others.__enter__

    def enter_when_started(others):
        enter(others)
        wait(others._starting)
        return others

    patch(workers, "START_S", -1.0)
    patch(workers._Others, "__enter__", enter_when_started)
