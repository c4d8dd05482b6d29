"""Put the tables that commands wrote, and whole scripts, into the documents, between `<!-- path -->` and `<!-- end -->`."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def included(match: re.Match[str]) -> str:
    """The marked place, with the file in it."""
    text = (ROOT / match[1]).read_text(encoding="utf-8").strip()
    if match[1].endswith(".py"):
        text = f"```python\n{text}\n```"
    return f"<!-- {match[1]} -->\n{text}\n<!-- end -->"


for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
    text = document.read_text(encoding="utf-8")
    document.write_text(
        re.sub(r"<!-- (\S+\.(?:md|py)) -->\n.*?<!-- end -->", included, text, flags=re.S), encoding="utf-8"
    )
