"""The report in a browser: headless Chromium lays it out, and says what it found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from infhess.experiments import plots
from infhess.experiments.page import FAILS, HOLDS, IN_PART, Claim, Figure, Page, claim_list, verdict

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=2000",
]  # fmt: skip
PROBE = """<script>addEventListener('load', () => {
  const parts = [...document.querySelectorAll('main > *, main > section > *')];
  const wide = parts.filter(e => e.getBoundingClientRect().right > innerWidth + 1);
  const box = document.querySelector('svg').getBoundingClientRect();
  const found = { wide: wide.map(e => e.tagName), rows: document.querySelectorAll('.claim').length,
    svgs: document.querySelectorAll('svg').length, drawn: box.width > 100 && box.height > 50,
    loaded: performance.getEntriesByType('resource').length,
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    line: getComputedStyle(document.querySelector('svg path[style*="--blue"]')).stroke,
    bad: getComputedStyle(document.querySelector('.fails .verdict')).color, inner: innerWidth,
    colours: [...document.querySelectorAll('h1, h2, p, a, th, td, li, figcaption')].map(e => getComputedStyle(e).color) };
  document.title = JSON.stringify(found);
})</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    drawn = []
    for name in ("one", "two"):
        fig, ax = plots.figure()
        ax.plot([1, 2, 3], [1, 4, 9], color=plots.BLUE, label="a <line> & more")
        ax.legend()
        drawn.append(Figure(plots.save(fig, folder / f"{name}.svg"), f'figure {name} with "quotes" & <tags>'))
    claims = [
        Claim("A claim with <b>markup</b> & signs", "1.0", HOLDS),
        Claim("Another", "2.0", IN_PART, "because " * 30),
        Claim("A third", "3" * 200, FAILS),
    ]
    return Page("A title & <more>", "Lead", claims, drawn, ["a note"], [("Table", [["a", "b"], ["1", "2"]])])


def opened(page, tmp_path, width, *, dark=False):
    """What the browser found when it laid the page out."""
    import html
    import json

    if CHROMIUM is None:
        if os.environ.get("INFHESS_BROWSER_REQUIRED"):
            pytest.fail("Chromium is required here, and was not found")
        pytest.skip("there is no Chromium on this machine")
    path = tmp_path / "page.html"
    path.write_text(page.html().replace("</body>", PROBE + "</body>"), encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *scheme, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom",
         path.as_uri()],
        capture_output=True, text=True,
    )  # fmt: skip
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout, flags=re.S)
    assert title, done.stderr[-2000:]
    return json.loads(html.unescape(title.group(1)))


@pytest.mark.parametrize("width", [375, 1280])
def test_it_fits_and_loads_nothing_from_elsewhere(page, tmp_path, width):
    found = opened(page, tmp_path, width)
    assert found["wide"] == []
    assert (found["rows"], found["svgs"], found["drawn"], found["loaded"]) == (3, 2, True, 0)


def test_light_and_dark(page, tmp_path):
    light, dark = opened(page, tmp_path, 1000), opened(page, tmp_path, 1000, dark=True)
    for name in ("paper", "ink", "line", "bad"):
        assert light[name] != dark[name]
    assert light["paper"] == "rgb(255, 255, 255)"


def luminance(colour):
    """Of "rgb(r, g, b)", as WCAG has it."""
    parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast(page, tmp_path, dark):
    found = opened(page, tmp_path, 1280, dark=dark)
    paper = luminance(found["paper"])
    for colour in set(found["colours"]):
        low, high = sorted([paper, luminance(colour)])
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour


def test_figures_stand_before_tables_and_contents_before_both(page):
    text = page.html()
    assert text.index("<nav") < text.index("<figure") < text.index("<table")
    for target in re.findall(r'href="#(\w+)"', text):
        assert f'id="{target}"' in text


def test_text_is_escaped_and_names_inside_figures_differ(page):
    text = page.html()
    assert "<b>markup" not in text
    assert "&lt;b&gt;markup&lt;/b&gt; &amp; signs" in text
    ids = re.findall(r'<(?:clipPath|path) id="([^"]+)"', text)
    assert ids
    assert len(ids) == len(set(ids))
    assert "http://" not in re.sub(
        r'xmlns(:\w+)?="[^"]*"|http://www\.w3\.org\S*|http://purl\S*|http://creative\S*', "", text
    )


def test_verdicts():
    assert [verdict(*v) for v in ([True], [True, False], [False])] == [HOLDS, IN_PART, FAILS]
    assert claim_list([Claim("A", "1", HOLDS, "why")]) == "**A** *Holds.*\n1 why\n"
