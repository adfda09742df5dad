"""Give one emitted file to the parser of the program that it is for, where that is installed.

    python validation/upstream_parsers.py {megatron,torchtitan,deepspeed,primus} FILE
        [--capability N] [--ranks N]

The last line begins with ``accepted`` (exit code 0), ``refused`` (1) or ``missing`` (2, the program
cannot be imported). `check_emitted.py` runs this for each file: parsers keep what they were told.
No GPU is needed: Megatron-LM is shown one of a compute capability where there is none, and
kernels of Transformer Engine where that is not installed.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

INSTALL = {
    "megatron": "clone NVIDIA/Megatron-LM, put its folder on PYTHONPATH, and install torch",
    "torchtitan": "clone pytorch/torchtitan at 7e4ab8599 and run pip install -e . there",
    "deepspeed": "pip install deepspeed",
    "primus": "clone AMD-AGI/Primus with its submodules, put its folder on PYTHONPATH",
}
"""What makes a program importable."""

NEEDED = {
    "megatron": ("torch", "megatron.training"),
    "torchtitan": ("torch", "torchtitan"),
    "deepspeed": ("torch", "deepspeed"),
    "primus": ("yaml", "primus.core"),
}
"""Program -> modules that must be there."""


def missing(program: str) -> list[str]:
    """Return the modules of a program that cannot be found."""
    found = []
    for name in NEEDED[program]:
        try:
            there = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            found.append(name)
    return found


def _launched(script: Path) -> tuple[list[str], dict[str, str]]:
    """Run a script with a torchrun that notes what it is given; return words and environment."""
    with tempfile.TemporaryDirectory() as folder:
        noted, stand_in = Path(folder, "noted"), Path(folder, "torchrun")
        stand_in.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"json.dump([sys.argv[1:], dict(os.environ)], open({str(noted)!r}, 'w'))\n"
        )
        stand_in.chmod(0o755)
        clean = {k: v for k, v in os.environ.items() if k != "CUDA_DEVICE_MAX_CONNECTIONS"}
        path = f"{folder}{os.pathsep}{clean.get('PATH', '')}"
        subprocess.run(  # noqa: S603  # the file that is checked
            ["bash", str(script)],  # noqa: S607
            check=True,
            env=clean | {"PATH": path},
        )
        words, environment = json.loads(noted.read_text())
    return words, environment


def _show_megatron_a_gpu(capability: int) -> None:
    """Stand in for the GPU and for kernels that parsing only asks the presence of."""
    import torch

    if not torch.cuda.is_available():
        device = SimpleNamespace(major=capability, minor=0, name="none", total_memory=80 << 30)
        torch.cuda.get_device_properties = lambda *_: device  # type: ignore[assignment]
        torch.cuda.get_device_capability = lambda *_: (capability, 0)
        torch.cuda.device_count = lambda: 8
    if importlib.util.find_spec("transformer_engine") is not None:
        return
    from packaging.version import Version

    utils: Any = importlib.import_module("megatron.core.utils")
    utils.get_te_version = lambda: Version("2.9.0")
    utils.is_te_min_version = lambda *_, **__: True
    for name in (
        "megatron.training.arguments",
        "megatron.core.extensions.transformer_engine",
        "megatron.core.transformer.moe.moe_utils",
        "megatron.core.models.common.embeddings.rope_utils",
    ):
        module = importlib.import_module(name)
        for member, value in vars(module).copy().items():
            if value is None and member.startswith(("fused_", "te_")):
                setattr(module, member, lambda *_: None)
            elif member == "is_te_min_version":
                setattr(module, member, utils.is_te_min_version)


def megatron(file: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Parse, check and make the configuration of the model, as ``pretrain_gpt.py`` begins."""
    words, environment = _launched(file)
    program = next(at for at, word in enumerate(words) if word.endswith(".py"))
    launch = dict(pairwise(words[:program]))
    ranks = int(launch["--nnodes"]) * int(launch["--nproc-per-node"])
    connections = environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    os.environ |= {"WORLD_SIZE": str(ranks), "RANK": "0", "LOCAL_RANK": "0"}
    if connections is not None:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    _show_megatron_a_gpu(given.capability)
    arguments: Any = importlib.import_module("megatron.training.arguments")
    sys.argv = words[program:]
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    return {
        "dp": args.data_parallel_size,
        "micro": args.micro_batch_size,
        "train_batch": args.global_batch_size,
        "pp": args.pipeline_model_parallel_size,
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "query_groups": config.num_query_groups,
        "experts": config.num_moe_experts,
        "topk": config.moe_router_topk if config.num_moe_experts else None,
        "groups": config.moe_router_num_groups,
        "router": config.moe_router_score_function if config.num_moe_experts else None,
        "scaling": config.moe_router_topk_scaling_factor,
        "rotary_base": args.rotary_base,
        "norm_epsilon": config.layernorm_epsilon,
        "one_plus": config.layernorm_zero_centered_gamma,
        "unrotated": sum(config.no_rope_freq or []),
    }


