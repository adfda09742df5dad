"""A row of a training table as a job: settings of the row, of its recipe, then of stated rules.

Each rule is described, with its reason, in ``docs/validation.md``.
"""

import re
from collections.abc import Mapping
from typing import Any

from projector.config.cluster import ClusterConfig
from projector.validate.clusters import Stated, cluster_of, network_of
from projector.validate.frameworks import framework_of
from projector.validate.kind import FROM_RECIPE, FROM_ROW, FROM_RULE, Row, integer
from projector.validate.models import model_name, model_of
from projector.validate.names import device_of, precision_name, precision_of
from projector.validate.recipes import (
    OF_RECIPE,
    Layout,
    container_of,
    paxml_settings,
    virtual_stages,
)
from projector.validate.sharding import fields as sharding_fields
from projector.validate.sharding import sharding_of

DEFAULT_MICROBATCHES = 8
"""Microbatches of a step whose global batch is not stated: enough that the once-a-step costs
stay small, as in the published recipes (median 16), and no more than a bubble would hide."""

FUSED_ACCUMULATION = ("qwen3-30b", "qwen3-235b", "llama-3.1-405b", "deepseek-v3", "kimi")
"""Models whose experiment files in AMD-AGI/Primus set ``gradient_accumulation_fusion``, on MI300X,
MI325X or MI355X; the files of other models clear it."""

FUSED_PERMUTATION = ("deepseek", "gpt-oss", "kimi")
"""Models whose presets in AMD-AGI/Primus set ``moe_permute_fusion`` (``deepseek_v2_base.yaml``)."""

MAX_COUNT = 1 << 28
"""Largest size of a job; larger ones would not fit into memory."""

_LARGEST = {"num_layers": 10_000, "pp": 1024, "vpp": 64, "tp": 1 << 20, "n_gpus": 1 << 24}
_RANK = {FROM_ROW: 0, FROM_RECIPE: 1, FROM_RULE: 2}
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
_SCHEDULES = {
    "zb-2p": "seaailab",
    "zb-1p": "seaailab",
    "zb-v": "zbv-formatted",
    "zbv": "zbv-formatted",
    "zb-h1": "zerobubble",
    "zb-h2": "zerobubble-h2",
    "v-min": "zbv-greedy-min",
    "v-half": "zbv-greedy-half",
    "v-zb": "zbv-greedy-zb",
    "dualpipe": "dualpipe",
    "1f1b-i": "interleaved",
    "interleaved": "interleaved",
    "interleaved 1f1b": "interleaved",
    "1f1b": "1f1b",
    "gpipe": "gpipe",
}
_SCHEDULE = re.compile(
    r"schedule[ :=]+(\S+)|\b(interleaved 1f1b|1f1b-i|1f1b|gpipe|dualpipe|zb-?(?:[12]p|h[12]|v)"
    r"|v-(?:min|half|zb))(?![\w-])",
    re.IGNORECASE,
)
_ACCUMULATION = re.compile(
    r"\bGA ?=?(\d+)|(?:grad(?:ient)? accum\w*|microbatches|micro_num)[ =:]+(\d+)"
    r"|\b(\d+) microbatch",
    re.IGNORECASE,
)
"""Spellings of the microbatches of a step."""


