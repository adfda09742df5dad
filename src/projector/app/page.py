"""The page itself: its elements, what happens when one of them is moved, and its server."""

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate
from werkzeug.serving import BaseWSGIServer, make_server

from projector.app.controls import Control, Overrides, Standing, Tab, link_of, state_of, tabs_of
from projector.app.views import NOTHING, Answer, serving_answer, step_answer
from projector.config.formats.emit import TITLES
from projector.errors import ProjectorError
from projector.projection.api import emit_job, project_jobs
from projector.report.job_file import job_mapping
from projector.report.search import counts_of, nothing_ranked
from projector.report.terminal.grid import assignments
from projector.searches.configurations import search
from projector.serving.api import project_case
from projector.serving.launch import ENGINES, launches

HOST = "127.0.0.1"

POLICY = "default-src 'self' 'unsafe-inline' data: blob:"
"""A page loads nothing from elsewhere, whatever its libraries ask for."""

FIGURES = {"train": 3, "serve": 4}

FILES = {"train": {"yaml": "YAML", **TITLES}, "serve": {engine: engine for engine in ENGINES}}
"""Tab -> what can be downloaded."""

MOST_SECONDS = 20.0
"""Of a search for the best layout."""


class Page:
    """One job and one deployment, and the application that shows them."""

    def __init__(self, source: str | Path | Mapping[str, Any] | None = None) -> None:
        """Read the job and build the page."""
        self.tabs = tabs_of(source)
        self._lock = threading.Lock()  # projections share caches, and the server has threads
        assets = str(Path(__file__).with_name("assets"))
        self.app = Dash(__name__, title="projector", update_title=None, assets_folder=assets)
        self.app.layout = self._layout()
        self._connect()
        flask: Any = self.app.server
        # A site elsewhere may send a browser here, under a name of its own.
        flask.config["TRUSTED_HOSTS"] = [HOST, "localhost"]
        flask.after_request(_closed)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)

    def serve(self, port: int) -> BaseWSGIServer:
        """Return a server of the page on this machine alone."""
        with socket.create_server((HOST, port)) as listener:
            return make_server(HOST, port, self.app.server, threaded=True, fd=listener.fileno())

    # What is answered.

    def answer(self, name: str, overrides: Overrides, pinned: Overrides | None = None) -> Answer:
        """Project the state of a tab, and what is pinned beside it."""
        read = self.tabs[name].read
        with self._lock:
            if name == "serve":
                return serving_answer(project_case(read(overrides)))
            both = [overrides] if pinned is None else [overrides, pinned]
            return step_answer(*project_jobs([read(each) for each in both]))

    def best(self, overrides: Overrides) -> tuple[str, Overrides]:
        """Search the best layout: what was found, and the overrides of the fastest."""
        with self._lock:
            job = self.tabs["train"].read(overrides)
            result = search(job, top=1, most_seconds=MOST_SECONDS)
        told = f"{result.evaluated:,} legal layouts: {counts_of(result)}."
        if not result.configurations:
            return f"{told} {nothing_ranked(result)}", overrides
        found = result.overrides(result.configurations[0])
        new = {key: value for key, value in found.items() if attrgetter(key)(job) != value}
        return f"{told} The fastest is shown.", overrides | new

    def file(self, name: str, wanted: str, overrides: Overrides) -> tuple[str, str]:
        """Return name and text of a download, one of `FILES`."""
        read = self.tabs[name].read(overrides)
        if wanted == "yaml":
            return "job.yaml", yaml.safe_dump(job_mapping(read), sort_keys=False)
        if name == "train":
            made = emit_job(read, wanted)
            return f"job_{wanted}{made.suffix}", made.text
        parts = [part for each in launches(wanted, read.deployment, read.traffic)
                 for part in each.files.items()]  # fmt: skip
        texts = [text if file.endswith(".sh") else f"# {file}\n{text}" for file, text in parts]
        return f"serve_{wanted}.sh", "\n".join(texts)

    # How it looks.

    def _layout(self) -> Any:
        stores = [dcc.Store(id=name) for name in ("pinned", "linked")]
        tabs = dcc.RadioItems({name: name.capitalize() for name in self.tabs}, "train", id="tab")
        link = html.A("link to this state", id="link", href="?")
        return html.Main([
            dcc.Location(id="url", refresh=False), dcc.Download(id="download"), *stores,
            html.Header([html.H1("projector"), tabs, link]),
            *(self._section(tab, tab.settle({})) for tab in self.tabs.values()),
        ])  # fmt: skip

    def _section(self, tab: Tab, standing: Standing) -> Any:
        name = f"{tab.name}-{{}}".format
        search_and_pin = {"best": "Best layout", "pin": "Pin", "unpin": "Unpin"}
        buttons = (search_and_pin if tab.name == "train" else {}) | {name("reset"): "Reset"}
        groups = [
            html.Details([html.Summary(title), *(_control(tab, each, standing) for each in group)],
                         open=True)
            for title, group in tab.groups.items()
        ]  # fmt: skip
        more = dcc.Input(id=name("more"), debounce=True, placeholder="model.num_layers=40")
        figures = [dcc.Graph(id=name(f"figure-{each}"), className="figure", responsive=True,
                             config={"displayModeBar": False})
                   for each in range(FIGURES[tab.name])]  # fmt: skip
        files = [html.Button(title, id={"get": each, "tab": tab.name})
                 for each, title in FILES[tab.name].items()]  # fmt: skip
        actions = [html.Button(title, id=each) for each, title in buttons.items()]
        return html.Section([
            dcc.Store(id=name("standing")), dcc.Store(id=name("overrides")),
            html.Div([html.Div(id=name("tiles"), className="tiles"), _alert(name("error"))],
                     className="verdict"),
            html.Div([html.Div(actions, className="actions"),
                      html.P(id=name("found"), role="status"), *groups,
                      html.Label(["any other field, as on the command line", more])]),
            html.Div([
                html.Div(figures, className="figures"), html.Ul(id=name("notes")),
                html.P(["The same on the command line: ", html.Code(id=name("command"))]),
                html.P(["Download: ", *files], className="actions"), _alert(name("unwritten")),
            ], className="answer"),
        ], id=tab.name)  # fmt: skip

    # What happens.

    def _connect(self) -> None:
        call, url, shown = self.app.callback, Input("url", "search"), Input("tab", "value")
        pinned = Input("pinned", "data")
        for name, tab in self.tabs.items():
            states = [State(f"{name}-overrides", "data"), State(f"{name}-standing", "data"),
                      State(f"{name}-more", "value")]  # fmt: skip
            values = [f"{name}-{_id(each)}" for each in tab.controls]
            moves = [(value, prop) for value, each in zip(values, tab.controls, strict=True)
                     for prop in (("max", "options")[each.kind == "menu"], "value")]  # fmt: skip
            texts = [f"{name}-{each}" for each in ("error", "tiles", "notes", "command")]
            drawn = [f"{name}-figure-{each}" for each in range(FIGURES[name])]
            clicks = ["best", f"{name}-reset"] if name == "train" else [f"{name}-reset"]
            call(
                Output(f"{name}-standing", "data"), Output(f"{name}-more", "value"),
                Output(f"{name}-found", "children"), *(Output(*each) for each in moves), *states,
                url, Input(f"{name}-more", "n_submit"),
                *(Input(each, "n_clicks") for each in clicks),
                running=[(Output(each, "disabled"), True, False) for each in clicks],
            )(self._settle(tab))  # fmt: skip
            call(
                Output(f"{name}-overrides", "data"), *(Output(each, "children") for each in texts),
                *(Output(f"{each}-shown", "children") for each in values),
                *(Output(each, "figure") for each in drawn), Input(f"{name}-standing", "data"),
                pinned, shown, *(Input(each, "value") for each in values),
            )(self._compute(tab))  # fmt: skip
            call(
                Output("download", "data", allow_duplicate=True),
                Output(f"{name}-unwritten", "children"), states[0],
                Input({"get": ALL, "tab": name}, "n_clicks"), prevent_initial_call=True,
            )(self._write(name))  # fmt: skip
        call(
            Output("pinned", "data"), Output("unpin", "hidden"), State("train-overrides", "data"),
            url, Input("pin", "n_clicks"), Input("unpin", "n_clicks"),
        )(self._pin)  # fmt: skip
        call(Output("tab", "value"), url)(
            lambda query: ("train", "serve")["tab=serve" in (query or "")]
        )
        call(
            Output("link", "href"), *(Output(name, "hidden") for name in self.tabs), shown, pinned,
            *(Input(f"{name}-overrides", "data") for name in self.tabs),
        )(_link)  # fmt: skip
        self.app.clientside_callback(
            "href => { history.replaceState(null, '', href); return href; }",
            Output("linked", "data"), Input("link", "href"), prevent_initial_call=True,
        )  # fmt: skip

    def _settle(self, tab: Tab) -> Callable[..., Any]:
        """Return what puts the controls where a link, a button or typed text wants them."""

        def settle(overrides: Overrides, standing: Any, more: str, query: str, *_: Any) -> Any:
            cause, told, wanted = ctx.triggered_id, "", dict[str, Any]()
            try:
                if cause == "best":
                    told, wanted = self.best(overrides)
                elif cause == f"{tab.name}-more":
                    kept = overrides.keys() - standing["extras"]
                    wanted = {key: overrides[key] for key in kept} | tab.parse(more or "")
                elif cause != f"{tab.name}-reset":
                    wanted = state_of(query, self.tabs).get(tab.name, {})
                settled = tab.settle(wanted)
                tab.read(wanted)
            except ProjectorError as error:
                told, settled = error.message, tab.settle(overrides or {})
            moves = [move for each, place in zip(tab.controls, settled.places, strict=True)
                     for move in (_offer(each, settled), place)]  # fmt: skip
            return settled._asdict(), assignments(settled.extras), told, *moves

        return settle

    def _compute(self, tab: Tab) -> Callable[..., Any]:
        """Return what answers the controls of a tab; what is illegal leaves the last answer."""

        def compute(standing: Any, pinned: Overrides | None, shown: str, *places: Any) -> Any:
            if standing is None or None in places:
                raise PreventUpdate
            choices, same = standing["choices"], [no_update] * FIGURES[tab.name]
            texts = [each.write(choices[each.field][int(place)])
                     for each, place in zip(tab.controls, places, strict=True)]  # fmt: skip
            try:
                overrides = tab.collect(choices, places, standing["extras"])
                if shown != tab.name:
                    return overrides, *[no_update] * 4, *texts, *same
                answer = self.answer(tab.name, overrides, pinned)
            except ProjectorError as error:
                return no_update, error.message, *[no_update] * 3, *texts, *same
            drawn = [*answer.figures, *[NOTHING] * len(same)][: len(same)]
            command = f"projector {tab.command} {assignments(overrides)}".strip()
            notes = [html.Li(note) for note in answer.notes]
            return overrides, "", answer.tiles, notes, command, *texts, *drawn

        return compute

    def _pin(self, overrides: Overrides, query: str, *_: Any) -> Any:
        """Keep a configuration to compare with, or let go of it."""
        pinned = overrides if ctx.triggered_id == "pin" else None
        if ctx.triggered_id not in {"pin", "unpin"}:
            with suppress(ProjectorError):  # The tab says what is wrong with a link.
                pinned = state_of(query, self.tabs).get("pin")
        return pinned, pinned is None

    def _write(self, name: str) -> Callable[..., Any]:
        """Return what writes a download, or says why it cannot be written."""

        def write(overrides: Overrides, _: Any) -> Any:
            try:
                file, text = self.file(name, ctx.triggered_id["get"], overrides)
            except ProjectorError as error:
                return no_update, error.message
            return {"filename": file, "content": text}, ""

        return write


