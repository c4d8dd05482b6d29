"""Put the tables that commands wrote into the documents, between `<!-- path.md -->` and `<!-- end -->`."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def included(match: re.Match[str]) -> str:
    """The marked place, with the file in it."""
    return f"<!-- {match[1]} -->\n{(ROOT / match[1]).read_text(encoding='utf-8').strip()}\n<!-- end -->"


for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
    text = document.read_text(encoding="utf-8")
    document.write_text(re.sub(r"<!-- (\S+\.md) -->\n.*?<!-- end -->", included, text, flags=re.S), encoding="utf-8")
