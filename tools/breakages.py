"""What each gate guards, and a change that breaks it: `tools/gates.py` makes them in a copy and runs the gate."""

from __future__ import annotations

from typing import NamedTuple

END = r"\Z"  # in the place of a pattern: the text is appended
DEMO = "docs/demo/demo.svg"


class Gate(NamedTuple):
    """Commands of the Makefile (target: words of its line) or tests, and a change: in a file, a pattern becomes a text.

    Without a text the file is removed; `sees` stands in what the gate then says.
    """

    name: str
    commands: tuple[str, ...]
    path: str
    pattern: str = END
    text: str | None = None
    sees: str = ""


def checked(name: str, line: str, path: str, text: str, sees: str) -> Gate:
    """A line of `make check`."""
    return Gate(name, (f"check: {line}",), path, END, text, sees)


def guarded(name: str, tests: str, path: str, pattern: str, text: str | None, sees: str = "") -> Gate:
    """Tests of `make test`, `make test-long` and, on the built site, of `make docs`."""
    return Gate(name, (f"pytest: {tests}",), path, pattern, text, sees)


def built(name: str, path: str, pattern: str, text: str | None, sees: str = "") -> Gate:
    """The site is built, and its links are checked."""
    return Gate(name, ("docs: mkdocs", "docs: links.py"), path, pattern, text, sees)


def linked(name: str, text: str, sees: str) -> Gate:
    """A fault in a page of the built site."""
    return Gate(name, ("docs: links.py",), "runs/site/index.html", "</article>", f"{text}</article>", sees)


def looked_at(name: str, path: str, text: str, sees: str) -> Gate:
    """The built site in a browser."""
    return Gate(name, ("docs: -m site",), path, END if path.endswith(".css") else "</article>", text, sees)


README = "tests/test_readme.py"
TROUBLE = "tests/test_troubleshooting.py"
REPORTS = "benchmarks/tests/experiments/test_reports.py"
DRAWINGS = "-m long benchmarks/tests/experiments/test_drawings.py"
RESULTS = "benchmarks/results"
LAYERS = "tests/test_layers.py"
API = "tests/test_api_docs.py"
IMPORTS = "tests/test_imports.py"
PILOT = "src/infhess/pilot.py"

