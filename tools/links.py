"""Check the built site: links and anchors lead somewhere, formulas are formulas, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What makes a browser fetch something: tags, and the attribute that names it. Links that a reader follows are not among them.
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}

# TeX in a formula, and a formula that is still TeX.
SYMBOLS, LEFT = ("mi", "mo", "mn", "mtext"), re.compile(r"\\|&")
TEX = re.compile(r"\$[^$]*[\\^_][^$]*\$")
VOID = (
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "track",
    "wbr",
)  # never closed


class Page(HTMLParser):
    """Links, anchors and what is loaded of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.bare: list[str] = []
        self.tex: list[str] = []
        self.open: list[str] = []  # tags around what comes next
        self.quoted = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        if tag == "blockquote" and tag in self.open:  # what Markdown makes of >>> where no code is seen
            self.quoted = True
        if tag not in VOID:
            self.open.append(tag)
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if found.get("rel") not in ("canonical", "next", "prev") and LOADED.get(tag, "") in found:
            self.loaded.append(found[LOADED[tag]])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "img" and not found.get("alt", "").strip():
            self.bare.append(found.get("src", ""))

    def handle_endtag(self, tag: str) -> None:
        """Leave it, and what was never closed in it."""
        while tag in self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """What the formula converter did not know is left as TeX; what it did not see, with its dollars."""
        is_code = {"code", "pre", "script", "style"} & {*self.open}
        if not is_code and (LEFT if self.open[-1:] and self.open[-1] in SYMBOLS else TEX).search(data):
            self.tex.append(data)


def faults(site: Path) -> list[str]:
    """A line for each."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        found += [f"{where}: loads {url} from elsewhere" for url in page.loaded if urlsplit(url).netloc]
        found += [f"{where}: {image} has no alt text" for image in page.bare]
        found += [f"{where}: {tex.strip()[:60]} is TeX, not a formula" for tex in page.tex]
        found += [f"{where}: an example is a quotation, not code"] if page.quoted else []
        for link in dict.fromkeys(page.links + page.loaded):
            target = resolved(path, link)
            if target is None:
                continue
            if not target.exists():
                found.append(f"{where}: {link} leads nowhere")
            elif (
                (anchor := unquote(urlsplit(link).fragment)) and target in pages and anchor not in pages[target].anchors
            ):
                found.append(f"{where}: {link} has no such anchor")
    return found


def resolved(page: Path, link: str) -> Path | None:
    """The file that a link leads to; None where that is another site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return target / "index.html" if target.is_dir() else target


if __name__ == "__main__":
    found = faults(Path(sys.argv[1]))
    print(
        "\n".join(found) or "links and anchors lead somewhere, formulas are formulas, nothing is loaded from elsewhere"
    )
    sys.exit(bool(found))
