"""Arguments of Hugging Face trainers, with the DeepSpeed file that they name.

One file of arguments (YAML or JSON) as ``HfArgumentParser``, TRL, LLaMA-Factory and axolotl read
it, or the command that launches such a trainer. Names and defaults of ``TrainingArguments``:
huggingface/transformers, src/transformers/training_args.py.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from projector.config import resources
from projector.config.formats import deepspeed
from projector.config.formats.deepspeed import PREFIX, Batch
from projector.config.formats.read_job import ReadJob, Stated
from projector.config.formats.shell.script import Script
from projector.config.model_file import read_json
from projector.config.resources import settings_of
from projector.errors import ConfigError, shown
from projector.files import is_file

# What arguments are called and mean.

TOOL: Final = "the trainer"

_TABLE: Final = settings_of("trainer")

MOVED: Final = {one: name for name, spelt in _TABLE["spellings"].items() for one in spelt.split()}

SEQUENCE: Final = "max_seq_length"

OPTIMIZERS: Final = {
    name: row["states"] for row in _TABLE["optimizers"] for name in row["names"].split()
}
"""``optim`` -> ``training.optimizer``."""

HARMLESS: Final = frozenset(_TABLE["harmless"].split())
"""Arguments, and beginnings of them with a dash below, that cannot change a projection."""

_BATCH: Final = ("per_device_train_batch_size", "gradient_accumulation_steps")

_DEEPSPEED: Final = ("deepspeed", "deepspeed_config")

_MARKS: Final = ("--model_name_or_path", "--per_device_train_batch_size")

_LAUNCHER: Final[Mapping[str, str]] = _TABLE["launcher"]


def is_trainer_script(text: str) -> bool:
    """Whether a script launches a trainer of Hugging Face rather than of Megatron-LM."""
    return any(mark in text for mark in _MARKS) and "--num-layers" not in text


def read_trainer_script(text: str, *, path: Path) -> ReadJob:
    """Read the command of a script that launches a trainer."""
    commands = [words for words in Script(text, path=path).commands if {*words} & {*_MARKS}]
    if not commands:
        commands = [[word for words in Script(text, path=path).commands for word in words]]
    words = commands[-1]
    programs = [
        place
        for place, word in enumerate(words)
        if word.endswith((".py", "llamafactory-cli")) or word == "-m"
    ]
    place = programs[0] if programs else -1
    read = read_trainer(_arguments(words[place + 1 :]), path=path)
    for name, value in _arguments(words[: max(0, place)]).items():
        field = _LAUNCHER.get(name.replace("-", "_"))
        if field is not None and str(value).isdecimal():
            read.data.setdefault("cluster", {})[field] = int(value)
    return read._replace(least_nodes="nodes" not in read.data.get("cluster", {}))


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a command: a bare switch is true, several words are a list."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else True
        elif name:
            before = found[name]
            found[name] = (
                word if before is True else [*before, word] if isinstance(before, list)
                else [before, word]
            )  # fmt: skip
    return found


def read_accelerate(data: Mapping[str, Any], *, path: Path) -> ReadJob:
    """Read a file of ``accelerate config``, which names devices and how they are used."""
    given = data.get("deepspeed_config") or {}
    inner = (
        {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}
    )
    file = inner.pop("deepspeed_config_file", None)
    kind = str(data.get("mixed_precision") or "no")
    trainer: dict[str, Any] = {"per_device_train_batch_size": None}
    if kind in {"bf16", "fp16"}:
        trainer[kind] = True
    if file is not None:
        trainer["deepspeed"] = file
    elif str(data.get("distributed_type", "")).upper() == "DEEPSPEED":
        trainer["deepspeed"] = {
            "zero_optimization": {
                "stage": inner.get("zero_stage", 2),
                "offload_optimizer": {"device": inner.get("offload_optimizer_device") or "none"},
                "offload_param": {"device": inner.get("offload_param_device") or "none"},
            },
            "gradient_accumulation_steps": inner.get("gradient_accumulation_steps", 1),
            kind: {"enabled": True},
        }
    elif data.get("fsdp_config"):
        trainer["fsdp"] = "full_shard"
        trainer["fsdp_config"] = data["fsdp_config"]
    read = read_trainer(trainer, path=path, default_batch=0)
    machines, processes = data.get("num_machines"), data.get("num_processes")
    if isinstance(machines, int) and isinstance(processes, int) and machines > 0:
        cluster = read.data.setdefault("cluster", {})
        cluster |= {"nodes": machines, "gpus_per_node": max(1, processes // machines)}
    return read


def read_trainer(data: Mapping[str, Any], *, path: Path, default_batch: int = 8) -> ReadJob:
    """Read the arguments of a trainer, by name, without a device.

    A DeepSpeed file and a model are looked for beside ``path``. ``default_batch`` is the sequences
    of a micro-batch where nothing is stated, 0 to ask for them.
    """
    config = data.get("deepspeed", data.get("deepspeed_config"))
    rest = {name: value for name, value in data.items() if name not in _DEEPSPEED}
    has_deepspeed = isinstance(config, Mapping | str) and bool(config)
    if has_deepspeed:
        inner = config if isinstance(config, Mapping) else read_json(_beside(str(config), path))
        rest["deepspeed"] = deepspeed.without_auto(inner)
    stated = Stated(rest, TOOL, MOVED)
    stated.put("name", path.stem, origin="the file's name")
    stated.put("training.framework", "huggingface", origin="assumed: transformers")
    _refuse(stated)
    _model(stated, path)
    if stated.has(SEQUENCE):
        stated.put("training.seq_length", stated.integer(SEQUENCE, 1), SEQUENCE)
    else:
        stated.ask_for("training.seq_length", "training.seq_length=4096")
    batch = Batch(stated, trainer=_BATCH, micro=default_batch)
    kind = "bf16" if _on(stated, "bf16") else "fp16" if _on(stated, "fp16") else ""
    if "base_model" in data and not any(stated.has(each) for each in ("bf16", "fp16", "float32")):
        kind = "bf16"  # axolotl's default is auto
    if has_deepspeed:
        deepspeed.zero(stated)
        _optimizer(stated, flat=True)
        deepspeed.precision(stated, kind)
        deepspeed.degrees(stated)
        deepspeed.unmodelled(stated)
    else:
        _sharding(stated)
        _optimizer(stated, flat=False)
        _precision(stated, kind)
    stated.take(_TABLE["fields"])
    if stated.has("sp_size"):
        stated.put("parallelism.cp_comm_type", "a2a", "sp_size")
    _recompute(stated)
    _kernels(stated)
    _adapter(stated)
    stated.unmodelled(_TABLE)
    return stated.read_job(
        HARMLESS | deepspeed.HARMLESS, derive=batch.derive, least_nodes=batch.data_parallel == 0
    )


def _beside(file: str, path: Path) -> Path:
    """Return where a file lies that another one names: beside it, or in a folder above it."""
    for folder in (path.parent, *path.absolute().parents):
        for candidate in (folder / file, folder / Path(file).name):
            if is_file(candidate):
                return candidate
    return path.parent / file


def _on(stated: Stated, name: str) -> bool:
    """Whether a switch is on; ``auto`` means that the device has it."""
    return stated.has(name) and (stated.values[name] == "auto" or stated.on(name))


def _refuse(stated: Stated) -> None:
    for name, why in _TABLE["refused"].items():
        if stated.has(name) and stated.values[name] not in (False, 0, None, "false") and why:
            raise stated.refusal(name, why, "off")
    if stated.word("stage") not in _TABLE["stages"] or stated.has("rl"):
        name = "rl" if stated.has("rl") else "stage"
        raise stated.refusal(
            name, "only training of one model on text is projected", _TABLE["stages"][:2]
        )
    name = "finetuning_type"
    if stated.word(name, "full") not in {"full", "lora"}:
        raise stated.refusal(name, "not modelled", ["full", "lora"])


def _model(stated: Stated, path: Path) -> None:
    """Set the architecture by the name of a shipped one, or by the folder of a checkpoint."""
    name = "model_name_or_path"
    given = stated.word(name)
    found = shipped_model(given)
    config = path.parent / given / "config.json"
    if given and is_file(config):
        found = str(config)
    if found is not None:
        stated.put("model", found, name)
        return
    what = (
        f"{stated.spell(name)} {shown(given)} is not a shipped model"
        if given
        else "no model is named"
    )
    msg = f"{what}; give model=NAME (projector models lists them) or model=config.json"
    stated.missing["model"] = ConfigError(msg, key=stated.spell(name), value=given or None)


_VARIANT: Final = re.compile(r"[-_](instruct|chat|base|hf|it|bf16|\d{4})$", re.IGNORECASE)


def shipped_model(name: str) -> str | None:
    """Return the shipped architecture of a model on the hub, None where there is none."""
    known = resources.index("models")
    short = name.rstrip("/").rpartition("/")[2]
    while short:
        if resources.normalise(short) in known:
            return known[resources.normalise(short)].stem
        cut = _VARIANT.sub("", short)
        if cut == short:
            return None
        short = cut
    return None


def _sharding(stated: Stated) -> None:
    names = stated.words("fsdp")
    strategy, version = "fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_version"
    if not stated.has(version):
        version = "fsdp_version"
    if not names and not stated.has(strategy) and not stated.has(version):
        stated.put("parallelism.zero_stage", 0, "fsdp")
        return
    stated.put("parallelism.fsdp", min(2, stated.integer(version, 1)), "fsdp", version)
    gathered = "shard_grad_op" in names or stated.word(strategy).upper() in {"SHARD_GRAD_OP", "2"}
    name = "fsdp_config.fsdp_reshard_after_forward"
    if stated.has(name) and str(stated.values[name]).upper() not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        gathered = not stated.on(name)
    stated.put("parallelism.fsdp_reshard_after_forward", not gathered, "fsdp", strategy, name)
    if "hybrid_shard" in names or "HYBRID" in stated.word(strategy).upper():
        stated.warn(
            "hybrid sharding: give parallelism.sharding_group_size=N, the devices of a copy; all "
            "devices are projected to share one"
        )
    if "offload" in names or stated.on("fsdp_config.fsdp_offload_params"):
        stated.put("training.optimizer.offload_fraction", 1.0, "fsdp")
        stated.warn("fsdp offload: states are projected in host memory, weights on the device")


def _precision(stated: Stated, kind: str) -> None:
    """Set the types of PyTorch's autocast: weights, gradients and states stay in FP32."""
    whole = stated.word("dtype").lower().removeprefix("torch.")
    pure = stated.on("pure_bf16") or whole in {"bfloat16", "bf16"}
    stated.put("training.gradient_accumulation_fusion", False)
    if pure:
        stated.put("training.precision", "bf16", "dtype", "pure_bf16")
        stated.put("training.gradient_dtype", "bf16", "dtype", "pure_bf16")
        stated.put("training.optimizer.master_weights", "none", "dtype", "pure_bf16")
        moments = stated.job["training"]["optimizer"].setdefault("moment_dtype", "bf16")
        stated.put("training.optimizer.moment_dtype", moments, "dtype", "pure_bf16")
        return
    stated.put("training.precision", kind or "fp32", "bf16", "fp16")
    stated.put("training.gradient_dtype", "fp32", "bf16", "fp16")
    if kind:
        stated.put("training.optimizer.master_weights", "shared", kind)


