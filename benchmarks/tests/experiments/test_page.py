"""The report in a browser: headless Chromium lays it out, and says what it found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infhess_bench.experiments import plots
from infhess_bench.experiments.page import FAILS, HOLDS, IN_PART, Claim, Figure, Page, claim_list, verdict

ROOT = Path(__file__).parents[3]
REPORTS = sorted(ROOT.glob("benchmarks/results/*/report.html"))
LOOKS = [(width, dark) for width in (375, 1280) for dark in (False, True)]
# Faults that a reader would see: what sticks out, text that is faint, figures too small to read, what comes from elsewhere.
PROBE = """(() => {
  const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255);
  const light = c => rgb(c).map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
  const contrast = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
  const style = getComputedStyle, paper = style(document.body).backgroundColor, all = [...document.body.querySelectorAll('*')];
  const text = all.filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && !/style/i.test(e.tagName));
  const colour = e => e instanceof SVGElement ? style(e).fill : style(e).color;
  const svgs = [...document.querySelectorAll('svg')];
  return {
    wide: document.documentElement.scrollWidth - innerWidth,
    out: all.filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName),
    faint: [...new Set(text.map(colour))].filter(c => contrast(c, paper) < 4.5), texts: text.length,
    small: svgs.filter(e => e.getBoundingClientRect().width < e.viewBox.baseVal.width).length, svgs: svgs.length,
    loaded: document.querySelectorAll('img, script, link, iframe, object, embed').length, paper,
    ink: style(document.body).color, line: style(document.querySelector('svg path[style*="--blue"]')).stroke,
    bad: document.querySelector('.fails .verdict') && style(document.querySelector('.fails .verdict')).color };
})()"""


def seen(browser, path, width, dark):
    """What a reader of a page would see."""
    browser.look(width, dark=dark)
    browser.open(path)
    return browser.run(PROBE)


def assert_readable(found):
    assert found["wide"] <= 0
    assert (found["out"], found["faint"], found["small"], found["loaded"]) == ([], [], 0, 0)
    assert found["texts"] > 5


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


@pytest.fixture(scope="module")
def written(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "page.html"
    path.write_text(page.html(), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_it_is_readable_and_loads_nothing_from_elsewhere(browser, written, width, dark):
    found = seen(browser, written, width, dark)
    assert_readable(found)
    assert found["svgs"] == 2


def test_light_and_dark(browser, written):
    light, dark = (seen(browser, written, 1000, dark) for dark in (False, True))
    for name in ("paper", "ink", "line", "bad"):
        assert light[name] != dark[name]
    assert light["paper"] == "rgb(255, 255, 255)"


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("<p style='width: 3000px'>x</p>", "out"),
        ("<p style='color: #888; background: #fff'>x</p>", "faint"),
        ("<svg viewBox='0 0 100 100' style='width: 50px; min-width: 0'></svg>", "small"),
        ("<img src='elsewhere.png' alt='x'>", "loaded"),
    ],
)
def test_a_fault_would_be_seen(browser, written, tmp_path, fault, name):
    path = tmp_path / "faulty.html"
    path.write_text(written.read_text(encoding="utf-8").replace("</main>", fault + "</main>"), encoding="utf-8")
    assert seen(browser, path, 375, False)[name]


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_committed_reports_are_readable(browser, path):
    for width, dark in LOOKS:
        assert_readable(seen(browser, path, width, dark))


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
