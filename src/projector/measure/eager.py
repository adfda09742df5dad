"""How a worker runs layers, whatever the job asked for does."""

from typing import Any

AS_MEASURED: dict[str, Any] = {
    "parallelism.tp_comm_overlap": False,
    "parallelism.overlap_moe_expert_parallel_comm": False,
    "parallelism.moe_shared_expert_overlap": False,
    "training.elementwise": "eager",
    "training.torch_compile": False,
    "training.cuda_graphs": False,
    "training.moe.dispatcher": "alltoall",
    "training.moe.dispatch_precision": "bf16",
    "training.moe.permute_fusion": False,
    "training.moe.fused_experts": False,
}
"""PyTorch's own kernels, one after the other. What the target does instead is scaled by the model,
so that no time of another kernel is taken for that of a fused one."""
