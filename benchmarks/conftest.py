"""Processes of their own, with and without compiled kernels on disk."""

import os
import subprocess
import sys
import tempfile

import pytest


@pytest.fixture
def new_cache(benchmark, tmp_path):
    """Return the environment of a process that finds no compiled kernel.

    Where nothing is timed it finds those of the tests: compiling takes minutes.
    """
    if benchmark.disabled:
        return dict
    return lambda: {"PROJECTOR_CACHE_DIR": tempfile.mkdtemp(dir=tmp_path)}


@pytest.fixture(params=["cold", "warm"])
def time_first_call(benchmark, new_cache, request):
    """Time what a user waits for: a new process, with and without a disk cache."""

    def timed(code):
        def call(environment):
            command = [sys.executable, "-c", code]
            subprocess.run(command, env=os.environ | environment, check=True)

        kept = new_cache()
        if request.param == "warm" and not benchmark.disabled:
            call(kept)

        def setup():
            return (kept if request.param == "warm" else new_cache(),), {}

        benchmark.pedantic(call, setup=setup, rounds=3)

    return timed
