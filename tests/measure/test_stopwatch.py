"""Times are those of the device: events on a GPU that does not exist, whose queue is a counter."""

from types import SimpleNamespace

import pytest

from projector.measure.pace import KernelRunner, PartsRunner, Stopwatch


class FakeGpu:
    """A device whose kernels take the seconds that they state."""

    def __init__(self):
        self.now_s = 0.0
        self.spun = []
        self.waits = 0

    def run(self, seconds):
        self.now_s += seconds

    def synchronize(self, device):
        self.waits += 1

    def _sleep(self, cycles):
        self.spun.append(cycles)
        self.now_s += cycles / 2e9

    def event(self, *, enable_timing):
        gpu = self

        class Event:
            def record(self):
                self.at_s = gpu.now_s

            def elapsed_time(self, end):
                return 1e3 * (end.at_s - self.at_s)

        return Event()


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def watch(gpu):
    cuda = SimpleNamespace(
        synchronize=gpu.synchronize, Event=lambda enable_timing: gpu.event(enable_timing=True),
        _sleep=gpu._sleep,
    )  # fmt: skip
    return Stopwatch(SimpleNamespace(cuda=cuda), SimpleNamespace(type="cuda"))


def test_a_kernel_takes_what_the_device_says(gpu, watch):
    # Two sets of operands take turns, whatever a sample has of runs.
    order = []

    def kernel(number, seconds):
        return lambda: (order.append(number), gpu.run(seconds))

    runner = KernelRunner(watch, [kernel(0, 1e-3), kernel(1, 3e-3)])
    assert runner.sample(2)["time"] == pytest.approx(2e-3)
    assert runner.sample(1)["time"] == pytest.approx(1e-3)
    assert runner.sample(1)["time"] == pytest.approx(3e-3)
    assert order == [0, 1, 0, 1]


def test_the_device_waits_for_its_host_before_it_is_timed(gpu, watch):
    runner = KernelRunner(watch, [lambda: gpu.run(1e-6)])
    times = [runner.sample(4)["time"] for _ in range(3)]
    assert times == pytest.approx([1e-6] * 3)
    # At first for long, then for as long as the host took at its fastest.
    assert len(gpu.spun) == 3
    assert gpu.spun[0] > gpu.spun[1] >= gpu.spun[2] >= 0


def test_parts_are_told_apart_and_those_without_a_name_left_out(gpu, watch):
    runner = PartsRunner(
        watch,
        (
            ("forward", lambda: gpu.run(1.0)),
            ("", lambda: gpu.run(7.0)),
            ("backward", lambda: gpu.run(2.0)),
        ),
    )
    assert runner.sample(3) == pytest.approx({"forward": 1.0, "backward": 2.0})


def test_a_cpu_has_a_clock_and_no_queue():
    watch = Stopwatch(SimpleNamespace(), SimpleNamespace(type="cpu"))
    watch.wait()
    watch.hold_back(1.0)
    assert 0.0 < KernelRunner(watch, [lambda: sum(range(1000))]).sample(5)["time"] < 1.0
