"""How a row of a training table lays out its job: model, cluster, batch, degrees and stages.

What the row says is read column by column, with where each setting came from; of ZeRO, FSDP and the
groups that share states, it is read from the words of one column.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from projector.config.cluster import ClusterConfig
from projector.validate.clusters import Stated, cluster_of, network_of
from projector.validate.kind import FROM_RECIPE, FROM_ROW, FROM_RULE, Row, integer, whole
from projector.validate.names import device_of, model_name, model_of, precision_of
from projector.validate.recipes import (
    OF_RECIPE,
    Layout,
    container_of,
    paxml_settings,
    virtual_stages,
)

_STAGE = re.compile(r"zero[-_ ]?(?:stage[-_ ]?)?([0-3])(?!\d)")
_GROUP = (
    # Ranks that share the states, beside those that hold copies of them.
    r"shard\w*[-_ :=(]*(?:degree|size|group)?[-_ :=]*(\d+)",
    r"(\d+)[ -]*(?:way )?shard",
    r"group(?: of| size)?[ :=]*(\d+)",
    r"(?:zero1|over|within)[ :=(]*(\d+)",
    r"(?<![\w.-])(\d+)(?: ?[x*] ?\d+)?\b",
)
"""Spellings of the ranks of a group; the first that applies."""
_FSDP = r"fsdp|hsdp|full[_ ]shard|hybrid[_ ]shard|shard_grad_op|dp_shard|parallel_shard"
_GENERATION = re.compile(r"(fsdp|zero)[-_ ]?(?:stage[-_ ]?|v)?[0-3](?!\d)")


class Sharding(NamedTuple):
    """States that data-parallel ranks share, and between which of them."""

    stage: int | None
    """ZeRO stage; None where the text names none."""
    is_fsdp: bool
    """Whether FSDP or HSDP shards weights layer by layer."""
    keeps_weights: bool
    """Whether gathered weights are kept after the forward."""
    group: int
    """Ranks that share one copy, 0 where the text gives none."""
    within_node: bool
    """Whether the ranks of a node share one copy."""


def sharding_of(text: str) -> Sharding:
    """Read texts such as ``FSDP2 32``, ``HSDP 8x4``, ``zero3 group 64`` or ``ZeRO-1 (zero1=8)``.

    Megatron-FSDP names its strategies: ``optim`` is ZeRO 1, ``optim_grads`` ZeRO 2, and
    ``optim_grads_params`` FSDP.
    """
    lowered = text.lower()
    keeps = "shard_grad_op" in lowered or "shard_zero2" in lowered
    stated = None if keeps else _STAGE.search(lowered)
    stage = int(stated[1]) if stated else None
    megatron = re.search(r"\boptim(_grads)?(_params)?\b", lowered)
    if megatron and stage is None:
        stage = 3 if megatron[2] else 2 if megatron[1] else 1
    if re.search(r"no[_ ]shard|^ddp\b(?!.*optimizer)|^none\b", lowered):
        stage = 0
    names_fsdp = bool(re.search(_FSDP, lowered))
    is_fsdp = names_fsdp and stage in {None, 3}
    hybrid = bool(re.search(r"hsdp|hybrid", lowered))
    group = _group(lowered)
    inside = re.search(r"(?:within|intra|inside|in)[- ]?(?:a |one |the )?node", lowered)
    return Sharding(
        stage=stage,
        is_fsdp=is_fsdp,
        keeps_weights=keeps,
        group=group,
        within_node=not group and bool(inside or hybrid),
    )


def sharding_fields(sharding: Sharding, generation: int, ranks: int, node: int) -> dict[str, Any]:
    """Return the fields of ``parallelism`` that a text of `sharding_of` sets.

    ``generation`` is that of FSDP, 1 or 2. ``ranks`` are those of data and context parallelism, and
    ``node`` those of them on one node.
    """
    out: dict[str, Any] = {}
    if sharding.is_fsdp:
        out["fsdp"] = generation
        out["fsdp_reshard_after_forward"] = not sharding.keeps_weights
    else:
        out["zero_stage"] = 1 if sharding.stage is None else sharding.stage
    group = sharding.group or (node if sharding.within_node else 0)
    if 1 < group < ranks and ranks % group == 0 and out.get("zero_stage") != 0:
        out["sharding_group_size"] = group
    return out


def _group(lowered: str) -> int:
    bare = _GENERATION.sub(r"\1", lowered)
    copies = re.search(r"replic\w*[-_ :=(]*(?:degree|size)?[-_ :=]*\d+", bare)
    rest = bare.replace(copies[0], "") if copies else bare
    for spelling in _GROUP:
        found = re.search(spelling, rest)
        if found and int(found[1]) > 0:
            return int(found[1])
    return 0


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
        """Return a column without surrounding blanks."""
        return (self.row.get(column) or "").strip()

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


DEFAULT_MICROBATCHES = 8
"""Microbatches of a step whose global batch is not stated: enough that the once-a-step costs
stay small, as in the published recipes (median 16), and no more than a bubble would hide."""

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
        stated = re.search(r"gbs (\d+)", self.other)
        if stated and int(stated[1]) % world == 0:
            self.weaken(FROM_RECIPE)
            return int(stated[1])
        found = _ACCUMULATION.search(f"{self.flags}; {self.other}")
        steps = int(next(filter(None, found.groups()))) if found else 0
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

    def _schedule(self) -> tuple[str, int]:
        printed = re.search(r"\bV(?:P|PP) ?=?(\d+)\b", self.flags)
        vpp = self._degree("vpp")
        if printed and not self.text("vpp"):
            vpp = max(1, int(printed[1]))
        match = _SCHEDULE.search(self.flags)
        name = (match[1] or match[2]).lower().strip(";,") if match else ""
        if name and name not in _SCHEDULES:
            raise ValueError(f"unknown schedule {name!r}")
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
        elif (
            self.is_moe
            and self._primus
            and not self.recipe("moe_overlap").lower().startswith("false")
        ):
            # Primus' preset of DeepSeek sets what DeepEP does not allow.
            name = str(self.model.get("name", "")).lower()
            if name.startswith("deepseek") and not self._deep()[0]:
                split["moe_shared_expert_overlap"] = True
                self.weaken(FROM_RULE, "shared experts beside the exchange, as in Primus' preset")
        return split

    def _deep(self) -> tuple[bool, str]:
        """Return whether the dispatcher is a fused exchange, and what says so."""
        text = self.recipe("moe_dispatcher").lower()
        stated = re.search(r"[^;]*(?:(?<!no )deepep|alltoall dispatcher)[^;]*", self.flags.lower())
        if not text and stated:
            text = stated[0]
        return "deepep" in text or "hybridep" in text, text

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


def _layout_text(counts: list[int], mtp: int) -> str:
    stages = ["t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return "|".join(stages)