class JobRow:
    """One row on its way to a job; remembers where its settings came from."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.mark = FROM_ROW
        self.notes: list[str] = []
        self.key = ""
        """Equal for equal jobs, once `job` was called."""
        self.flags = self.text("other_flags")
        self.source = self.text("source")
        self.other = self.text("recipe_other")
        self.tp = self._degree("tp")
        self.pp = self._degree("pp")
        self.cp = self._degree("cp")
        self.ep = self._degree("ep")
        self.gpus = self._gpus()
        self.seq = self.count("seq_len")

    def job(self) -> dict[str, Any]:
        """Return the native mapping of the job.

        Raises
        ------
        ValueError
            If the row contradicts itself or lacks a value that no rule fills in.
        """
        self.model = self._model()
        self.is_moe = bool(self.model.get("moe"))
        self.dp = self._data_parallel()
        self.micro_batch, self.global_batch = self._batch()
        schedule, self.vpp = self._schedule()
        parallelism = self._parallelism()
        training = {
            "micro_batch_size": self.micro_batch,
            "global_batch_size": self.global_batch,
            "seq_length": self.seq,
            "schedule": schedule,
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

    # Reading -------------------------------------------------------------------------------

    def text(self, column: str) -> str:
        """Return a column without surrounding blanks."""
        return (self.row.get(column) or "").strip()

    def recipe(self, column: str) -> str:
        """Return a recipe column, ``""`` if it does not apply to the row."""
        text = self.text(f"recipe_{column}")
        return "" if text.lower().startswith(("unknown", "n/a")) else text

    def count(self, column: str) -> int:
        """Return a column that must hold a positive whole number."""
        value = integer(self.row, column)
        if value is None or not 1 <= value <= _LARGEST.get(column, MAX_COUNT):
            msg = f"{column} is {self.row.get(column)!r}, not a count"
            raise ValueError(msg)
        return value

    def weaken(self, mark: str, note: str = "") -> None:
        """Record that a setting came from ``mark``."""
        if mark == FROM_RECIPE and self.text("recipe_match") == "stated":
            mark = FROM_ROW  # the recipe columns repeat what the source of the row says itself
        if _RANK[mark] > _RANK[self.mark]:
            self.mark = mark
        if note and note not in self.notes:
            self.notes.append(note)

    def says(self, *words: str) -> bool:
        """Whether the remarks of the row or of its recipe hold one of ``words``."""
        text = f"{self.flags} {self.other}".lower()
        return any(word in text for word in words)

    def _degree(self, column: str) -> int:
        return self.count(column) if self.text(column) else 1

    def _gpus(self) -> int:
        """Return the GPUs of the row, or where it has none their product."""
        if self.text("n_gpus") or not self.text("dp"):
            return self.count("n_gpus")
        self.weaken(FROM_RULE, "GPUs from the degrees")
        return self.tp * self.pp * self.cp * self.count("dp")

    @property
    def _is_torchtitan(self) -> bool:
        return "torchtitan" in self.source.lower()

    @property
    def _primus(self) -> str:
        """Source of a run of Primus without its commit, in lower case; else ``""``."""
        found = "primus" in f"{self.source} {self.flags}".lower()
        return re.sub(r"@\w+", "", self.source).lower() if found else ""

    @property
    def _is_nvidia(self) -> bool:
        return self.source.lower().startswith("nvidia")

    # Model and cluster ---------------------------------------------------------------------

    def _model(self) -> dict[str, Any]:
        layers = self.count("num_layers") if self.text("num_layers") else None
        model = model_of(
            self.text("model"), num_layers=layers, seq_len=self.seq, gpu=self.text("gpu")
        )
        stated = re.search(r"mtp=(\d+)", self.other)
        if stated and int(stated[1]):
            model["mtp_num_layers"] = int(stated[1])
            self.weaken(FROM_RECIPE)
        elif (
            model.get("name") == "DeepSeek-V3"
            and "Megatron-Bridge" in self.source
            and "w/o mtp" not in self.flags.lower()
        ):
            model["mtp_num_layers"] = 1
            self.weaken(FROM_RULE, "one MTP module, as in every Megatron-Bridge recipe")
        return model

    def _cluster(self) -> tuple[ClusterConfig, tuple[str, int, Stated]]:
        device = device_of(self.text("gpu"))
        stated = network_of(device, f"{self.flags}; {self.source}")
        cluster, ruled = cluster_of(device, self.gpus, stated)
        if ruled:
            self.weaken(FROM_RULE, ruled)
        return cluster, (device, self.gpus, stated)

    def _data_parallel(self) -> int:
        split = self.tp * self.pp * self.cp
        if self.gpus % split:
            msg = f"tp * pp * cp = {split} does not divide n_gpus = {self.gpus}"
            raise ValueError(msg)
        derived = self.gpus // split
        stated = integer(self.row, "dp")
        if stated is not None and stated != derived:
            self.weaken(FROM_RULE, f"dp {derived} from the GPUs, not {stated} as printed")
        return derived

    def _batch(self) -> tuple[int, int]:
        micro = self.count("micro_batch")
        world = micro * self.dp
        if not self.text("global_batch"):
            return micro, self._global_batch(world)
        global_batch = self.count("global_batch")
        if self._is_torchtitan and self.pp > 1 and global_batch == world and micro % self.pp == 0:
            self.weaken(FROM_RULE, "as many microbatches as pipeline stages (torchtitan)")
            micro //= self.pp
        return micro, global_batch

    def _global_batch(self, world: int) -> int:
        """Fill in a global batch: the recipe's, the script's accumulation, or a default."""
        stated = re.search(r"gbs (\d+)", self.other)
        if stated and int(stated[1]) % world == 0:
            self.weaken(FROM_RECIPE)
            return int(stated[1])
        steps = _accumulation(f"{self.flags}; {self.other}")
        if steps:
            self.weaken(FROM_ROW, f"{steps} microbatches, as the row says")
            return world * steps
        pair = re.search(r"gbs from script comment (\d+)->(\d+)", self.flags)
        if pair and int(pair[2]) % (int(pair[1]) * self.dp) == 0:
            self.weaken(FROM_RULE, "gradient accumulation of the script's other batch sizes")
            return world * (int(pair[2]) // (int(pair[1]) * self.dp))
        steps = max(DEFAULT_MICROBATCHES, 4 * self.pp if self.pp > 1 else 0)
        if self._is_torchtitan and self.pp > 1:
            steps = self.pp
        self.weaken(FROM_RULE, f"{steps} microbatches, as no global batch is stated")
        return world * steps

    # Parallelism ---------------------------------------------------------------------------

    def _schedule(self) -> tuple[str, int]:
        printed = re.search(r"\bV(?:P|PP) ?=?(\d+)\b", self.flags)
        vpp = self._degree("vpp")
        if printed and not self.text("vpp"):
            vpp = max(1, int(printed[1]))
        match = _SCHEDULE.search(self.flags)
        name = (match[1] or match[2]).lower().strip(";,") if match else ""
        if name and name not in _SCHEDULES:
            msg = f"unknown schedule {name!r}"
            raise ValueError(msg)
        schedule = _SCHEDULES.get(name, "auto")
        if schedule == "interleaved" and vpp == 1:
            layers = int(self.model["num_layers"])
            extra_layers = 0 if layers % self.pp == 0 else 2
            vpp = (layers + extra_layers) // self.pp
            self.weaken(FROM_RULE, f"one layer a chunk (vpp {vpp}), as the paper says")
        elif schedule.startswith("zbv"):
            vpp = 2  # one chunk on the way down the V and one on the way up
        elif not name and not printed and not self.text("vpp"):
            vpp = self._recipe_stages()
        return schedule, vpp if self.pp > 1 else 1

    def _recipe_stages(self) -> int:
        """Fill in the virtual stages of NVIDIA's pipelines, which its recipes interleave."""
        microbatches = self.global_batch // (self.micro_batch * self.dp)
        source = self.source.lower()
        # Megatron interleaves whole rounds of microbatches alone.
        if self.pp == 1 or not self._is_nvidia or microbatches % self.pp:
            return 1
        if "automodel" in source or "paxml" in source or self.says("jax"):
            return 1
        layout = Layout(
            device=device_of(self.text("gpu")),
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            ep=self.ep,
            precision=precision_of(self.text("precision")),
            release=container_of(self.row),
        )
        name = model_name(self.text("model")).partition(",")[0]
        vpp, origin = virtual_stages(name, int(self.model["num_layers"]), layout)
        if origin != OF_RECIPE and "megatron-bridge" in source:
            return 1  # its tables have the column, and leave it blank where a pipeline has none
        self.weaken(FROM_RULE, f"vpp {vpp} {origin}")
        return vpp

    def _zero_bubble(self) -> dict[str, Any]:
        """Read ZB-1p and ZB-2p, which plan with the activations of p or 2 p microbatches."""
        match = re.search(r"schedule zb-([12])p", self.flags, re.IGNORECASE)
        if not match:
            return {}
        # arXiv:2401.10241, section 4: all of its schedules validate the optimizer afterwards.
        return {
            "zero_bubble_max_pending_backward": int(match[1]) * self.pp,
            "optimizer_post_validation": True,
        }

    def _parallelism(self) -> dict[str, Any]:
        split: dict[str, Any] = {
            "tp": self.tp,
            "pp": self.pp,
            "vpp": self.vpp,
            "cp": self.cp,
            "ep": self.ep,
            **self._sharding(),
            **self._layout(),
        }
        if self.is_moe and self.tp > 1:
            split["etp"] = 1
            self.weaken(FROM_ROW if "ETP1" in self.flags else FROM_RULE, "etp 1")
        if self.tp > 1:
            split["tp_comm_overlap"] = self._tp_overlap()
            if "calculon" in self.source.lower():
                split["sequence_parallel"] = "sequence parallel" in self.text("recompute")
            elif self.says("no sequence parallel", "without sequence parallel"):
                split["sequence_parallel"] = False
        if self.cp > 1 and self.says("cp_comm a2a", "cp a2a", "ulysses"):
            split["cp_comm_type"] = "a2a"
        elif self.cp > 1 and self.says("cp_comm all_gather", "cp allgather", "cp all-gather"):
            split["cp_comm_type"] = "all_gather"
        if self.dp * self.cp > 1:
            for field in ("overlap_grad_reduce", "overlap_param_gather"):
                split[field] = self._dp_overlap(field)
        if self.is_moe and "ep_a2a_overlap" in self.recipe("moe_overlap"):
            split["overlap_moe_expert_parallel_comm"] = True
            self.weaken(FROM_RECIPE)
        if self.is_moe and "shared_expert_overlap" in self.recipe("moe_overlap"):
            split["moe_shared_expert_overlap"] = True
            self.weaken(FROM_RECIPE)
        elif self.is_moe and self._overlaps_shared_experts():
            split["moe_shared_expert_overlap"] = True
            self.weaken(FROM_RULE, "shared experts beside the exchange, as in Primus' preset")
        return split

    def _overlaps_shared_experts(self) -> bool:
        """Read what Primus' preset of DeepSeek sets, and DeepEP does not allow."""
        if not self._primus or self.recipe("moe_overlap").lower().startswith("false"):
            return False
        name = str(self.model.get("name", "")).lower()
        return name.startswith("deepseek") and not self._deep()[0]

    def _sharding(self) -> dict[str, Any]:
        stated = self.text("fsdp_zero")
        text = stated.lower()
        if not text or text == "none":
            text = self.recipe("fsdp").lower()
            if text:
                self.weaken(FROM_RECIPE)
        if not text and self.dp > 1:
            self.weaken(FROM_RULE, "distributed optimizer (ZeRO-1)")
        read = sharding_of(text)
        if "reshard_after_forward=false" in self.other:
            read = read._replace(keeps_weights=True)
        if read.is_fsdp and self._is_torchtitan and self.pp > 1:
            # Its default policy: every microbatch would gather again.
            self.weaken(FROM_RULE, "weights stay gathered, as torchtitan does with a pipeline")
            read = read._replace(keeps_weights=True)
        ranks = self.dp * self.cp
        node = max(1, 8 // self.tp) if self.gpus > 8 else ranks
        generation = self._fsdp_generation(text) if read.is_fsdp else 0
        found = sharding_fields(read, generation, ranks, node)
        group = found.get("sharding_group_size")
        if group and read.within_node:
            self.weaken(FROM_RULE, f"states shared by the {group} ranks of a node")
        meshed = int(self._paxml().get("sharding_group_size", 0))
        if read.is_fsdp and not group and 1 < meshed < ranks and ranks % meshed == 0:
            found["sharding_group_size"] = group = meshed
            self.weaken(FROM_RULE, f"states shared by {meshed} ranks, as in Paxml's mesh")
        copies = re.search(r"n_distopt_inst=(\d+)", self.other)
        if copies and int(copies[1]) > 1 and not group and ranks % int(copies[1]) == 0:
            found["sharding_group_size"] = group = ranks // int(copies[1])
            self.weaken(FROM_RECIPE)
        experts = self.gpus // (self.pp * self.ep)
        if group and self.is_moe and experts % (ranks // group):
            del found["sharding_group_size"]
            self.weaken(FROM_RULE, "states shared by all ranks, as copies do not divide experts")
        return found

    def _paxml(self) -> Mapping[str, Any]:
        """Return the settings of Paxml's configuration of the model, empty for other rows."""
        name = model_name(self.text("model")).partition(",")[0]
        return paxml_settings(name) if "paxml" in self.source.lower() else {}

    def _fsdp_generation(self, text: str) -> int:
        if "fsdp2" in text or "megatron_fsdp" in text:
            return 2
        # Both have no other: Primus' recipes set use_torch_fsdp2.
        if self._is_torchtitan or self._primus:
            self.weaken(FROM_RULE, "FSDP 2, the only one of its framework")
            return 2
        return 1

    def _layout(self) -> dict[str, Any]:
        """Place layers that the stages do not divide."""
        layers, mtp = int(self.model["num_layers"]), int(self.model.get("mtp_num_layers", 0))
        stages = self.pp * self.vpp
        if stages == 1 or (layers % stages == 0 and not mtp):
            return {}
        if (layers + 2) % stages == 0 and not mtp:
            self.weaken(FROM_RULE, "embedding and loss count as layers")
            return {
                "account_for_embedding_in_pipeline_split": True,
                "account_for_loss_in_pipeline_split": True,
            }
        if (layers + 2 + mtp) % stages == 0 and stages > 2 * (2 + mtp):
            share = (layers + 2 + mtp) // stages
            if share > mtp:
                counts = [share - 1, *[share] * (stages - 2), share - 1 - mtp]
                if share < 4:
                    self.weaken(FROM_RULE, "embedding, MTP and loss count as layers")
                    return {"pipeline_model_parallel_layout": _layout_text(counts, mtp)}
        if layers % stages == 0:
            return {}
        share = -(-layers // stages)
        counts = []
        remaining = layers
        for _ in range(stages):
            counts.append(min(share, remaining))
            remaining -= counts[-1]
        self.weaken(FROM_RULE, "full stages first, the last takes the rest")
        return {"pipeline_model_parallel_layout": _layout_text(counts, mtp)}

    def _tp_overlap(self) -> bool | str:
        text = self.recipe("tp_comm_overlap").lower()
        if text:
            self.weaken(FROM_RECIPE)
            return "async_tp" if "async" in text else text.startswith("true")
        if self.says("no comm overlap", "no overlap", "vanilla tp"):
            return False
        if self.says("asynctp", "async tp"):
            return "async_tp"
        overlapped = (
            self._is_nvidia and not self.is_moe and "megatron-lm" not in self.source.lower()
        )
        self.weaken(FROM_RULE, f"tensor-parallel overlap {'on' if overlapped else 'off'}")
        return overlapped

    def _dp_overlap(self, field: str) -> bool:
        text = self.recipe(field).lower()
        if text:
            self.weaken(FROM_RECIPE)
            return text.startswith("true")
        if self.says("no comm overlap", "no overlap"):
            return False
        self.weaken(FROM_RULE, "data-parallel overlap on")
        return True

    # Training ------------------------------------------------------------------------------

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

    def _deep(self) -> tuple[bool, str]:
        """Return whether the dispatcher is a fused exchange, and what says so."""
        text = self.recipe("moe_dispatcher").lower()
        stated = re.search(r"[^;]*(?:(?<!no )deepep|alltoall dispatcher)[^;]*", self.flags.lower())
        if not text and stated:
            text = stated[0]
        return "deepep" in text or "hybridep" in text, text

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


def _accumulation(text: str) -> int:
    """Return the microbatches of a step that remarks state, 0 where they state none."""
    found = _ACCUMULATION.search(text)
    return int(next(group for group in found.groups() if group)) if found else 0


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


def _layout_text(counts: list[int], mtp: int) -> str:
    stages = ["t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return "|".join(stages)