def _link(shown: str, pin: Overrides | None, *parts: Overrides | None) -> Any:
    train, serve = parts
    href = no_update if None in parts else link_of(shown, train=train, serve=serve, pin=pin)
    return href, shown != "train", shown != "serve"


def _alert(name: str) -> Any:
    return html.P(id=name, className="error", role="alert")


def _closed(response: Any) -> Any:
    response.headers["Content-Security-Policy"] = POLICY
    return response


def _id(control: Control) -> str:
    return control.field.partition("+")[0].replace(".", "-")


def _offer(control: Control, standing: Standing) -> Any:
    """Return what a control needs to know of its choices: options, or the last place."""
    choices = standing.choices[control.field]
    if control.kind != "menu":
        return len(choices) - 1
    return [{"label": control.write(each), "value": at} for at, each in enumerate(choices)]


def _control(tab: Tab, control: Control, standing: Standing) -> Any:
    """Return one control, its label around it, with its value beside the label."""
    name, offer = f"{tab.name}-{_id(control)}", _offer(control, standing)
    if control.kind == "menu":
        body: Any = dcc.Dropdown(offer, id=name, clearable=False)
    else:
        body = dcc.Input(id=name, type="range", min=0, max=offer, step=1)
    return html.Label([html.Span(control.label), html.Output(id=f"{name}-shown"), body])
