"""How a row of a training table lays out its job: model, cluster, batch, degrees and stages.

What the row says is read column by column, with where each setting came from; of ZeRO, FSDP and the
groups that share states, it is read from the words of one column.
"""

import re
from collections.abc import Mapping
from typing import Any

from projector.config.cluster import ClusterConfig
from projector.config.training import AUTO, FUSED_UNITS, schedule_name, spellings
from projector.validate.clusters import Stated, cluster_of, network_of
from projector.validate.kind import FROM_RECIPE, FROM_ROW, FROM_RULE, Row, integer, whole
from projector.validate.names import device_of, model_name, model_of, precision_of
from projector.validate.recipes import OF_RECIPE, Layout, paxml_settings, virtual_stages
from projector.validate.words import number_said, said


def sharding_fields(row: Row, generation: int, ranks: int, node: int) -> dict[str, Any]:
    """Return the fields of ``parallelism`` that a row says of ZeRO, FSDP and shared states.

    ``generation`` is that of FSDP, 1 or 2. ``ranks`` are those of data and context parallelism, and
    ``node`` those of them on one node.
    """
    out: dict[str, Any] = {}
    if is_fsdp(row):
        out["fsdp"] = generation
        out["fsdp_reshard_after_forward"] = said(row, "fsdp_reshard_after_forward") != "false"
    else:
        out["zero_stage"] = number_said(row, "zero_stage", 1)
    in_node = said(row, "sharding_group") == OF_NODE
    size = node if in_node else number_said(row, "sharding_group")
    if 1 < size < ranks and ranks % size == 0 and out.get("zero_stage") != 0:
        out["sharding_group_size"] = size
    return out


def is_fsdp(row: Row) -> bool:
    """Whether FSDP shards the weights of a row layer by layer."""
    return bool(said(row, "fsdp")) and said(row, "zero_stage") in {"", "3"}


OF_NODE = "node"
"""Group of the ranks of a node."""

MAX_COUNT = 1 << 28
"""Largest size of a job; larger ones would not fit into memory."""

_LARGEST = {"num_layers": 10_000, "pp": 1024, "vpp": 64, "tp": 1 << 20, "n_gpus": 1 << 24}
_RANK = {FROM_ROW: 0, FROM_RECIPE: 1, FROM_RULE: 2}


class RowText:
    """The text of a row and of its recipe; remembers where settings came from."""

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

    def text(self, column: str) -> str:
        """Return a column without surrounding blanks, or what the row says of it in words."""
        return said(self.row, column)

    def recipe(self, column: str) -> str:
        """Return a recipe column, ``""`` if it does not apply to the row."""
        text = self.text(f"recipe_{column}")
        return "" if text.lower().startswith(("unknown", "n/a")) else text

    def count(self, column: str) -> int:
        """Return a column that must hold a positive whole number."""
        return whole(self.row, column, _LARGEST.get(column, MAX_COUNT))

    def weaken(self, mark: str, note: str = "") -> None:
        """Record that a setting came from ``mark``."""
        if mark == FROM_RECIPE and self.text("recipe_match") == "stated":
            mark = FROM_ROW  # the recipe columns repeat what the source of the row says itself
        if _RANK[mark] > _RANK[self.mark]:
            self.mark = mark
        if note and note not in self.notes:
            self.notes.append(note)

    def stated(self, *fields: str, of: str = FROM_ROW) -> dict[str, Any]:
        """Return the fields of a job that columns of the row, or of its recipe, state."""
        prefix = "recipe_" if of == FROM_RECIPE else ""
        texts = {field: self.text(f"{prefix}{field}") for field in fields}
        found = {field: _value(text) for field, text in texts.items() if text}
        if found:
            self.weaken(of)
        return found

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
        return self.text("framework") == "torchtitan"

    @property
    def _primus(self) -> str:
        """Source of a run of Primus without its commit, in lower case; else ``""``."""
        found = "primus" in f"{self.source} {self.flags}".lower()
        return re.sub(r"@\w+", "", self.source).lower() if found else ""

    @property
    def _is_nvidia(self) -> bool:
        return self.source.lower().startswith("nvidia")


DEFAULT_MICROBATCHES = 8
"""Microbatches of a step whose global batch is not stated: enough that the once-a-step costs
stay small, as in the published recipes (median 16), and no more than a bubble would hide."""


def _value(text: str) -> bool | int | str:
    return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)


