"""What turns these pages into a site: the navigation, the reference, links to files outside.

The pages are written for the repository, where ``../examples/tour.ipynb`` is a link. ``mkdocs``
knows files below ``docs`` only, so each file that a page links to comes along under ``repository``.
"""

import re
from os.path import relpath
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository/"
INDEX = "/index.md"
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+")
_ENTRY = re.compile(r"- \[(.+?)\]\((.+?)\)")
_PUBLIC = re.compile(r"^- \[`(\w+)`\].*$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Take the navigation from the headings and lists of ``index.md``."""
    nav: list[object] = [{"Home": "index.md"}]
    for part in (Path(config.docs_dir) / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        pages = [{title: _uri("index.md", to)} for title, to in _ENTRY.findall(part)]
        if pages:
            nav.append({part.partition("\n")[0]: pages})
    config.nav = nav


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what pages link to, and what is linked from there."""
    pages = [file.src_uri for file in files.documentation_pages()]
    for page in pages:
        for target in _LINK.findall(_path(page).read_text(encoding="utf-8")):
            uri = _uri(page, target)
            if not uri.startswith(OUTSIDE) or uri in files.src_uris:
                continue
            if uri.endswith(INDEX):
                _list_folder(uri, files, config)
            elif _path(uri).is_file():
                files.append(File.generated(config, uri, abs_src_path=str(_path(uri))))
                if uri.endswith(".md"):
                    pages.append(uri)


def _list_folder(uri: str, files: Files, config: MkDocsConfig) -> None:
    """Add a page that lists the files of a folder, and the files."""
    folder = _path(uri).parent
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    lines = [f"# {folder.name}", "", *(f"- [{path.name}]({path.name})" for path in paths)]
    files.append(File.generated(config, uri, content="\n".join(lines)))
    for path in paths:
        beside = uri.removesuffix(INDEX) + f"/{path.name}"
        if beside not in files.src_uris:
            files.append(File.generated(config, beside, abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Point links at the files of the site; names of the reference bring their docstrings."""
    here = page.file.src_uri
    folder = PurePosixPath(here).parent
    if here == "api.md":
        return _PUBLIC.sub(r"::: projector.\1", markdown)
    return _LINK.sub(lambda link: relpath(_uri(here, link[0]), folder), markdown)


def _path(uri: str) -> Path:
    """Find the file of a page or of a file beside it."""
    return ROOT / (uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}")


def _uri(page: str, target: str) -> str:
    """Name in the site what a page calls ``target``."""
    path = normpath((_path(page).parent / target).relative_to(ROOT))
    if (ROOT / path).is_dir():
        path += INDEX
    return path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE + path
