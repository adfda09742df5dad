"""Everything stays on its device and reads nothing back, seen on torch's device without numbers.

A tensor of another device, and a number that the host waits for, are errors there. On a GPU the
former would be an error too, and the latter would put gaps between kernels.
"""

import pytest

torch = pytest.importorskip("torch")

from measure.on_torch.test_real_layers import LAYERS  # noqa: E402
from projector.config.load import load_job  # noqa: E402
from projector.measure.comm import Comm  # noqa: E402
from projector.measure.exchange import Ranks  # noqa: E402
from projector.measure.layers import build_layer  # noqa: E402
from projector.measure.narrow import Format  # noqa: E402
from projector.measure.operators import prepare_operation  # noqa: E402
from projector.measure.pace import Stopwatch  # noqa: E402
from projector.measure.parts import Kit  # noqa: E402
from projector.measure.programs import task_of  # noqa: E402
from projector.measure.reduction import reduce_job  # noqa: E402
from projector.measure.runners import Bench, LayerRunner  # noqa: E402
from projector.measure.task import OperationProgram  # noqa: E402


class WithoutNumbers(Kit):
    def random(self, *shape, dtype, scale=1.0):
        del scale
        return torch.empty(shape, dtype=dtype, device=self.device)

    def integers(self, *shape, below):
        del below
        return torch.empty(shape, dtype=torch.int64, device=self.device)


@pytest.fixture
def bench():
    device = torch.device("meta")
    return Bench(WithoutNumbers(torch, device), Stopwatch(torch, device), Ranks(torch))


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer_stays_on_its_device_and_reads_nothing_back(layer, bench):
    layer = layer.model_copy(update={"columns": {**layer.columns, "host_sync": 0}})
    degrees = {name: layer.columns.get(name, 1) for name in ("tp", "cp", "ep", "etp")}
    runner = LayerRunner(bench, build_layer(bench.kit, Comm(degrees), layer))
    runner.forward()
    assert runner.out.device.type == "meta"
    runner.backward()
    assert all(main.device.type == "meta" for _, main in runner.main.of_weight)


def test_a_layer_waits_for_the_host_where_its_columns_say_so(bench):
    layer = LAYERS["experts with biases"]
    runner = LayerRunner(bench, build_layer(bench.kit, Comm(), layer))
    with pytest.raises(NotImplementedError, match="no data"):
        runner.forward()


MODEL = {
    "name": "small", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128,
    "num_attention_heads": 4, "num_query_groups": 2, "vocab_size": 256,
    "max_position_embeddings": 64,
}  # fmt: skip
MOE = {"moe": {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 32, "layer_freq": 2}}


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_operations_stay_on_their_device_and_read_nothing_back(precision, bench):
    """Experts wait for the host in their layer, and not where their kernels are timed alone."""
    job = load_job(
        {
            "model": {**MODEL, **MOE},
            "parallelism": {},
            "training": {
                "micro_batch_size": 1, "global_batch_size": 1, "seq_length": 64,
                "precision": precision,
            },
            "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 1},
        }
    )  # fmt: skip
    programs = [
        each for each in task_of(reduce_job(job, 1)).programs if isinstance(each, OperationProgram)
    ]
    assert {each.key.kind for each in programs} == {"gemm", "attention", "memory"}
    assert any(each.key.label == "moe.permute" for each in programs)
    for program in programs:
        for run in prepare_operation(bench, program).runner.sets[:1]:
            run()


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "rowwise"])
def test_torch_accepts_the_operands_of_an_fp8_gemm_on_a_gpu(recipe):
    """Its checks of types, layouts and scales need no GPU, and are those of CUDA there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fmt = Format(torch, torch.float8_e4m3fn, 448.0, recipe)
        left = torch.empty(64, 128, dtype=torch.bfloat16, device="cuda")
        right = torch.empty(96, 128, dtype=torch.bfloat16, device="cuda")
        out = fmt.multiply(fmt.quantise(left), fmt.quantise(right))
        assert (tuple(out.shape), out.dtype) == ((64, 96), torch.bfloat16)
        # The second operand lies by columns; by rows it is refused.
        (values, scale), by_rows = fmt.quantise(left), out.new_empty(128, 96).to(fmt.narrow_type)
        with pytest.raises(RuntimeError, match="col_major"):
            torch._scaled_mm(values, by_rows, scale_a=scale, scale_b=scale, out_dtype=out.dtype)
