"""A row of a training table as a job: settings of the row, of its recipe, then of stated rules.

Each rule is described, with its reason, in ``docs/validation_rules.md``. ``row_layout.py`` reads
columns and places the model on devices.
"""

from typing import Any

from projector.config.adapter import MEGATRON_TARGETS
from projector.config.device_file import load_device
from projector.config.framework import FrameworkConfig, defaults_of
from projector.config.training import FUSED_UNITS
from projector.validate.kind import FROM_RECIPE, FROM_RULE, whole
from projector.validate.names import device_of, precision_of
from projector.validate.recipes import framework_of
from projector.validate.row_layout import RowLayout
from projector.validate.words import number_said

LORA = "lora"
NEWEST_CONTAINER = "26.08"
"""Container of a row that names none."""
USUAL_RANK = 16
"""Rank of adapters where a row has none: that of NeMo's recipes of 70B, not verified for others."""

FUSED_ACCUMULATION = ("qwen3-30b", "qwen3-235b", "llama-3.1-405b", "deepseek-v3", "kimi")
"""Models whose experiment files in AMD-AGI/Primus set ``gradient_accumulation_fusion``, on MI300X,
MI325X or MI355X; the files of other models clear it."""

FUSED_PERMUTATION = ("deepseek", "gpt-oss", "kimi")
"""Models whose presets in AMD-AGI/Primus set ``moe_permute_fusion`` (``deepseek_v2_base.yaml``)."""


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
            **self.stated("packed_tokens"),
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
        if self.text("task").lower() == LORA:
            training["adapter"] = self._adapter()
        stated = {"model": self.model, "parallelism": parallelism, "training": training}
        cluster, identity = self._cluster()
        self.key = repr((stated, identity))
        return {**stated, "cluster": cluster}

    def _adapter(self) -> dict[str, Any]:
        """Read adapters: MLPerf's beside all of attention, NVIDIA's recipes' beside its input.

        The performance modes of NeMo's recipes leave ``linear_qkv`` alone as a target. MLPerf's
        reference of Llama 2 70B has adapters of rank 16 beside both projections of attention.
        """
        rank = self.text("adapter_rank")
        if not rank:
            self.weaken(FROM_RULE, f"adapters of rank {USUAL_RANK}")
        targets = ["linear_qkv"]
        if "mlcommons" in self.source:
            targets.append("linear_proj")
        elif not self._is_nvidia or "Automodel" in self.source:
            targets = [*MEGATRON_TARGETS]
        self.weaken(FROM_RULE, f"adapters beside {', '.join(targets)}")
        return {"rank": int(rank or USUAL_RANK), "targets": targets}

    def _recompute(self) -> Any:
        if layers := number_said(self.row, "recompute_layers"):
            return _first_layers(layers)
        granularity = self.text("recompute_granularity")
        if granularity not in {"", "selective"}:
            return granularity
        if modules := self.text("recompute_modules"):
            return {"granularity": "selective", "modules": modules.split(",")}
        if policy := self._paxml().get("recompute"):
            self.weaken(FROM_RULE, f"{', '.join(policy)} recomputed, as by Paxml's policy")
            return {"granularity": "selective", "modules": [*policy]}
        if recipe := self.text("recipe_recompute_granularity"):
            self.weaken(FROM_RECIPE)
            return self._recompute_of_recipe(recipe)
        if granularity == "selective":
            if self._is_torchtitan:
                self.weaken(FROM_RULE, "recomputation by operators")
                return {"granularity": "selective", "modules": ["per_op"]}
            self.weaken(FROM_RULE, "selective recomputation of core attention")
            return "selective"
        return self._recompute_of_neighbour()

    def _recompute_of_neighbour(self) -> Any:
        if layers := number_said(self.row, "recipe_recompute_layers"):
            self.weaken(FROM_RULE, f"{layers} layers recomputed, as in the nearest recipe")
            return _first_layers(layers)
        framework = FrameworkConfig(**stated) if (stated := framework_of(self.row)) else None
        default = defaults_of(framework, self._architecture).get("training", {})
        granularity: str = default.get("recompute.granularity", "none")
        usual = f"{granularity} recomputation, as by default of {framework}"
        self.weaken(FROM_RULE, "no recomputation" if granularity == "none" else usual)
        return granularity

    def _recompute_of_recipe(self, granularity: str) -> Any:
        if granularity == "alternate":
            # Every n-th block, n not printed.
            self.weaken(FROM_RULE, "every second layer recomputed")
            return {"granularity": "full", "layers": list(range(0, self.model["num_layers"], 2))}
        if granularity == "dot":
            self.weaken(FROM_RULE, "saving GEMM outputs taken as recomputing norms and activation")
            return {"granularity": "selective", "modules": ["layernorm", "moe_act"]}
        modules = self.text("recipe_recompute_modules")
        if granularity != "selective" or not modules:
            return granularity
        return {"granularity": "selective", "modules": modules.split(",")}

    def _precision(self) -> dict[str, Any]:
        kind = precision_of(self.text("precision").removeprefix("amp_"))
        if kind in {"bf16", "fp16", "fp32"}:
            return {"precision": kind}
        settings = {"precision": kind, **self.stated("fp8_weight_transpose_cache")}
        if kind == "fp8":
            recipe = self.text("fp8_recipe") or self._fp8_recipe()
            settings |= {"precision": recipe} if recipe == "mxfp8" else {"fp8_recipe": recipe}
        fields = ("fp8_param_gather", "fp8_attention", "first_last_layers_bf16")
        settings |= self.stated(*fields, of=FROM_RECIPE)
        return settings | self.stated("fp8_attention")

    def _fp8_recipe(self) -> str:
        self.weaken(FROM_RULE, "FP8 recipe by source")
        # Both set fp8_recipe in their files; Primus' own preset is delayed, as Megatron's.
        if "megatron-bridge" in self.source.lower() or "primus examples/mlperf" in self._primus:
            return "tensorwise"
        return "blockwise" if "deepseek-ai" in self.source.lower() else "delayed"

    def _optimizer(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        moments = self.text("moment_dtype")
        if moments:
            self.weaken(FROM_RULE, "moments in BF16, as Primus' precision-aware files have them")
        if moments := moments or self.text("recipe_moment_dtype"):
            settings["optimizer"] = {"name": "adam", "moment_dtype": moments}
        if self.text("offloaded_states"):
            settings["optimizer"] = {**settings.get("optimizer", {}), "offload_fraction": 1.0}
            self.weaken(FROM_RECIPE)
        if reduced := self.text("grad_reduce_dtype"):
            settings |= {"gradient_dtype": reduced, "grad_reduce_dtype": reduced}
        fused = self.stated("gradient_accumulation_fusion")
        if not fused and self._primus:
            fused = {"gradient_accumulation_fusion": self._accumulation_is_fused()}
        settings |= fused or self.stated("gradient_accumulation_fusion", of=FROM_RECIPE)
        reduce = self.recipe("grad_reduce_dtype").lower()
        if reduce.startswith("bf16"):
            # Megatron's gradient buffer has the type it reduces in; PURE mode likewise.
            settings |= {"gradient_dtype": "bf16", "grad_reduce_dtype": "bf16"}
            self.weaken(FROM_RECIPE)
        return settings

    def _accumulation_is_fused(self) -> bool:
        """Read a switch that four of five of Primus' experiment files for MI300 and MI355 clear."""
        name = str(self.model.get("name", "")).lower()
        fused = name.startswith(FUSED_ACCUMULATION)
        self.weaken(FROM_RULE, f"gradient accumulation {'' if fused else 'not '}fused (Primus)")
        return fused

    def _switches(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        settings |= self.stated("cuda_graphs", of=FROM_RECIPE)
        if self.text("recipe_offloaded_layers"):
            layers = number_said(self.row, "recipe_offloaded_layers")
            share = min(1.0, layers / int(self.model["num_layers"]))
            settings["activation_offload_fraction"] = share
            self.weaken(FROM_RECIPE)
        if self.recipe("fused_cross_entropy").lower().startswith("false"):
            settings["cross_entropy_fusion"] = False
            self.weaken(FROM_RECIPE)
        if self.text("loss_chunks"):
            chunks = whole(self.row, "loss_chunks", 1 << 20)
            settings["loss_chunk_tokens"] = -(-self.micro_batch * self.seq // chunks)
        kernels = ("torch_compile", "attention_kernel", "flash_attention", "attention_dropout")
        settings |= self.stated(*kernels)
        if settings.get("attention_kernel") == "fa2":
            self.weaken(FROM_RECIPE)
        return settings

    def _moe(self) -> dict[str, Any]:
        dispatcher = self.text("dispatcher")
        if self.recipe("moe_dispatcher"):
            self.weaken(FROM_RECIPE)
        elif self.ep > 1 and not dispatcher:
            dispatcher = self._usual_dispatcher()
            self.weaken(FROM_RULE, f"dispatcher {dispatcher}")
        settings: dict[str, Any] = {"dispatcher": dispatcher or "alltoall"}
        # The units that recipes give HybridEP are not read: their effect on its rate is unknown.
        if dispatcher in FUSED_UNITS:
            settings |= self.stated("dispatcher_sms")
        if self.text("token_drop") == "true":
            # Tokens padded to capacity: counts are known, so the host never waits.
            settings |= {"capacity_factor": 1.0, "host_sync": False}
        if "full_iteration" in self.recipe("cuda_graph").lower():
            settings["host_sync"] = False
        settings |= self.stated("host_sync", "fused_experts", "permute_fusion")
        return settings | self._primus_moe()

    def _usual_dispatcher(self) -> str:
        """Return what recipes set where a row says nothing.

        NVIDIA's took DeepEP up with container 25.07, and HybridEP on Blackwell with 25.11; other
        frameworks have an all-to-all.
        """
        released = self.text("container") or NEWEST_CONTAINER
        if self.text("framework") not in {"nemo", "megatron_bridge"} or released < "25.07":
            return "alltoall"
        blackwell = self._architecture == "blackwell"
        return "hybridep" if blackwell and released >= "25.11" else "deepep"

    @property
    def _architecture(self) -> str:
        return load_device(device_of(self.text("gpu"))).architecture

    def _primus_moe(self) -> dict[str, Any]:
        """Read what Primus' stages of sync-free experts switch on.

        Stage 1 is fused kernels of router and permutation; the host still waits for the counts of
        what arrives, until stage 2 (``validate_args_on_rocm`` of Primus). Without a stage its
        preset of DeepSeek, which GPT-OSS extends, fuses permutation. The baseline files of its
        ``moe_package`` and its other presets do not.
        """
        if not self._primus:
            return {}
        number = number_said(self.row, "sync_free_stage")
        preset = str(self.model.get("name", "")).lower().startswith(FUSED_PERMUTATION)
        fused = number > 0 or (preset and "moe_package" not in self.source)
        if number == 0:
            self.weaken(FROM_RULE, f"permutation {'' if fused else 'not '}fused (Primus)")
        return {"permute_fusion": fused, "host_sync": number < 2}


def _first_layers(count: int) -> dict[str, Any]:
    return {"granularity": "full", "method": "block", "num_layers": count}
