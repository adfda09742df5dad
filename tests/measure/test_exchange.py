"""Ranks: their layout, and what they do where torch is not what it should be."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import MeasurementError
from projector.measure.comm import Comm
from projector.measure.devices import GpusAtHand
from projector.measure.exchange import (
    InStep,
    LostRankError,
    Ranks,
    collective,
    join,
    kind_of_device,
    layout,
)
from projector.measure.keys import OperationKey
from projector.measure.parts import UnsupportedError
from projector.measure.task import Task

H100 = GpusAtHand("nvidia", "NVIDIA H100 80GB HBM3", 8, "h100")


def torch_of(version="2.13.0+cpu", gpus=0, cuda=None, hip=None):
    """Return what is asked of torch before anything is measured."""
    return SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=SimpleNamespace(
            is_available=lambda: gpus > 0, device_count=lambda: gpus, set_device=lambda local: None
        ),
        distributed=SimpleNamespace(is_nccl_available=lambda: cuda is not None),
    )


def test_groups_lie_as_in_megatron():
    assert layout(8, tp=2, cp=2, ep=4) == {
        "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "cp": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "etp": [[rank] for rank in range(8)],
        "ep": [[0, 1, 2, 3], [4, 5, 6, 7]],
    }
    assert layout(8, tp=2, etp=2, ep=2)["ep"] == [[0, 2], [1, 3], [4, 6], [5, 7]]


@given(*[st.integers(1, 4)] * 5)
def test_every_rank_is_in_one_group_of_each_dimension(tp, cp, ep, etp, more):
    ranks = tp * cp * ep * etp * more
    for name, groups in layout(ranks, tp=tp, cp=cp, ep=ep, etp=etp).items():
        size = {"tp": tp, "cp": cp, "ep": ep, "etp": etp}[name]
        assert {len(group) for group in groups} == {size}
        assert sorted(rank for group in groups for rank in group) == list(range(ranks))


def test_degrees_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(MeasurementError, match=r"tp \* cp = 4 does not divide the 6 ranks"):
        layout(6, tp=2, cp=2)
    with pytest.raises(MeasurementError, match=r"etp \* ep = 4 does not divide the 6 ranks"):
        layout(6, ep=4)


def test_one_rank_has_nothing_to_wait_for(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = join(torch_of(), Task(programs=[], tp=2), "cpu")
    assert ranks.agree(3.0) == 3.0
    ranks.agree(0.0)
    ranks.leave()
    assert type(ranks.comm({"tp": 2})) is Comm
    assert ranks.comm({"tp": 2}).degree("tp") == 2


def test_ranks_that_were_not_started_are_missed(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MeasurementError, match="wants 4 ranks, and 2 were started"):
        join(torch_of(), Task(programs=[], ranks=4), "cpu")


def test_gpus_that_are_not_there_are_missed(monkeypatch):
    for name, value in (("WORLD_SIZE", 4), ("RANK", 3), ("LOCAL_RANK", 3)):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(MeasurementError, match="4 ranks need as many GPUs, and torch sees 2"):
        join(torch_of(gpus=2), Task(programs=[], ranks=4), "cuda")
    with pytest.raises(MeasurementError, match="neither NCCL nor RCCL"):
        join(torch_of(gpus=4), Task(programs=[], ranks=4), "cuda")


@pytest.mark.parametrize(
    ("asked", "gpus", "at_hand", "kind"),
    [
        ("auto", 0, None, "cpu"),
        ("auto", 1, H100, "cuda"),
        ("cpu", 1, H100, "cpu"),
        ("cpu", 0, H100, "cpu"),
        ("cuda", 1, H100, "cuda"),
    ],
)
def test_a_gpu_is_taken_where_there_is_one(asked, gpus, at_hand, kind):
    assert kind_of_device(torch_of(gpus=gpus), asked, at_hand) == kind


@pytest.mark.parametrize(
    ("asked", "at_hand", "built", "message"),
    [
        ("cuda", None, {}, r"2\.13\.0\+cpu sees no GPU: it is a build for CPUs"),
        ("auto", H100, {}, "cannot see the NVIDIA H100 80GB HBM3 of this machine: it is a build"),
        ("auto", H100, {"cuda": "13.0"}, r"built for 13\.0; check the driver"),
        ("cuda", GpusAtHand("amd", "", 1, None), {"hip": "7.1"}, "cannot see the amd GPU of"),
    ],
)
def test_a_gpu_that_torch_cannot_see_is_an_error(asked, at_hand, built, message):
    with pytest.raises(MeasurementError, match=message) as caught:
        kind_of_device(torch_of(**built), asked, at_hand)
    assert caught.value.key == "device"


def test_a_collective_of_more_ranks_than_there_are_is_unsupported():
    key = OperationKey(
        label="mlp.tp", phase="forward", kind="collective", operation="all_reduce", ranks=2
    )
    with pytest.raises(UnsupportedError, match="needs 2 ranks, and 1 measured"):
        collective(Ranks(torch_of()), key, None)
    fused = key.model_copy(update={"kind": "exchange"})
    with pytest.raises(UnsupportedError, match="DeepEP"):
        collective(Ranks(torch_of(), 0, 2), fused, None)


class Others(Ranks):
    """This rank and another one that says the same each time."""

    def __init__(self, said):
        super().__init__(torch_of(), 0, 2)
        self.said = said

    def largest(self, values):
        return [max(pair) for pair in zip(values, [*self.said, *[0.0] * 9], strict=False)]


def test_a_sample_takes_as_long_as_on_the_slowest_rank():
    runner = SimpleNamespace(sample=lambda runs: {"forward": 1.0, "backward": 4.0})
    slowest = InStep(runner, Others([0.0, 3.0, 2.0])).sample(1)
    assert slowest == {"forward": 3.0, "backward": 4.0}


@pytest.mark.parametrize(
    ("severity", "error"), [(3.0, MemoryError), (2.0, RuntimeError), (1.0, UnsupportedError)]
)
def test_what_fails_on_one_rank_fails_on_all(severity, error):
    runner = SimpleNamespace(sample=lambda runs: {"time": 1.0})
    with pytest.raises(error, match="another rank"):
        InStep(runner, Others([severity])).sample(1)
    with pytest.raises(error, match="another rank"), Others([severity]).all_or_none():
        pass
    with pytest.raises(KeyError), Others([severity]).all_or_none():
        raise KeyError


def test_a_rank_that_waits_in_vain_gives_up():
    def closed(*arguments, **more):
        msg = "Connection closed by peer"
        raise RuntimeError(msg)

    torch = torch_of()
    torch.tensor, torch.float64 = (lambda values, dtype: values), None
    torch.distributed.all_reduce = torch.distributed.barrier = closed
    torch.distributed.ReduceOp = SimpleNamespace(MAX=None)
    ranks = Ranks(torch, 0, 2)
    with pytest.raises(LostRankError, match="closed by peer"):
        ranks.agree(1.0)


@pytest.mark.parametrize(
    ("label", "operation", "size", "group"),
    [
        ("attention.cp.all_gather", "all_gather", 4, "cp"),
        ("attention.cp.send_recv", "send_recv", 2, "cp"),
        ("moe.dispatch", "all_to_all", 2, "ep"),
        ("moe.etp.all_gather", "all_gather", 2, "etp"),
        ("attention.tp.all_reduce", "all_reduce", 2, "block of 2"),
        # Of another degree than these ranks have.
        ("moe.combine", "all_to_all", 4, "block of 4"),
        ("pipeline.send", "send_recv", 2, "block of 2"),
    ],
)
def test_a_collective_runs_over_the_ranks_of_its_layer(label, operation, size, group):
    ranks = Ranks(torch_of(), 0, 8, {"tp": 2, "cp": 4, "ep": 2, "etp": 2})
    ranks.groups = {name: name for name in ("tp", "cp", "ep", "etp")}
    ranks.blocks = {2: "block of 2", 4: "block of 4"}
    key = OperationKey(
        label=label, phase="forward", kind="collective", operation=operation, ranks=size
    )
    assert ranks.group_for(key) == group
