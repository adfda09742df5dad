"""The page in a real browser: everything a user does, at the widths of a desk and of a phone."""

import os
import re
import shutil
import threading
from urllib.parse import urlsplit

import pytest
import yaml

pytest.importorskip("dash", reason="the page needs the extra 'app'")
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from projector.app.page import HOST, Page  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = {"desk": (1280, 900), "phone": (390, 844)}

PENDING = set()
"""Requests of the page that are not answered yet."""

DRAG = """place => new Promise(done => {
  const slider = document.getElementById("train-training-global_batch_size");
  const figure = document.querySelector("#train-figure-2 .js-plotly-plot");
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  const begin = performance.now();
  const drawn = () => done(performance.now() - begin);
  figure.once("plotly_afterplot", () => requestAnimationFrame(drawn));
  set.call(slider, place);
  slider.dispatchEvent(new Event("input", {bubbles: true}));
})"""
"""Moves a slider, and says after how many ms the last figure is drawn."""

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def address():
    page = Page()
    page.answer("train", {})
    server = page.serve(0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{HOST}:{server.socket.getsockname()[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=program, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(params=WIDTHS.values(), ids=WIDTHS)
def page(request, browser, address):
    """A page that may neither complain nor ask another host for anything."""
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    opened, said, hosts = context.new_page(), [], set()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda asked: hosts.add(urlsplit(asked.url).hostname))
    PENDING.clear()
    opened.on("request", lambda asked: PENDING.add(asked))  # noqa: PLW0108
    for end in ("requestfinished", "requestfailed"):
        opened.on(end, lambda asked: PENDING.discard(asked))  # noqa: PLW0108
    opened.set_default_timeout(20_000)
    go(opened, address)
    yield opened
    context.close()
    assert said == []
    assert hosts - {None} == {HOST}


def go(page, address):
    page.goto(address)
    page.wait_for_selector("#train-figure-2 .plotly, #serve-figure-2 .plotly")
    settled(page)


def settled(page):
    """Wait until nothing is asked of the server any more."""
    quiet = 0
    while quiet < 12:
        page.wait_for_timeout(40)
        quiet = 0 if PENDING else quiet + 1


def linked(page, pattern):
    """Wait until the address says so: it follows the figures."""
    sync_api.expect(page).to_have_url(re.compile(pattern), timeout=20_000)


def tile(page, name, tab="train"):
    own = page.locator(f"#{tab}-tiles .tile").filter(has=page.locator(f"dt:text-is('{name}')"))
    return own.locator(".value").inner_text()


def drag(page, control, place):
    page.locator(f"#{control}").fill(str(place))
    settled(page)


def test_dragging_changes_figures_verdict_and_link(page):
    step, verdict = tile(page, "step, ms"), tile(page, "memory")
    assert verdict == "fits"
    slider = page.locator("#train-training-micro_batch_size")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 8, box["y"] + box["height"] / 2)
    page.mouse.down()
    for share in (0.2, 0.4, 0.6):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        page.wait_for_timeout(60)
    page.mouse.up()
    settled(page)
    assert tile(page, "step, ms") != step
    assert tile(page, "memory") == "does not fit"
    linked(page, "training.micro_batch_size=")
    # The keyboard does the same.
    slider.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    settled(page)
    assert (tile(page, "step, ms"), tile(page, "memory")) == (step, verdict)


def test_an_illegal_combination_says_so_and_keeps_the_last_figures(page):
    step = tile(page, "step, ms")
    drag(page, "train-parallelism-tp", 6)
    drag(page, "train-parallelism-pp", 5)
    error = page.locator("#train-error").inner_text()
    assert error.startswith("cluster.nodes: tp (64) * pp (32) * cp (1) = 2048 must divide")
    assert "\n" not in error
    assert tile(page, "step, ms") != ""
    drag(page, "train-parallelism-pp", 2)
    drag(page, "train-parallelism-tp", 3)
    assert page.locator("#train-error").inner_text() == ""
    assert tile(page, "step, ms") == step


def test_pin_best_layout_and_a_link_that_restores_all_of_it(page):
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("button", name="Best layout").click()
    page.wait_for_selector("#train-found:not(:empty)")
    page.wait_for_selector("#train-tiles .change")
    settled(page)
    assert "legal layouts" in page.locator("#train-found").inner_text()
    assert tile(page, "memory") == "fits"
    shown = page.locator("#train-tiles").inner_text()
    assert re.search(r"-\d+\.\d% to pinned", shown)
    drag(page, "train-cluster-device-hbm_gib", 9)
    linked(page, "cluster.device.hbm_gib=")
    shown, link = page.locator("#train-tiles").inner_text(), page.url
    command = page.locator("#train-command").inner_text()
    assert "cluster.device.hbm_gib=" in command
    go(page, link)
    assert page.locator("#train-tiles").inner_text() == shown
    assert page.locator("#train-command").inner_text() == command
    page.get_by_role("button", name="Unpin").click()
    page.wait_for_selector("#train-tiles .change", state="detached")
    page.get_by_role("button", name="Reset").first.click()
    sync_api.expect(page).to_have_url(re.compile(r"/\?$"), timeout=20_000)


def test_menus_and_any_other_field(page):
    page.locator("#train-cluster-device").click()
    page.get_by_role("option", name="mi355x", exact=True).click()
    linked(page, "cluster.device=mi355x")
    more = page.get_by_label("any other field")
    more.first.fill("nosuch=40")
    more.first.press("Enter")
    refused = page.locator("#train-found")
    sync_api.expect(refused).to_contain_text("has no field 'nosuch'", timeout=20_000)
    more.first.fill("model.num_layers=40")
    more.first.press("Enter")
    linked(page, "model.num_layers=40")
    assert "cluster.device=mi355x" in page.url


def test_a_deployment_answers_in_its_own_tab(page):
    page.get_by_text("Serve", exact=True).click()
    page.wait_for_selector("#serve-figure-3 .plotly")
    settled(page)
    first = tile(page, "each further (TPOT), ms", "serve")
    drag(page, "serve-load-batch", 8)
    assert tile(page, "each further (TPOT), ms", "serve") != first
    drag(page, "serve-load-context", 13)
    assert tile(page, "memory", "serve") == "does not fit"
    linked(page, "load.context=.*tab=serve")
    assert "load.batch=" in page.url


def test_downloads(page):
    for title, name in (("YAML", "job.yaml"), ("Megatron", "job_megatron.sh")):
        with page.expect_download() as download:
            page.get_by_role("button", name=title, exact=True).click()
        assert download.value.suggested_filename == name
        text = download.value.path().read_text()
        if name == "job.yaml":
            assert yaml.safe_load(text)["model"] == "llama3.1_70b"


def test_nothing_is_wider_than_the_screen(page):
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0


def test_a_drag_is_answered_while_it_lasts(page, record_property):
    """The time is reported, not asserted: it is that of this machine and its other work."""
    times = sorted(page.evaluate(DRAG, place) for place in (6, 7) * 5)
    record_property("median_ms", times[5])
    print(f"from a drag to new figures: median {times[5]:.0f} ms, most {times[-1]:.0f} ms")  # noqa: T201
