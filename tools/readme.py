"""Put the tables that commands wrote into README.md, between `<!-- path.md -->` and `<!-- end -->`."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def included(match: re.Match[str]) -> str:
    """The marked place, with the file in it."""
    return f"<!-- {match[1]} -->\n{(ROOT / match[1]).read_text(encoding='utf-8').strip()}\n<!-- end -->"


README.write_text(
    re.sub(r"<!-- (\S+\.md) -->\n.*?<!-- end -->", included, README.read_text(encoding="utf-8"), flags=re.S),
    encoding="utf-8",
)
