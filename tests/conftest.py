"""One environment for all tests."""

import os

import pytest

from thoroughness import part_of

# Those who share a run between processes state a width that no terminal has.
os.environ.pop("COLUMNS", None)

# A GPU at hand would be measured by every command that projects a job for it. Who tests on one
# names it in this variable, which runtimes of both vendors read.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# A process of tests has a core. Threads of OpenMP and of BLAS would wait for each other, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Commands of tests leave no process behind that compiles for later ones.
os.environ.setdefault("PROJECTOR_BACKGROUND", "0")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    _forget_the_test()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    _forget_the_test()


def _forget_the_test() -> None:
    """Take the name of the test out of the environment.

    Workers of a sweep stay for the next one in the same environment; starting two takes seconds.
    """
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.fixture(scope="session")
def of_this_run(pytestconfig):
    """Take the part of many cases that a run tries: all where it is thorough."""

    def some(cases):
        option = pytestconfig.option
        return [*cases] if option.thorough else part_of(cases, option.part)

    return some