GATES = (
    checked("formatting", "ruff format", PILOT, "\nx  =  1\n", "pilot.py"),
    checked("lint", "ruff check", PILOT, "\n\ndef unused() -> None:\n    import os\n", "F401"),
    checked("types", "mypy", PILOT, '\n\ndef wrong() -> int:\n    return ""\n', "return-value"),
    Gate("golden runs", ("golden: tools/golden.py",), "src/infhess/optim/rate/settings.py", "drift: float = 0.02",
         "drift: float = 0.03", "rate-free-kronecker-watch: step"),
    # Without a path: what the settings of pytest collect.
    guarded("doctests", "-k priors.Isotropic", "src/infhess/posterior/priors.py", r"\[\[2\.0, 0\.0\]", "[[2.5, 0.0]", "2.5"),
    guarded("a failing test", "tests/test_added.py", "tests/test_added.py", END, "def test_it():\n    assert False\n"),
    guarded("warnings are errors", "tests/test_added.py", "tests/test_added.py", END,
            "import warnings\n\n\ndef test_it():\n    warnings.warn('told')\n", "UserWarning: told"),
    guarded("markers are known", "tests/test_added.py", "tests/test_added.py", END,
            "import pytest\n\n\n@pytest.mark.nonsense\ndef test_it():\n    pass\n", "nonsense"),
    guarded("code of the README", f"{README} -k pasted", "README.md", r"print\(opt\.rate\)", "print(opt.no_such)", "no_such"),
    guarded("code of the pages", f"{README} -k pasted", "docs/contributing.md", r"noise=0\.1\)\.given", "x=1).given"),
    guarded("code that is not run", f"{README} -k pasted", "docs/contributing.md", END, "\n```\nx\n```\n", "is not run"),
    guarded("links of documents", README, "docs/glossary.md", END, "\n[x](nowhere.md)\n", "nowhere.md"),
    guarded("figures of documents", README, DEMO, END, None, "demo.svg"),
    guarded("what pages include", README, "docs/glossary.md", END, '\n--8<-- "docs/nowhere.md"\n', "nowhere.md"),
    guarded("names in the README", README, "README.md", "`minimize\\(loss", "`minimise(loss", "minimise"),
    guarded("a message without entry", TROUBLE, PILOT, END,
            '\n\ndef said() -> None:\n    raise ValueError("steps: no entry has this")\n', "no entry has this"),
    guarded("an entry without message", TROUBLE, "docs/troubleshooting.md", END,
            "\n#### `nobody says this any more`\nDo this, and that.\n", "nobody says this"),
    guarded("an entry without remedy", TROUBLE, "docs/troubleshooting.md", r"Nothing is overwritten\. .*", "No.", "says_what"),
    guarded("tables against rows", REPORTS, f"{RESULTS}/overhead/summary.md", r"\| 93 ", "| 94 ", "94"),
    guarded("rows against tables", REPORTS, f"{RESULTS}/overhead/rows.csv", r"\Z", "overhead,x\n"),
    guarded("claims against rows", REPORTS, f"{RESULTS}/paper-regression/claims.md", r"0\.12", "0.13", "0.13"),
    guarded("the table of the README", REPORTS, "README.md", r"\| 15 \| 12 \|", "| 16 | 12 |"),
    guarded("counts in pages", REPORTS, "docs/results/nets.md", END, "\n99 of 16\n", "99"),
    guarded("the demo's table", "tests/cli/test_demo_report.py", "docs/demo/summary.md", "1.6e-03", "1.7e-03", "1.7e-03"),
    guarded("stale figures", f"{DRAWINGS} -k demo", DEMO, r'd="M ([\d.]+)', 'd="M 999', "away"),
    guarded("missing figures", f"{DRAWINGS} -k edge", f"{RESULTS}/edge/edge.svg", END, None),
    guarded("layers", LAYERS, "src/infhess/lowrank/lowrank.py", END,
            "\n\ndef up() -> None:\n    from infhess.optim import RateFree\n", "which lies above it"),
    guarded("circles", LAYERS, "src/infhess/spectra/ritz.py", END,
            "\n\ndef back() -> None:\n    from infhess.spectra import anchor\n", "→"),
    guarded("foreign imports", LAYERS, PILOT, END, "\nimport requests\n", "requests"),
    guarded("benchmarks in the library", LAYERS, "src/infhess/cli/options.py", END,
            "\n\ndef up() -> None:\n    import infhess_bench\n", "does_not_know"),
    guarded("a room of no layer", LAYERS, "src/infhess/attic.py", END, "x = 1\n", "attic"),
    guarded("what --help imports", IMPORTS, "src/infhess/cli/options.py", END, "\nimport torch\n", "torch"),
    guarded("a public name that is not there", f"{IMPORTS} -k documented", "src/infhess/_api.py", "__all__ = \\[",
            '__all__ = [\n    "Lost",', "Lost"),
    guarded("a public name without page", API, "docs/api/spectra.md", "::: infhess.trace\n", "", "trace"),
    guarded("a public name without example", API, "src/infhess/spectra/spectrum.py", '(?s)\n    >>> .*?"""', '\n    """',
            "has_an_example"),
    guarded("examples", "tests/test_examples.py -k closure", "examples/closure.py", END, "\nraise SystemExit(1)\n"),
    guarded("claims for frameworks", "tests/test_examples.py -k claims", "docs/guides/frameworks.md",
            r"\[yes\]\([^)]*\)", "yes", "yes without a test"),
    linked("the site's links", '<a href="nowhere/">x</a>', "nowhere"),
    linked("the site's anchors", '<a href="start/#nowhere">x</a>', "nowhere"),
    linked("images without words", '<img src="assets/images/favicon.png">', "alt text"),
    linked("what is loaded from elsewhere", '<script src="https://192.0.2.1/x.js"></script>', "192.0.2.1"),
    linked("examples as quotations", "<blockquote><blockquote>x</blockquote></blockquote>", "quotation"),
    looked_at("faint text", "runs/site/assets/site.css", ".md-typeset p { color: #bbb !important }\n", "faint"),
    looked_at("wide pages", "runs/site/start/index.html", "<p style='width: 3000px'>x</p></article>", "P.: x"),
    looked_at("scripts that fail", "runs/site/start/index.html", "<script>nothing()</script></article>", "nothing"),
    # These build the site anew, broken: nothing looks at it after them.
    built("a page's broken link", "docs/glossary.md", END, "\n[x](nowhere.md)\n", "nowhere.md"),
    built("a page's broken anchor", "docs/glossary.md", END, "\n[x](start.md#nowhere)\n", "nowhere"),
    built("a link to a test that is gone", "docs/guides/frameworks.md", r"test_watch\.py#test_\w+",
          "test_watch.py#gone", "gone"),
    built("a page in no menu", "docs/lost.md", END, "# Lost\n", "lost.md"),
    built("a formula that does not parse", "docs/glossary.md", END, "\n$\\frac{1}{$\n"),
    built("a formula of unknown commands", "docs/glossary.md", END, "\nHere $\\nosuch x$ stands.\n", "nosuch"),
    built("a formula left as it is", "docs/glossary.md", END, "\nHere `x` and $\\alpha $ stand.\n", "TeX"),
    built("a figure without words", "docs/index.md", END, "\n![](demo/demo.svg)\n", "alt text"),
    built("a parameter that is none", "src/infhess/posterior/priors.py", "        mean: b0\\.", "        men: b0.", "'men'"),
    built("a script of the gallery that fails", "docs/gallery/edge_of_stability.py", END, "\nraise SystemExit(1)\n", "edge_of"),
)  # fmt: skip
