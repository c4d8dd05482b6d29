"""Generated text."""

from __future__ import annotations

from infhess_bench.problems.text import ALPHABET, NUMBERS, generated


def test_text_is_of_its_alphabet_and_its_sums_are_right():
    text = generated(5000, 3)
    assert len(text) == 5000
    assert set(text) <= set(ALPHABET)
    assert text == generated(5000, 3) != generated(5000, 4)
    numbers = {word: i for i, word in enumerate(NUMBERS)}
    sums = [s.split() for s in text.split(". ")[:-1] if " make " in s]
    assert sums
    assert all(numbers[s[0]] + numbers[s[2]] == numbers[s[4]] for s in sums)
