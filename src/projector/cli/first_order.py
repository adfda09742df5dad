"""``--fidelity first-order`` of the commands that project a job."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from projector.cli.job_options import ALL_SCHEDULES, JobRequest
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    print_json,
    print_report,
    print_warnings,
)
from projector.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from projector.first_order.results import FirstOrderMemory, FirstOrderPerformance


def is_asked(fidelity: str) -> bool:
    """Return whether a fidelity is the first-order one."""
    from projector.config.first_order import by_closed_forms

    return by_closed_forms(fidelity)


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse options that show what closed forms do not have."""
    for name, value in options.items():
        if value is not None:
            msg = f"{name}: closed forms have no operations to show; leave out --fidelity"
            raise ConfigError(msg, key=name, value=value, allowed="--fidelity tiles")


def refuse_measuring(options: Mapping[str, Any]) -> None:
    """Refuse options that ask for measurements, of which closed forms take none."""
    for name, value in options.items():
        msg = f"{name}: closed forms take nothing that is measured; leave out --fidelity"
        raise ConfigError(msg, key=name, value=value, allowed="--fidelity tiles")


def memory(request: JobRequest, *, as_json: bool, quiet: bool) -> int:
    """Project and print memory."""
    result = _project(request).memory
    if as_json:
        print_json(result.to_dict())
        return _code(result)
    from projector.report.terminal.first_order import memory_report

    return _print(memory_report(result), result, quiet=quiet)


def performance(request: JobRequest, *, as_json: bool, quiet: bool) -> int:
    """Project and print a step."""
    result = _project(request)
    if as_json:
        print_json(result.to_dict())
        return _code(result.memory)
    from projector.report.terminal.first_order import performance_report

    return _print(performance_report(result), result.memory, quiet=quiet)


def both(request: JobRequest, *, as_json: bool, quiet: bool) -> int:
    """Project and print memory and a step."""
    result = _project(request)
    if as_json:
        print_json(result.both_to_dict())
        return _code(result.memory)
    from projector.report.terminal.first_order import both_report

    return _print(both_report(result), result.memory, quiet=quiet)


def serve(config: str | None, changes: Mapping[str, Any], *, as_json: bool, quiet: bool) -> int:
    """Project and print a deployment."""
    from projector.first_order.serving import project_deployment

    result, warnings = project_deployment(config, changes)
    if as_json:
        print_json({**result.to_dict(), "warnings": warnings})
    else:
        from projector.report.terminal.first_order_plan import serve_report

        print_report(serve_report(result))
        print_warnings(warnings, quiet=quiet)
    return SUCCESS if result.fits else DOES_NOT_FIT


def _project(request: JobRequest) -> "FirstOrderPerformance":
    if request.schedule == ALL_SCHEDULES:
        msg = "schedule: all schedules are compared by replay; leave out --fidelity"
        raise ConfigError(msg, key="schedule", value=ALL_SCHEDULES, allowed="--fidelity tiles")
    if request.gpu_clock_mhz is not None:
        msg = "gpu_clock_mhz: closed forms have no clock; they take the peaks of datasheets"
        raise ConfigError(msg, key="gpu_clock_mhz", value=request.gpu_clock_mhz)
    from projector.first_order.results import project_performance

    return project_performance([request.load_first_order()])[0]


def _print(report: "Iterable[RenderableType]", result: "FirstOrderMemory", *, quiet: bool) -> int:
    print_report(report)
    print_warnings(result.warnings, quiet=quiet)
    return _code(result)


def _code(result: "FirstOrderMemory") -> int:
    return SUCCESS if result.fits else DOES_NOT_FIT
