"""Text of any length from a small grammar: sentences that agree in number, nest, and do sums."""

from __future__ import annotations

import random

ALPHABET = " abcdefghijklmnopqrstuvwxyz.,"
NOUNS = ("fox", "river", "house", "child", "tree", "stone", "bird", "sailor", "garden", "letter", "winter", "lantern")
VERBS = ("watch", "follow", "carry", "remember", "draw", "leave", "answer", "hide", "mend", "count")
ADJECTIVES = ("small", "old", "quiet", "red", "broken", "early", "bright", "hollow")
PLACES = ("near", "behind", "under", "beyond", "without")
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip


def generated(length: int, seed: int) -> str:
    """So many letters of it."""
    draw = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < length:
        parts.append((_sum if draw.random() < 0.25 else _sentence)(draw) + ". ")
        size += len(parts[-1])
    return "".join(parts)[:length]


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
