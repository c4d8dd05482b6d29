"""Put the tables that commands wrote into the README, between `<!-- path -->` and `<!-- end -->`."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def included(match: re.Match[str]) -> str:
    """The marked place, with the file in it."""
    text = (ROOT / match[1]).read_text(encoding="utf-8").strip()
    return f"<!-- {match[1]} -->\n{text}\n<!-- end -->"


readme = ROOT / "README.md"
text = re.sub(r"<!-- (\S+\.md) -->\n.*?<!-- end -->", included, readme.read_text(encoding="utf-8"), flags=re.S)
readme.write_text(text, encoding="utf-8")
