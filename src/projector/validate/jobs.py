"""A row of a training table as a job: settings of the row, of its recipe, then of stated rules.

Each rule is described, with its reason, in ``docs/validation.md``. ``row_layout.py`` reads columns
and places the model on devices.
"""

import re
from typing import Any

from projector.validate.kind import FROM_RECIPE, FROM_RULE
from projector.validate.names import precision_name, precision_of
from projector.validate.recipes import framework_of
from projector.validate.row_layout import RowLayout

FUSED_ACCUMULATION = ("qwen3-30b", "qwen3-235b", "llama-3.1-405b", "deepseek-v3", "kimi")
"""Models whose experiment files in AMD-AGI/Primus set ``gradient_accumulation_fusion``, on MI300X,
MI325X or MI355X; the files of other models clear it."""

FUSED_PERMUTATION = ("deepseek", "gpt-oss", "kimi")
"""Models whose presets in AMD-AGI/Primus set ``moe_permute_fusion`` (``deepseek_v2_base.yaml``)."""

_MODULES = {
    "core_attn": "core_attn",
    "layernorm": "layernorm",
    "rmsnorm": "layernorm",
    "mla_up_proj": "mla_up_proj",
    "mlp": "mlp",
    "moe": "moe",
    "moe_act": "moe_act",
    "shared_experts": "shared_experts",
}
_FP8_RECIPES = {
    "tensorwise": "tensorwise",
    "rowwise": "rowwise",
    "per token": "rowwise",
    "block": "blockwise",
    "delayed": "delayed",
}


