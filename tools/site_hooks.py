"""Hooks of the documentation site.

What a page links to outside of `docs/` becomes a part of the site, every SVG has a dark twin, the gallery is run, and formulas
(```math, and $...$ in a line, as on GitHub) become MathML, so that nothing has to be loaded from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import gallery

ROOT = Path(__file__).parent.parent
MATH = re.compile(r"^```math\n(.*?)\n```\n", flags=re.S | re.M)
# A dollar inside of code is a dollar.
INLINE = re.compile(r"(?P<code>^```.*?^```|`[^`\n]+`)|\$(?P<tex>[^\s$](?:[^$\n`]*[^\s$])?)\$", flags=re.S | re.M)
FIGURE = re.compile(r"!\[([^\]]*)\]\(([^)#\s]+)\.svg\)")
# Colours of figures (infhess.experiments.plots), and those for a dark page.
DARK = {
    "#222222": "#e4e4e0", "#1f6fb2": "#6db3f2", "#d9640b": "#ff9d57", "#8a8a8a": "#9a9a9a", "#0b8f6a": "#4fd1a5",
    "#a8458c": "#e08cc8",
}  # fmt: skip
LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def outside(page: str, link: str) -> str | None:
    """The path in the repository that a link of a page leads to, where that is not below `docs/`."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def is_code(path: str) -> bool:
    """Whether the site shows it as a page with line numbers."""
    return path.endswith(".py")


def place(path: str) -> str:
    """Where the site has it: a script as a page of its own, anything else as it is."""
    return f"source/{path}.md" if is_code(path) else path


def line_of(path: str, name: str) -> str:
    """The anchor of the line that defines `name`."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    found = [i for i, line in enumerate(lines, 1) if re.match(rf"\s*(def|class) {re.escape(name)}\b", line)]
    if not found:
        raise ValueError(f"{path} has no {name}")
    return f"#__codelineno-0-{found[0]}"


def code_page(path: str) -> str:
    """A page that shows a script; the search leaves it out."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    return f'---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n````python linenums="1"\n{text}\n````\n'


def site_file(path: str, config: Any) -> File:
    """A file of the repository as one of the site."""
    if not (ROOT / path).is_file():
        raise FileNotFoundError(f"a page links to {path}, which is not a file of the repository")
    if is_code(path):
        return File.generated(config, place(path), content=code_page(path))
    return File.generated(config, place(path), abs_src_path=str(ROOT / path))


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of `docs/` that pages link to."""
    pages = [file for file in files if file.src_uri.endswith(".md")]
    for page in pages:
        for link, _ in LINK.findall(page.content_string):
            path = outside(page.src_uri, link)
            if path and not files.get_file_from_path(place(path)):
                files.append(site_file(path, config))
    add_gallery(files, config)
    for file in [file for file in files if file.src_uri.endswith(".svg")]:
        files.append(File.generated(config, dark_name(file.src_uri), content=dark(file.content_string)))
    return files


def add_gallery(files: Files, config: Any) -> None:
    """A page and a figure for each script, and the overview."""
    found = gallery.examples()
    files.append(File.generated(config, "gallery/index.md", content=gallery.overview(found)))
    for example in found:
        files.append(File.generated(config, f"gallery/{example.name}.md", content=example.page()))
        files.append(File.generated(config, f"gallery/{example.name}.svg", content=example.figure))


def dark_name(uri: str) -> str:
    """Of the dark twin of a figure."""
    return f"{uri.removesuffix('.svg')}.dark.svg"


def dark(svg: str) -> str:
    """The same drawing for a dark page: no white ground, and lighter colours."""
    for light, other in DARK.items():
        svg = svg.replace(light, other)
    return re.sub(r"fill: ?(#ffffff|white)", "fill: none", svg)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links lead to where the site has these files."""

    def led(match: re.Match[str]) -> str:
        path = outside(page.file.src_uri, match[1])
        if path is None:
            return match[0]
        anchor = line_of(path, match[2][1:]) if is_code(path) and len(match[2] or "") > 1 else ""
        return f"]({posixpath.relpath(place(path), posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return INLINE.sub(inline, MATH.sub(formula, FIGURE.sub(twins, LINK.sub(led, markdown))))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Tell mkdocs of the lines of scripts, whose numbers are anchors: it looks for anchors in Markdown alone."""
    page.present_anchor_ids |= set(re.findall(r'id="(__codelineno-[\d-]+)"', html))
    return html


def twins(match: re.Match[str]) -> str:
    """A figure for light pages, and its twin for dark ones; the theme shows one of them."""
    if not match[1].strip():
        raise ValueError(f"{match[2]}.svg: a figure needs an alt text")
    return f"![{match[1]}]({match[2]}.svg#only-light)![{match[1]}]({dark_name(match[2] + '.svg')}#only-dark)"


def formula(match: re.Match[str]) -> str:
    """A block ```math as MathML, which browsers draw by themselves."""
    return f'<div class="formula">{convert(match[1], display="block")}</div>\n'


def inline(match: re.Match[str]) -> str:
    """$...$ as MathML; code stays as it is."""
    return match["code"] or f"<span>{convert(match['tex'], display='inline')}</span>"  # a line may begin with it