def _optimizer(stated: Stated, *, flat: bool) -> None:
    """Set the optimizer; DeepSpeed's own, if its file names one, comes after."""
    name = "optim"
    rule = stated.word(name, "adamw_torch").lower()
    if rule not in OPTIMIZERS:
        stated.warn(f"{stated.spell(name)} {shown(rule)} is projected as adam")
    for field, value in OPTIMIZERS.get(rule, {"name": "adam"}).items():
        if not (flat and stated.has(f"{PREFIX}optimizer.type") and field != "name"):
            stated.put(f"training.optimizer.{field}", value, name)


def _recompute(stated: Stated) -> None:
    """Set what the backward computes again: LLaMA-Factory does it unless told otherwise."""
    name, off = "gradient_checkpointing", "disable_gradient_checkpointing"
    on = stated.on(name, default=_factory(stated) and not stated.on(off))
    if stated.has(name) and stated.values[name] in ("unsloth", "offload"):
        on = True
    stated.put("training.recompute", "full" if on else "none", name, off)
    names = ("gradient_checkpointing_kwargs.use_reentrant", "use_reentrant_gc")
    if any(stated.has(each) and not stated.on(each) for each in names):
        stated.put("training.recompute_early_stop", True, *names)


def _kernels(stated: Stated) -> None:
    for name in ("attn_implementation", "flash_attn"):
        if stated.has(name) and str(stated.values[name]).lower() in _TABLE["unfused"].split():
            stated.put("training.flash_attention", False, name)
    if stated.on("use_liger_kernel"):
        stated.put("training.elementwise", "fused", "use_liger_kernel")


