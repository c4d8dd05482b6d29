"""Text of any length from small grammars: sentences with agreement in number, nesting and sums; and nested brackets."""

from __future__ import annotations

import random
from collections.abc import Callable

ALPHABET = " abcdefghijklmnopqrstuvwxyz.,"
NOUNS = ("fox", "river", "house", "child", "tree", "stone", "bird", "sailor", "garden", "letter", "winter", "lantern")
VERBS = ("watch", "follow", "carry", "remember", "draw", "leave", "answer", "hide", "mend", "count")
ADJECTIVES = ("small", "old", "quiet", "red", "broken", "early", "bright", "hollow")
PLACES = ("near", "behind", "under", "beyond", "without")
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
BRACKETS = ("()", "[]", "{}", "<>")
SIGNS = "".join(BRACKETS) + "xyz "


def generated(length: int, seed: int) -> str:
    """Sentences with `length` letters in total."""
    return _joined(lambda draw: (_sum if draw.random() < 0.25 else _sentence)(draw) + ". ", length, seed)


def nested(length: int, seed: int) -> str:
    """Balanced brackets, `length` letters in total; a bracket contains its own kind less often than others."""
    return _joined(lambda draw: _bracket(draw, depth=0) + " ", length, seed)


def _joined(part: Callable[[random.Random], str], length: int, seed: int) -> str:
    draw, found, size = random.Random(seed), [], 0
    while size < length:
        found.append(part(draw))
        size += len(found[-1])
    return "".join(found)[:length]


def _bracket(draw: random.Random, depth: int, outer: str = "") -> str:
    pair = draw.choice([pair for pair in BRACKETS if pair != outer or draw.random() < 0.3])
    inner = [
        _bracket(draw, depth + 1, pair) if depth < 5 and draw.random() < 0.45 else draw.choice("xyz")
        for _ in range(draw.randrange(1, 4))
    ]
    return pair[0] + "".join(inner) + pair[1]


def _sum(draw: random.Random) -> str:
    a, b = draw.randrange(11), draw.randrange(11)
    return f"{NUMBERS[a]} and {NUMBERS[b]} make {NUMBERS[a + b]}"


def _sentence(draw: random.Random, depth: int = 0) -> str:
    plural = draw.random() < 0.4
    verb = draw.choice(VERBS) + ("" if plural else "s")
    clause = f", as {_sentence(draw, depth + 1)}" if depth < 2 and draw.random() < 0.2 else ""
    place = f" {draw.choice(PLACES)} {_thing(draw, draw.random() < 0.4)}" if draw.random() < 0.4 else ""
    return f"{_thing(draw, plural)} {verb} {_thing(draw, draw.random() < 0.4)}{place}{clause}"


def _thing(draw: random.Random, plural: bool) -> str:
    noun = draw.choice(NOUNS)
    many = {"child": "children", "fox": "foxes"}.get(noun, noun + "s") if plural else noun
    adjective = f"{draw.choice(ADJECTIVES)} " if draw.random() < 0.4 else ""
    return f"{draw.choice(('the', 'some') if plural else ('the', 'this'))} {adjective}{many}"