class JobRow(RowLayout):
    """One row on its way to a job."""

    def job(self) -> dict[str, Any]:
        """Return the native mapping of the job."""
        self._place()
        parallelism = self._parallelism()
        training = {
            "micro_batch_size": self.micro_batch,
            "global_batch_size": self.global_batch,
            "seq_length": self.seq,
            "schedule": self.schedule,
            **self._zero_bubble(),
            "recompute": self._recompute(),
            **self._precision(),
            **self._optimizer(),
            **self._switches(),
        }
        if framework := framework_of(self.row):
            training["framework"] = framework
        if self.is_moe:
            training["moe"] = self._moe()
        stated = {"model": self.model, "parallelism": parallelism, "training": training}
        cluster, identity = self._cluster()
        self.key = repr((stated, identity))
        return {**stated, "cluster": cluster}

    def _recompute(self) -> Any:
        stated, recipe = self.text("recompute"), self.recipe("recompute")
        lowered = stated.lower()
        some = re.search(r"full.*?\b(\d+) of \d+ layers", lowered)
        if some:
            return _first_layers(int(some[1]))
        if lowered.startswith(("full", "none")):
            return lowered[:4]
        names = _module_names(lowered)
        if names:
            return {"granularity": "selective", "modules": names}
        policy = self._paxml().get("recompute")
        if policy:
            self.weaken(FROM_RULE, f"{', '.join(policy)} recomputed, as by Paxml's policy")
            return {"granularity": "selective", "modules": list(policy)}
        if recipe:
            self.weaken(FROM_RECIPE)
            return self._recompute_of_recipe(recipe.lower())
        if lowered.startswith("selective"):
            if self._is_torchtitan:
                return self._every_second_layer()
            self.weaken(FROM_RULE, "selective recomputation of core attention")
            return "selective"
        return self._recompute_of_neighbour()

    def _recompute_of_neighbour(self) -> Any:
        block = re.search(r"full:block.*?: (\d+) layers", self.other)
        if block is None or block[1] == "0":
            self.weaken(FROM_RULE, "no recomputation")
            return "none"
        self.weaken(FROM_RULE, f"{block[1]} layers recomputed, as in the nearest recipe")
        return _first_layers(int(block[1]))

    def _recompute_of_recipe(self, text: str) -> Any:
        if text.startswith("full"):
            return "full"
        if text.startswith("none"):
            return "none"
        if "n-th block" in text:
            return self._every_second_layer()
        if "save_dot" in text:
            self.weaken(FROM_RULE, "saving GEMM outputs taken as recomputing norms and activation")
            return {"granularity": "selective", "modules": ["layernorm", "moe_act"]}
        names = _module_names(text)
        return {"granularity": "selective", "modules": names} if names else "selective"

    def _every_second_layer(self) -> dict[str, Any]:
        """Stand in for policies that drop about half: every n-th block, or every second matmul."""
        self.weaken(FROM_RULE, "every second layer recomputed")
        return {"granularity": "full", "layers": list(range(0, self.model["num_layers"], 2))}

    def _precision(self) -> dict[str, Any]:
        printed = self.text("precision")
        kind = precision_of(printed.removeprefix("amp_"))
        if kind in {"bf16", "fp16", "fp32"}:
            return {"precision": kind}
        settings: dict[str, Any] = {"precision": kind}
        if self.says("no fp8 weight transpose cache"):
            settings["fp8_weight_transpose_cache"] = False
        if kind == "fp8":
            if "fp8_recipe=mxfp8" in self.other or "mxfp8" in printed.lower():
                settings["precision"] = "mxfp8"
            else:
                settings["fp8_recipe"] = self._fp8_recipe(printed.lower())
        if "fp8_param_gather=true" in self.other or "fp8_params with FP8" in self.text(
            "recipe_optimizer_dtype"
        ):
            settings["fp8_param_gather"] = True
            self.weaken(FROM_RECIPE)
        if "fp8_dpa=true" in self.other:
            settings["fp8_attention"] = True
            self.weaken(FROM_RECIPE)
        if "first_last_bf16=true" in self.other:
            settings["first_last_layers_bf16"] = 1
            self.weaken(FROM_RECIPE)
        return settings

    def _fp8_recipe(self, printed: str) -> str:
        flags = self.flags.lower()
        if "float8" in printed and not re.search("row|block", printed):
            return "tensorwise"
        scaled = precision_name(printed).removeprefix("fp8").strip()
        if scaled in _FP8_RECIPES:
            return _FP8_RECIPES[scaled]
        for name in ("tensorwise", "rowwise", "blockwise", "delayed"):
            if f"fp8_recipe={name}" in self.other or name in flags:
                return name
        self.weaken(FROM_RULE, "FP8 recipe by source")
        # Both set fp8_recipe in their files; Primus' own preset is delayed, as Megatron's.
        if "megatron-bridge" in self.source.lower() or "primus examples/mlperf" in self._primus:
            return "tensorwise"
        return "blockwise" if "deepseek-ai" in self.source.lower() else "delayed"

    def _optimizer(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        sharding = self.text("fsdp_zero").lower()
        narrow = "precision-aware" in sharding
        if narrow:
            self.weaken(FROM_RULE, "moments in BF16, as Primus' precision-aware files have them")
        if narrow or re.search(r"\bm bfloat16", self.recipe("optimizer_dtype")):
            settings["optimizer"] = {"name": "adam", "moment_dtype": "bf16"}
        if "bf16 grad" in sharding or self.says("bf16 gradient reduce"):
            settings |= {"gradient_dtype": "bf16", "grad_reduce_dtype": "bf16"}
        if self._primus:
            settings["gradient_accumulation_fusion"] = self._accumulation_is_fused()
        elif "grad_acc_fusion=false" in self.other:
            settings["gradient_accumulation_fusion"] = False
            self.weaken(FROM_RECIPE)
        reduce = self.recipe("grad_reduce_dtype").lower()
        if reduce.startswith("bf16"):
            # Megatron's gradient buffer has the type it reduces in; PURE mode likewise.
            settings |= {"gradient_dtype": "bf16", "grad_reduce_dtype": "bf16"}
            self.weaken(FROM_RECIPE)
        return settings

    def _accumulation_is_fused(self) -> bool:
        """Read a switch that four of five of Primus' experiment files for MI300 and MI355 clear."""
        if self.says("fused wgrad accumulation"):
            return True
        name = str(self.model.get("name", "")).lower()
        fused = name.startswith(FUSED_ACCUMULATION)
        self.weaken(FROM_RULE, f"gradient accumulation {'' if fused else 'not '}fused (Primus)")
        return fused

    def _switches(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        graph = self.recipe("cuda_graph").lower()
        captured = re.search(r"full_iteration|enable_cuda_graph|default|\battn\b|\bmlp\b", graph)
        if captured and not graph.startswith("none"):
            settings["cuda_graphs"] = True
            self.weaken(FROM_RECIPE)
        layers = re.search(r"(\d+)", self.recipe("activation_offload").removeprefix("none"))
        if layers:
            share = min(1.0, int(layers[1]) / int(self.model["num_layers"]))
            settings["activation_offload_fraction"] = share
            self.weaken(FROM_RECIPE)
        if self.says("torch.compile"):
            settings["torch_compile"] = True
        if self.recipe("fused_cross_entropy").lower().startswith("false"):
            settings["cross_entropy_fusion"] = False
            self.weaken(FROM_RECIPE)
        if self.says("nvte_fused_attn=0"):
            settings["attention_kernel"] = "fa2"  # Transformer Engine without cuDNN
            self.weaken(FROM_RECIPE)
        elif self.says("te +", "attn te", "attn_impl=te", "transformer engine"):
            settings["attention_kernel"] = "default"
        return settings

    def _moe(self) -> dict[str, Any]:
        deep, text = self._deep()
        units = re.search(r"(\d+) cu", text)
        if self.recipe("moe_dispatcher"):
            self.weaken(FROM_RECIPE)
        elif self.ep > 1 and not text:
            self.weaken(FROM_RULE, "all-to-all dispatcher")
        fused = "hybridep" if "hybridep" in text else "deepep"
        settings: dict[str, Any] = {"dispatcher": fused if deep else "alltoall"}
        # The units that recipes give HybridEP are not read: their effect on its rate is unknown.
        if deep and units:
            settings["dispatcher_sms"] = int(units[1])
        elif "allgather" in text.replace("-", "").replace("_", ""):
            settings["dispatcher"] = "allgather"
        # Tokens padded to capacity: counts are known, so the host never waits.
        padded = self.says("tokendrop", "token drop") or "simumax" in self.source.lower()
        if padded:
            settings |= {"capacity_factor": 1.0, "host_sync": False}
        whole_step = "full_iteration" in self.recipe("cuda_graph").lower()
        if whole_step or self.says("sync-free", "paged_stash=true"):
            settings["host_sync"] = False
        if self.says("te_op_fuser=true"):
            settings["fused_experts"] = True
        if self.says("permute_fusion=false"):
            settings["permute_fusion"] = False
        return settings | self._primus_moe()

    def _primus_moe(self) -> dict[str, Any]:
        """Read what Primus' stages of sync-free experts switch on.

        Stage 1 is fused kernels of router and permutation; the host still waits for the counts of
        what arrives, until stage 2 (``validate_args_on_rocm`` of Primus). Without a stage its
        preset of DeepSeek, which GPT-OSS extends, fuses permutation. The baseline files of its
        ``moe_package`` and its other presets do not.
        """
        if not self._primus:
            return {}
        stage = re.search(r"sync-free stage ?(\d)", self.flags.lower())
        number = int(stage[1]) if stage else int(self.says("sync-free"))
        preset = str(self.model.get("name", "")).lower().startswith(FUSED_PERMUTATION)
        fused = number > 0 or (preset and "moe_package" not in self.source)
        if number == 0:
            self.weaken(FROM_RULE, f"permutation {'' if fused else 'not '}fused (Primus)")
        return {"permute_fusion": fused, "host_sync": number < 2}


def _first_layers(count: int) -> dict[str, Any]:
    return {"granularity": "full", "method": "block", "num_layers": count}


def _module_names(text: str) -> list[str]:
    if not text.startswith(("selective", "rmsnorm", "layernorm", "mla")):
        return []
    words = re.split(r"[+,]", text.removeprefix("selective").strip(" :").replace("-", "_"))
    names = {
        "attention core": "core_attn",
        "(attention core)": "core_attn",
        "mla up_proj": "mla_up_proj",
    }
    modules = [names.get(word.strip(), word.strip()) for word in words]
    return list(dict.fromkeys(_MODULES[word] for word in modules if word in _MODULES))
