"""Commands about what is shipped: ``models``, ``hardware``, and ``init``, which joins the two."""

from pathlib import Path
from typing import Any

from projector.cli.options import argument, command, flag, option
from projector.cli.output import Printer, interpret_at_first, print_plain, write
from projector.envelope import told
from projector.errors import ConfigError


@command()
def models(*, name: str | None = argument("[NAME]"), printer: Printer) -> None:
    """List the shipped models, or show one: by name, or from a YAML or Hugging Face file."""
    from projector.config import resources
    from projector.config.model_file import load_model
    from projector.operations.counts import count_architecture
    from projector.report.terminal.inventory import model_list, model_report

    if name is None:
        found = {each: load_model(each) for each in resources.shipped("models")}
        dumped = {each: model.model_dump(mode="json") for each, model in found.items()}
        printer.show({"models": dumped}, lambda _: model_list(found))
        return
    model = load_model(name)
    counts = count_architecture(model)
    shown = {"warnings": list(model.notes), "model": model.model_dump(mode="json")}
    shown |= told(counts, "parameters_total parameters_active")
    printer.show(shown, lambda _: model_report(model, counts), model.notes)


@command()
def hardware(
    *,
    name: str | None = argument("[NAME]"),
    full: bool = flag("Show every number of one with its source."),
    printer: Printer,
) -> None:
    """List the shipped devices, or show one."""
    from projector.config import resources
    from projector.config.device_file import (
        FIRST_ORDER_DEVICES,
        is_first_order,
        load_device,
        origins_of,
    )
    from projector.config.first_order import first_order_device
    from projector.report.terminal import inventory

    if name is None:
        devices = {each: load_device(each, key="device") for each in resources.shipped("hardware")}
        others = resources.shipped(FIRST_ORDER_DEVICES)
        simple = {each: first_order_device(each) for each in others}
        shown: dict[str, Any] = {
            "devices": {each: one.model_dump(mode="json") for each, one in devices.items()},
            "first_order_devices": {
                each: one.model_dump(mode="json") for each, one in simple.items()
            },
        }
        printer.show(
            shown, lambda _: [*inventory.device_list(devices), *inventory.first_order_list(simple)]
        )
    elif is_first_order(name, "device"):
        plain = first_order_device(name, key="device")
        shown = {"device": plain.model_dump(mode="json")}
        printer.show(shown, lambda _: inventory.first_order_report(plain))
    else:
        device = load_device(name, key="device")
        origins = dict(origins_of(device).fields)
        shown = {"device": device.model_dump(mode="json"), "origins": origins}
        report = inventory.device_report if full else inventory.device_summary
        printer.show(shown, lambda _: report(device))


@command()
def schema(*, name: str | None = argument("[NAME]"), printer: Printer) -> None:
    """Print the JSON schema of a file (job, space, device) or of a --json output; list them.

    Editors that have the schema complete fields and explain them.
    """
    from projector.config import resources

    files = {path.stem: path for path in sorted(resources.data_dir("schemas").glob("*.json"))}
    if name is None:
        if printer.as_json:
            print_plain({"schemas": list(files)})
        else:
            write("\n".join(files) + "\n")
    elif name in files:
        write(files[name].read_text(encoding="utf-8"))
    else:
        msg = f"there is no schema of {name!r}; known: {', '.join(files)}"
        raise ConfigError(msg, key="name", value=name, allowed=list(files))


@command()
def init(
    *,
    output: str | None = option("FILE", "File to write; standard output when left out."),
    model: str = option("NAME", None, shown="llama3.1_8b"),
    device: str = option("NAME", None, shown="mi300x"),
    nodes: int | None = option("N", "Hosts; left out, the least on which a layout fits."),
    minimal: bool = flag("Write only what is stated, without defaults and explanations."),
    force: bool = flag("Overwrite an existing file."),
    printer: Printer,
) -> None:
    """Write a commented job file: every field explained, with its default.

    The file can be projected as it is. Its job fits: where the default layout does not, a small
    search chooses one that does. If none does on --nodes, a warning says how many would do.
    """
    interpret_at_first(quiet=printer.quiet)
    from projector.report.job_file import fitting_job_file

    text, note = fitting_job_file(model, device, nodes, minimal=minimal)
    notes = [note] if note else []
    if output is not None:
        _write(Path(output), text, force=force)
        printer.say(f"wrote {output}; next: projector performance --config {output}")
    if printer.as_json:
        print_plain({"warnings": notes, "output": output, "text": text})
    elif output is None:
        write(text)
    printer.warn(notes)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a file that does not exist yet, or any with ``force``."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        msg = f"output: {path} exists; choose another file, or overwrite it with --force"
        raise ConfigError(msg, key="output", value=str(path), allowed="a new file") from None
    except OSError as error:
        msg = f"output: {path} cannot be written: {error.strerror or error}"
        raise ConfigError(msg, key="output", value=str(path), allowed="a writable file") from None