def torchtitan(file: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Read the configuration, and look for the flavour in the model's own table."""
    del given
    manager: Any = importlib.import_module("torchtitan.config.manager")
    config = manager.ConfigManager().parse_args(["--job.config_file", str(file)])
    specs: Any = importlib.import_module("torchtitan.protocols.train_spec")
    flavours = specs.get_train_spec(config.model.name).model_args
    model = flavours[config.model.flavor]
    return {
        "layers": getattr(model, "n_layers", None),
        "pp": config.parallelism.pipeline_parallel_degree,
        "rotary_base": getattr(model, "rope_theta", None),
    }


def deepspeed(file: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Read the configuration as an engine of so many data-parallel ranks does."""
    os.environ |= {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    runtime: Any = importlib.import_module("deepspeed.runtime.config")
    runtime.dist.get_rank = lambda *_, **__: 0
    mesh = SimpleNamespace(get_data_parallel_world_size=lambda: given.ranks)
    config = runtime.DeepSpeedConfig(str(file), mpu=mesh)
    return {
        "stage": config.zero_config.stage,
        "train_batch": config.train_batch_size,
        "micro": config.train_micro_batch_size_per_gpu,
    }


def primus(file: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Read the experiment with its presets, and look for keys that nothing reads."""
    del given
    check: Any = importlib.import_module("primus.core.config.schema_check")
    root, kind = Path(check.__file__).resolve().parents[3], "megatron"
    scopes = check.build_model_scopes(root, kind)
    presets = check.build_model_preset_index(root, kind, scopes[0].key) if scopes else {}
    unknown, misplaced = check.scan_file(
        file,
        kind,
        check.build_schema(root, kind),
        check.build_allowlist(root, kind),
        file.name,
        scopes,
        presets,
    )
    dead = sorted({each.key for each in (*unknown, *misplaced)})
    if dead:
        raise ValueError(f"keys that nothing reads: {', '.join(dead)}")
    parser: Any = importlib.import_module("primus.core.launcher.parser")
    trainer = next(iter(check.parse_yaml(str(file))["modules"]))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        # The parser makes folders of the experiment where it stands.
        whole = parser.PrimusParser().parse(SimpleNamespace(config=str(file), exp=str(file)))
        config = whole.get_module_config(trainer)
    return {
        "layers": config.num_layers,
        "norm_epsilon": vars(config).get("layernorm_epsilon"),
        "one_plus": vars(config).get("layernorm_zero_centered_gamma"),
        "rotary_base": config.rotary_base,
    }


PARSERS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "megatron": megatron,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "primus": primus,
}


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


def main() -> int:
    """Print what the program says of the file."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("program", choices=PARSERS)
    reader.add_argument("file", type=Path)
    reader.add_argument("--capability", type=int, default=9)
    reader.add_argument("--ranks", type=int, default=1)
    given = reader.parse_args()
    absent = missing(given.program)
    if absent:
        print(f"missing {', '.join(absent)}: {INSTALL[given.program]}")
        return 2
    try:
        with _quiet() as said:
            values = PARSERS[given.program](given.file.resolve(), given)
    except ImportError as error:
        print(f"missing {error.name}: {INSTALL[given.program]}, and what it imports")
        return 2
    except (Exception, SystemExit) as error:  # whatever it raises is its refusal
        last = said.getvalue().strip().splitlines()[-1:] if isinstance(error, SystemExit) else []
        print(f"refused {given.program}: {type(error).__name__}: {(last or [error])[0]}")
        return 1
    print(f"accepted {given.program}: {json.dumps(values)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
