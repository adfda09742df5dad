"""``projector models``."""

from typing import Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import plain_envelope, print_json, print_report


@click.command("models")
@click.argument("name", required=False, metavar="[NAME]")
@output_options
def command(name: str | None, as_json: bool, quiet: bool) -> None:
    """List the shipped models, or show one: by name, or from a YAML or Hugging Face file."""
    del quiet
    from projector.config import resources
    from projector.config.model_file import load_model

    names = resources.shipped("models") if name is None else [name]
    models = {model_name: load_model(model_name) for model_name in names}
    if as_json:
        print_json({**plain_envelope(), **_object(models, one=name is not None)})
        return
    from projector.report.terminal.inventory import model_list, model_report

    print_report(model_list(models) if name is None else model_report(models[name]))


def _object(models: dict[str, Any], *, one: bool) -> dict[str, Any]:
    dumped = {name: model.model_dump(mode="json") for name, model in models.items()}
    return {"model": next(iter(dumped.values()))} if one else {"models": dumped}