class RowLayout(RowText):
    """A row whose model is placed on devices."""

    def _place(self) -> None:
        """Read the model and how it is laid out, on which all other settings depend."""
        self.model = self._model()
        self.is_moe = bool(self.model.get("moe"))
        self.dp = self._data_parallel()
        self.micro_batch, self.global_batch = self._batch()
        self.schedule, self.vpp = self._schedule()

    def _model(self) -> dict[str, Any]:
        layers = self.count("num_layers") if self.text("num_layers") else None
        model = model_of(
            self.text("model"), num_layers=layers, seq_len=self.seq, gpu=self.text("gpu")
        )
        stated = number_said(self.row, "recipe_mtp_num_layers")
        if stated:
            model["mtp_num_layers"] = stated
            self.weaken(FROM_RECIPE)
        elif (
            model.get("name") == "DeepSeek-V3"
            and "Megatron-Bridge" in self.source
            and self.text("mtp_num_layers") != "0"
        ):
            model["mtp_num_layers"] = 1
            self.weaken(FROM_RULE, "one MTP module, as in every Megatron-Bridge recipe")
        return model

    def _cluster(self) -> tuple[ClusterConfig, tuple[str, int, Stated]]:
        device = device_of(self.text("gpu"))
        stated = network_of(device, f"{self.flags}; {self.source}")
        stated = stated._replace(exchange_proxy=self.text("exchange_proxy"))
        cluster, ruled = cluster_of(device, self.gpus, stated)
        if ruled:
            self.weaken(FROM_RULE, ruled)
        return cluster, (device, self.gpus, stated)

    def _data_parallel(self) -> int:
        split = self.tp * self.pp * self.cp
        if self.gpus % split:
            raise ValueError(f"tp * pp * cp = {split} does not divide n_gpus = {self.gpus}")
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
        stated = number_said(self.row, "recipe_global_batch")
        if stated and stated % world == 0:
            self.weaken(FROM_RECIPE)
            return stated
        steps = number_said(self.row, "microbatches")
        if steps:
            self.weaken(FROM_ROW, f"{steps} microbatches, as the row says")
            return world * steps
        script = number_said(self.row, "script_global_batch")
        split = number_said(self.row, "script_micro_batch", 1) * self.dp
        if script and script % split == 0:
            self.weaken(FROM_RULE, "gradient accumulation of the script's other batch sizes")
            return world * (script // split)
        steps = max(DEFAULT_MICROBATCHES, 4 * self.pp if self.pp > 1 else 0)
        if self._is_torchtitan and self.pp > 1:
            steps = self.pp
        self.weaken(FROM_RULE, f"{steps} microbatches, as no global batch is stated")
        return world * steps

    def _schedule(self) -> tuple[str, int]:
        vpp = self._degree("vpp")
        printed = self.text("virtual_stages")
        if printed and not self.text("vpp"):
            vpp = max(1, number_said(self.row, "virtual_stages"))
        name = self.text("schedule").strip(";,").lower()
        schedule = schedule_name(name) if name else AUTO
        if schedule not in spellings().values():
            raise ValueError(f"unknown schedule {name!r}")
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
        if "automodel" in source or "paxml" in source or self.text("uses_jax") == "true":
            return 1
        layout = Layout(
            device=device_of(self.text("gpu")),
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            ep=self.ep,
            precision=precision_of(self.text("precision")),
            release=self.text("container"),
        )
        name = model_name(self.text("model")).partition(",")[0]
        vpp, origin = virtual_stages(name, int(self.model["num_layers"]), layout)
        if origin != OF_RECIPE and "megatron-bridge" in source:
            return 1  # its tables have the column, and leave it blank where a pipeline has none
        self.weaken(FROM_RULE, f"vpp {vpp} {origin}")
        return vpp

    def _zero_bubble(self) -> dict[str, Any]:
        """Read ZB-1p and ZB-2p, which plan with the activations of p or 2 p microbatches."""
        microbatches = number_said(self.row, "zero_bubble_microbatches")
        if not microbatches:
            return {}
        # arXiv:2401.10241, section 4: all of its schedules validate the optimizer afterwards.
        return {
            "zero_bubble_max_pending_backward": microbatches * self.pp,
            "optimizer_post_validation": True,
        }

    def _parallelism(self) -> dict[str, Any]:
        split: dict[str, Any] = {
            **{name: getattr(self, name) for name in ("tp", "pp", "vpp", "cp", "ep")},
            **self._sharding(),
            **self._layout(),
        }
        if self.is_moe and self.tp > 1:
            split["etp"] = self._expert_tp()
        if self.tp > 1:
            split["tp_comm_overlap"] = self._tp_overlap()
            split |= self.stated("sequence_parallel")
        if self.cp > 1:
            split |= self.stated("cp_comm_type")
        if self.dp * self.cp > 1:
            for field in ("overlap_grad_reduce", "overlap_param_gather"):
                split[field] = self._dp_overlap(field)
        if not self.is_moe:
            return split
        fields = ("overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap")
        split |= self.stated(*fields, of=FROM_RECIPE)
        if (
            "moe_shared_expert_overlap" not in split
            and self._primus
            and not self.recipe("moe_overlap").lower().startswith("false")
        ):
            # Primus' preset of DeepSeek sets what DeepEP does not allow.
            name = str(self.model.get("name", "")).lower()
            if name.startswith("deepseek") and self.text("dispatcher") not in FUSED_UNITS:
                split["moe_shared_expert_overlap"] = True
                self.weaken(FROM_RULE, "shared experts beside the exchange, as in Primus' preset")
        return split

    def _expert_tp(self) -> int:
        """Return the stated degree, or Megatron's default (TP) where scripts of others leave it.

        NVIDIA's recipes of NeMo, Megatron-Bridge and Megatron-LM's examples set 1.
        """
        if stated := number_said(self.row, "etp"):
            return stated
        split = self.gpus // self.pp
        megatron = self.text("framework") in {"megatron_lm", "primus"}
        etp = self.tp if megatron and not self._is_nvidia else 1
        etp = etp if split % (etp * self.ep) == 0 else 1
        self.weaken(FROM_RULE, f"etp {etp}")
        return etp

    def _sharding(self) -> dict[str, Any]:
        if self.text("fsdp_zero").lower() in {"", "none"}:
            if self.recipe("fsdp"):
                self.weaken(FROM_RECIPE)
            elif self.dp > 1 and not self.text("zero_stage") and not self.text("fsdp"):
                self.weaken(FROM_RULE, "distributed optimizer (ZeRO-1)")
        ranks = self.dp * self.cp
        node = max(1, 8 // self.tp) if self.gpus > 8 else ranks
        sharded = is_fsdp(self.row)
        found = sharding_fields(self.row, self._fsdp_generation() if sharded else 0, ranks, node)
        if sharded and self._is_torchtitan and self.pp > 1:
            # Its default policy: every microbatch would gather again.
            self.weaken(FROM_RULE, "weights stay gathered, as torchtitan does with a pipeline")
            found["fsdp_reshard_after_forward"] = False
        group = found.get("sharding_group_size")
        if group and self.text("sharding_group") == OF_NODE:
            self.weaken(FROM_RULE, f"states shared by the {group} ranks of a node")
        meshed = int(self._paxml().get("sharding_group_size", 0))
        if sharded and not group and 1 < meshed < ranks and ranks % meshed == 0:
            found["sharding_group_size"] = group = meshed
            self.weaken(FROM_RULE, f"states shared by {meshed} ranks, as in Paxml's mesh")
        copies = number_said(self.row, "recipe_optimizer_copies", 1)
        if copies > 1 and not group and ranks % copies == 0:
            found["sharding_group_size"] = group = ranks // copies
            self.weaken(FROM_RECIPE)
        experts = self.gpus // (self.pp * self.ep)
        if group and self.is_moe and experts % (ranks // group):
            del found["sharding_group_size"]
            self.weaken(FROM_RULE, "states shared by all ranks, as copies do not divide experts")
        return found

    def _paxml(self) -> Mapping[str, Any]:
        name = model_name(self.text("model")).partition(",")[0]
        return paxml_settings(name) if "paxml" in self.source.lower() else {}

    def _fsdp_generation(self) -> int:
        if self.text("fsdp") == "2":
            return 2
        # Both have no other: Primus' recipes set use_torch_fsdp2.
        if self._is_torchtitan or self._primus:
            self.weaken(FROM_RULE, "FSDP 2, the only one of its framework")
            return 2
        return 1

    def _layout(self) -> dict[str, Any]:
        layers, mtp = int(self.model["num_layers"]), int(self.model.get("mtp_num_layers", 0))
        stages = self.pp * self.vpp
        by_work = self.text("framework") == "nanotron"
        if stages == 1 or by_work or (layers % stages == 0 and not mtp):
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
        counts = [min(share, max(0, layers - share * stage)) for stage in range(stages)]
        self.weaken(FROM_RULE, "full stages first, the last takes the rest")
        return {"pipeline_model_parallel_layout": _layout_text(counts, mtp)}

    def _tp_overlap(self) -> bool | str:
        text = self.recipe("tp_comm_overlap").lower()
        if text:
            self.weaken(FROM_RECIPE)
            return "async_tp" if "async" in text else text.startswith("true")
        if stated := self.text("tp_comm_overlap"):
            return stated if stated == "async_tp" else stated == "true"
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
        if stated := self.text("dp_overlap"):
            return stated == "true"
        self.weaken(FROM_RULE, "data-parallel overlap on")
        return True


def _layout_text(counts: list[int], mtp: int) -> str:
    stages = ["t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return "|".join(stages)
