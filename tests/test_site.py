"""The built site in a browser, as a reader sees it: on a phone and on a desk, light and dark."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.site
SITE = Path(__file__).parent.parent / "runs" / "site"
PAGES = (
    "", "start/", "guides/nets/", "guides/frameworks/", "troubleshooting/", "gallery/", "gallery/edge_of_stability/",
    "how-it-works/matrices/", "how-it-works/steps/", "results/nets/", "results/convex/", "api/optim/", "glossary/",
)  # fmt: skip
LOOKS = [(width, dark) for width in (375, 1280) for dark in (False, True)]
# Text is measured against the first ground below it that is not transparent; large text may be fainter (WCAG AA).
# What is folded is opened first, and colours change at once.
PROBE = """(async () => {
  document.head.insertAdjacentHTML('beforeend', '<style>* { transition: none !important }</style>');
  document.querySelectorAll('details').forEach(e => e.open = true);
  await document.fonts.ready;
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const style = getComputedStyle, rgba = c => [...c.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const over = (top, below) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]).concat(1);
  const ground = e => { const c = e ? rgba(style(e).backgroundColor) : [255, 255, 255, 1];
    return c[3] == 1 ? c : over(c, ground(e.parentElement)); };
  const light = c => c.slice(0, 3).map(x => x / 255).map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
  const clear = e => e ? style(e).opacity * clear(e.parentElement) : 1;
  const contrast = e => { const below = ground(e), [r, g, b, a] = rgba(style(e).color);
    const pair = [light(over([r, g, b, a * clear(e)], below)), light(below)];
    return (Math.max(...pair) + .05) / (Math.min(...pair) + .05); };
  const large = e => parseFloat(style(e).fontSize) >= (style(e).fontWeight >= 700 ? 18.66 : 24);
  const box = e => e.getBoundingClientRect(), seen = e => box(e).width > 1 && style(e).visibility == 'visible' && clear(e) > 0;
  const scrolls = e => e != document.body && (/auto|scroll/.test(style(e).overflowX) || scrolls(e.parentElement));
  const all = [...document.querySelectorAll('.md-main *, .md-header *, .md-tabs *, .md-footer *')].filter(seen);
  const text = all.filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && !e.closest('.headerlink'));
  const name = e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`;
  const images = all.filter(e => e.tagName == 'IMG'), formulas = all.filter(e => e.tagName == 'math');
  images.forEach(e => e.loading = 'eager');
  await Promise.all(images.map(e => e.decode().catch(() => 0)));
  return { wide: document.documentElement.scrollWidth - innerWidth, texts: text.length,
    out: all.filter(e => !scrolls(e.parentElement) && box(e).right > innerWidth + 1).map(name),
    faint: text.filter(e => contrast(e) < (large(e) ? 3 : 4.5)).map(e => `${contrast(e).toFixed(2)} ${name(e)}`),
    bare: images.filter(e => !e.alt.trim()).map(e => e.src), broken: images.filter(e => !e.naturalWidth).map(e => e.src),
    flat: formulas.filter(e => box(e).height < 5 || e.querySelector('merror')).map(name), formulas: formulas.length,
    paper: style(document.body).backgroundColor, font: !formulas.length || document.fonts.check('16px Math') };
})()"""
FAULTS = {
    "wide": "",
    "out": "<p style='width: 3000px'>x</p>",
    "faint": "<p style='color: #888; background: #fff'>x</p>",
    "bare": "<img src='../assets/images/favicon.png' style='width: 9px'>",
    "broken": "<img src='nowhere.png' alt='x' style='width: 9px; height: 9px'>",
    "flat": "<math><merror><mtext>x</mtext></merror></math>",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    """The site, served as on the web: pages that are opened as files may load less."""
    assert (SITE / "index.html").exists(), "there is no site yet: make docs"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_readable_and_asks_nothing_of_others(browser, address, page):
    browser.open(address + page)
    papers = set()
    for width, dark in LOOKS:
        browser.look(width, dark=dark)
        found = browser.run(PROBE)
        assert found["wide"] <= 0, (width, found["out"])
        assert {name: found[name] for name in FAULTS if name != "wide" and found[name]} == {}, (width, dark)
        assert found["texts"] > 5
        assert found["font"]
        papers.add(found["paper"])
    assert len(papers) == 2, "light and dark differ"
    assert browser.errors() == []
    assert [url for url in browser.requests() if not url.startswith((address, "data:"))] == []


def test_formulas_are_looked_at(browser, address):
    browser.open(address + "how-it-works/matrices/")
    assert browser.run(PROBE)["formulas"] > 10


def test_faults_would_be_seen(browser, address):
    browser.look(375, dark=False)
    browser.open(address + "start/")
    before = browser.run(PROBE)
    browser.run(f"document.querySelector('.md-content').insertAdjacentHTML('beforeend', {''.join(FAULTS.values())!r})")
    after = browser.run(PROBE)
    assert not any(before[name] for name in FAULTS)
    assert {name for name in FAULTS if not after[name]} == set()


def test_an_error_and_a_request_would_be_seen(browser, address):
    browser.open(address + "start/")
    browser.run("console.error('told'), fetch('http://192.0.2.1/').catch(() => 0), 0")
    assert any("told" in error for error in browser.errors())
    assert "http://192.0.2.1/" in browser.requests()
