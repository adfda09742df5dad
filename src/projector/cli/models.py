"""``projector models``."""

from typing import TYPE_CHECKING, Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import plain_envelope, print_json, print_report, print_warnings

if TYPE_CHECKING:
    from projector.operations.counts import ModelCounts


@click.command("models")
@click.argument("name", required=False, metavar="[NAME]")
@output_options
def command(name: str | None, as_json: bool, quiet: bool) -> None:
    """List the shipped models, or show one: by name, or from a YAML or Hugging Face file."""
    from projector.config import resources
    from projector.config.model_file import load_model
    from projector.operations.counts import count_architecture

    names = resources.shipped("models") if name is None else [name]
    models = {model_name: load_model(model_name) for model_name in names}
    counts = count_architecture(models[name]) if name is not None else None
    warnings = dict.fromkeys(note for model in models.values() for note in model.notes)
    if as_json:
        notes = {"warnings": list(warnings)}
        print_json({**plain_envelope(), **notes, **_object(models, counts)})
        return
    from projector.report.terminal.inventory import model_list, model_report

    print_report(
        model_list(models) if name is None or counts is None else model_report(models[name], counts)
    )
    print_warnings(warnings, quiet=quiet)


def _object(models: dict[str, Any], counts: "ModelCounts | None") -> dict[str, Any]:
    dumped = {name: model.model_dump(mode="json") for name, model in models.items()}
    if counts is None:
        return {"models": dumped}
    return {
        "model": next(iter(dumped.values())),
        "parameters_total": counts.parameters_total,
        "parameters_active": counts.parameters_active,
    }
