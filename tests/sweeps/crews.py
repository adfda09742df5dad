"""Sweeps whose workers are there from the first chunk on, however little there is to do."""

from concurrent.futures import wait

from projector.sweeps import workers


def start_at_once(patch=setattr):
    """Let the sweeps of this process begin with all their workers; ``patch`` as ``setattr``."""
    begin = workers._Others.__init__

    def begin_when_started(others, *arguments):
        begin(others, *arguments)
        wait(others._starting)

    patch(workers, "START_S", -1.0)
    patch(workers, "COPY_S", -1.0)
    patch(workers._Others, "__init__", begin_when_started)
