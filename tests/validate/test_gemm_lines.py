"""Lines as they stand in the shipped table, read by hand."""

import csv
import io

import pytest

from projector.kernels.device import MATRIX_TYPES
from projector.validate.gemm import Gemm, read_case
from projector.validate.gemm_benchmarks import NamedKernel

HEADER = (
    "gpu,clock_note,op,in_dtype,out_dtype,m,n,k,groups,layout,kernel_config,library,runtime_us,"
    "tflops,mem_gbps,derived_fields,source,verified,power_w,power_limit_w,doubt"
)
LINES = {
    "split": (
        'MI300X,"tuner\'s loop, clock not stated",gemm,fp8 (128-block scales),bf16,64,2112,7168,,'
        "TN,a8w8_blockscale_1x128x128_256x32x64x256_16x16_16x16_2x1_16x16x1_16x16x1_1x32x1x8_8_"
        '2x1_intrawave_v1 splitK 2,"AITER ck, fastest of the tuner",16.4758,117.613,,tflops,'
        "ROCm/aiter@e4048607a aiter/configs/a8w8_blockscale_tuned_gemm_ds_v3.csv,read,,,"
    ),
    "logic": (
        'MI250X (one die),"library tuning, clock not stated",gemm,fp16,fp16,1104,16,4608,,NN '
        "column-major,macro tile 64x16x64 global split-U 6,"
        '"hipBLASLt, fastest of the tuner",23.2,7.017,,runtime_us,'
        "ROCm/hipBLASLt@7d9fb683d aldebaran_Cijk_Ailk_Bljk_HHS_BH.yaml,read,,,"
    ),
    "forward": (
        "MI300X,,linear (time includes quantising A from bf16),fp8 (128-block scales),bf16,16384,"
        '8192,4096,,TN (y = x W^T),,"Primus-Turbo gemm_fp8 blockwise (Triton), torch Timer x100, '
        'main of 2026-05",1774.47,619.63,,runtime_us (from TFLOPS; printed ms agrees),'
        "AMD-AGI/Primus-Turbo@db3d8e7a agent/logs/baseline.csv Llama-3.1-405B,read,,,"
    ),
    "backward": (
        "MI300X,,linear (time includes quantising A from bf16) backward (dgrad+wgrad),fp8,bf16,"
        '4096,6144,2048,,TN (y = x W^T),,"Primus-Turbo gemm_fp8 tensorwise, torch Timer x100, '
        '2026-04",,500,,,AMD-AGI/Primus-Turbo@221d75f1 benchmark/x.csv,read,,,'
    ),
    "grouped": (
        "MI300X,,grouped linear (fwd; time includes quantising from bf16),fp8,bf16,1024,2816,2048,"
        '2,TN (y = x W^T),,"Primus-Turbo grouped_gemm_fp8 tensorwise (CK), balanced groups, torch '
        'Timer x100, 2026-04",119.17,198.22,,runtime_us,AMD-AGI/Primus-Turbo@221d75f1 x,read,,,'
    ),
    "grouped backward": (
        "MI300X,,grouped gemm (bwd dgrad+wgrad),bf16,bf16,1024,2048,1408,4,TN (y = x W^T),,"
        '"Primus-Turbo grouped_gemm (CK), balanced groups, torch Timer x100, 2026-04-02",203.21,'
        "232.49,,runtime_us,AMD-AGI/Primus-Turbo@221d75f1 output/baseline.csv,read,,,"
    ),
    "beside": (
        'MI300X,,gemm during RCCL all_reduce,bf16,bf16,12288,12288,12288,,,,"torch.matmul '
        "(hipBLASLt Tensile), ROCm 7.2, while all_reduce of 536870912 B runs (8 GPUs, 32 "
        'channels)",6350.13,584.37,,,ROCm/tritonBLAS results/overlap.json,read,,,'
    ),
    "int8": (
        'MI300X,"tuner\'s loop, clock not stated",gemm,"int8 (per-token, per-channel scales)",bf16,'
        '64,5120,1280,,"TN, weights shuffled beforehand",I8gemm_bf16_perTokenI8_BpreShuffle_16x128,'
        '"AITER asm, fastest of the tuner",7.7424,108.346,,tflops,ROCm/aiter@e40 a.csv,read,,,'
    ),
    "locked": (
        "B200,locked 1300 MHz,gemm,fp16,fp16,4096,7168,512,,a k b k c n-major,"
        "mma 256x192 cta 128x192 cluster 2x1 sf /0,CUTLASS CuTeDSL persistent,39.3855,763.344,,"
        "tflops,hbarclay/gemm-model results/dsv3_fp16.csv,read,,,"
    ),
}


