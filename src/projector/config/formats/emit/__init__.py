"""Writing a job as the configuration of a training framework."""

from typing import Final

FORMATS: Final = ("megatron", "primus", "torchtitan", "deepspeed")
"""Frameworks whose configuration can be written; each is a module of this package."""

TITLES: Final = dict(zip(FORMATS, ("Megatron", "Primus", "torchtitan", "DeepSpeed"), strict=True))
"""How the frameworks are called in text."""