def _factory(stated: Stated) -> bool:
    """Whether the arguments are those of LLaMA-Factory, which alone has these."""
    return stated.has("finetuning_type") or stated.has("stage")


def _adapter(stated: Stated) -> None:
    """Set adapters, where the arguments ask for them; LLaMA-Factory trains them by default."""
    tuning = stated.word("finetuning_type", "lora" if _factory(stated) else "full")
    kind = stated.word("adapter") or ("lora" if tuning == "lora" else "")
    switches = [name for name in ("use_peft", "use_lora") if stated.has(name)]
    asked = any(stated.on(name) for name in switches)
    # A rank alone asks for adapters where nothing says otherwise.
    implied = stated.has("lora_r") and not switches and stated.word("finetuning_type") != "full"
    if not (kind or asked or implied):
        return
    adapter: dict[str, Any] = {"kind": kind or "lora", "expert_adapters": "each"}
    bits = "quantization_bit"
    if stated.has(bits):
        if stated.integer(bits, 4) != 4:
            raise stated.refusal(bits, "only bases of 4 bits are modelled", 4)
        adapter["kind"] = "qlora"
    if stated.on("quantization_4bit") or stated.on("q_lora"):
        adapter["kind"] = "qlora"
    for name, field in _TABLE["adapters"].items():
        if stated.has(name):
            adapter[field] = (
                stated.integer(name, 8) if field == "rank" else stated.number(name, 1.0)
            )
    adapter.setdefault("rank", 8)
    targets = stated.words("lora_target_modules")
    if targets in ([], ["all"]) or stated.on("lora_target_linear"):
        targets = ["all-linear"]
    adapter["targets"] = targets
    stated.put("training.adapter", adapter, "lora_r", "finetuning_type", "adapter", "use_peft")