@pytest.fixture
def read():
    def call(name):
        (row,) = csv.DictReader(io.StringIO(f"{HEADER}\n{LINES[name]}\n"))
        assert None not in row
        assert None not in row.values()
        return read_case(row)

    return call


def test_a_kernel_of_ck_in_four_parts(read):
    case = read("split")
    assert case.gemms == (Gemm(64, 2112, 7168, 1, 2.0),)
    assert (MATRIX_TYPES[case.code], case.setup.library) == ("fp8_block", "aiter")
    assert (case.kernel.m, case.kernel.n, case.kernel.k) == (32, 64, 256)
    assert (case.kernel.splits, case.kernel.tuned) == ((4,), True)
    assert (case.quantise, case.loop.added_us, case.measured) == ("", 0.0, 16.4758)


def test_a_logic_file(read):
    case = read("logic")
    assert case.gemms == (Gemm(1104, 16, 4608, 1, 2.0),)
    assert (case.setup.device, case.setup.library) == ("mi250x", "hipblaslt")
    assert (case.kernel.m, case.kernel.n, case.kernel.k, case.kernel.splits) == (64, 16, 64, (6,))


def test_a_training_operator_with_block_scales(read):
    case = read("forward")
    assert case.gemms == (Gemm(16384, 8192, 4096, 1, 2.0),)
    assert (MATRIX_TYPES[case.code], case.setup.library) == ("fp8_block", "triton")
    assert (case.quantise, case.quantised) == ("fp8_block", (16384 * 4096, 8192 * 4096))
    assert (case.kernel, case.accumulated) == (None, ())


def test_a_training_operator_backward(read):
    case = read("backward")
    # dA[4096, 2048] over n, dB[6144, 2048] over m.
    assert [gemm[:4] for gemm in case.gemms] == [(4096, 2048, 6144, 1), (6144, 2048, 4096, 1)]
    assert (MATRIX_TYPES[case.code], case.setup.library) == ("fp8", "hipblaslt")
    assert (case.quantise, case.quantised) == ("fp8", (4096 * 6144,))
    assert case.accumulated == (4096 * 2048, 6144 * 2048)
    # 4 * 4096 * 6144 * 2048 FLOP at 500 TFLOP/s.
    assert case.measured == pytest.approx(412.317, rel=1e-5)


def test_grouped_training_operators(read):
    case = read("grouped")
    kernel = NamedKernel(256, 256, 128)
    assert case.gemms == (Gemm(1024, 2816, 2048, 2, 2.0, "grouped_forward_efficiency", kernel),)
    assert case.quantised == (2 * 1024 * 2048, 2 * 2816 * 2048)
    assert (case.setup.library, case.loop.least_us) == ("ck", 114.0)
    case = read("grouped backward")
    assert [gemm[:4] for gemm in case.gemms] == [(1024, 1408, 2048, 4), (2048, 1408, 1024, 4)]
    assert {gemm.grouped_pass for gemm in case.gemms} == {"grouped_backward_efficiency"}
    # 1,408 columns are no multiple of 256.
    assert {gemm.kernel for gemm in case.gemms} == {NamedKernel(256, 128, 64)}
    assert case.accumulated == (4 * 1024 * 1408, 4 * 2048 * 1408)
    assert (case.quantise, case.loop.least_us) == ("", 140.0)


def test_beside_a_collective(read):
    case = read("beside")
    assert case.beside_collective
    assert (case.setup.library, case.measured) == ("hipblaslt", 6350.13)
    assert not read("int8").beside_collective


def test_integers(read):
    case = read("int8")
    assert (MATRIX_TYPES[case.code], case.kernel.splits) == ("int8", (1,))
    assert (case.kernel.m, case.kernel.n) == (16, 128)


def test_a_locked_clock_and_the_only_kernel(read):
    case = read("locked")
    assert (case.setup.clock_mhz, case.setup.library, case.kernel.tuned) == (1300, "cutedsl", False)
