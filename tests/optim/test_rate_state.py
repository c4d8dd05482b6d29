"""The rule of RateFree, number by number: when it probes, how the rate grows, what bounds a step, what is counted."""

from __future__ import annotations

import math

import pytest

from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import KRONECKER


def settled(**changes):
    """Long after the first steps: a probe has just been made, and a rate of 1 is far below what curvature allows for."""
    state = RateState(steps=100.0, log_rate=10.0, rate=1.0, rate_at_probe=1.0, steps_at_probe=100.0, length=1.0)
    for name, value in changes.items():
        setattr(state, name, value)
    return state


def test_curvature_is_probed_at_the_first_four_steps():
    assert [settled(steps=t - 1.0, steps_at_probe=t - 1.0).due for t in range(1, 8)] == 4 * [True] + 3 * [False]


def test_curvature_is_probed_every_eighty_steps():
    assert [t for t in range(101, 200) if settled(steps=t - 1.0).due] == list(range(180, 200))


@pytest.mark.parametrize(("step", "rate", "due"), [(600, 2.01, True), (600, 2.0, False), (601, 2.01, False)])
def test_curvature_is_probed_when_the_rate_has_doubled_until_step_600(step, rate, due):
    assert settled(steps=step - 1.0, steps_at_probe=step - 1.0, rate=rate).due is due


def test_before_any_reading_curvature_is_probed_at_powers_of_two():
    blind = [t for t in range(5, 70) if settled(steps=t - 1.0, steps_at_probe=t - 1.0, log_rate=math.nan).due]
    assert blind == [8, 16, 32, 64]
    assert settled(rate=math.nan).due


def test_a_probe_is_noted_down_at_the_coming_step():
    state = settled(rate=3.0)
    state.probed()
    assert (state.rate_at_probe, state.steps_at_probe) == (3.0, 101.0)


@pytest.mark.parametrize(("points", "factor"), [(0.0, 5.0), (32.0, 5.0), (256.0, 10.0), (4.0, 2.5)])
def test_curvature_allows_for_five_times_the_ratio_by_the_third_root_of_the_batch(points, factor):
    assert settled(log_rate=0.7, points=points).allowed == pytest.approx(factor * math.exp(0.7))
    assert settled(log_rate=math.nan).allowed == math.inf


def test_the_rate_comes_with_the_deviation_of_the_filter():
    assert (settled(rate=3.0, variance=0.25).uncertain.value, settled(rate=3.0, variance=0.25).uncertain.std) == (
        3.0,
        1.5,
    )
    assert math.isnan(settled(log_rate=math.nan).uncertain.value)


@pytest.mark.parametrize(("size", "length", "rate"), [(8.0, 2.0, 0.004), (0.0, 2.0, 0.0005), (8.0, 0.0, None)])
def test_the_first_step_moves_w_by_a_thousandth(size, length, rate):
    state = RateState()
    state.begin(size, length)
    assert math.isnan(state.rate) if rate is None else state.rate == pytest.approx(rate)
    state.rate = 7.0
    state.begin(size, length)
    assert state.rate == 7.0


def test_no_first_rate_from_a_direction_that_overflows():
    state = RateState()
    state.begin(1.0, math.inf)
    assert math.isnan(state.rate)


def test_the_rate_grows_by_a_tenth_a_step_and_by_a_hundredth_once_that_would_pass_what_curvature_allows():
    state = settled(log_rate=math.log(1.2 / 5))  # 1.2 is allowed
    assert [state.advance(1.0, 1e9) for _ in range(3)] == pytest.approx([1.1, 1.1 * 1.01, 1.1 * 1.01**2])
    assert [state.advance(1.0, 1e9) for _ in range(9)][-2:] == pytest.approx([1.2, 1.2])
    assert state.steps == 112


@pytest.mark.parametrize(("steps", "growth"), [(9.0, 1.10), (10.0, 1.01)])
def test_the_first_ten_steps_do_not_end_the_fast_growth(steps, growth):
    state = settled(steps=steps, log_rate=math.log(1.005 / 5))
    assert state.advance(1.0, 1e9) == pytest.approx(1.005)
    state.log_rate = 10.0
    assert state.advance(1.0, 1e9) == pytest.approx(1.005 * growth)


def test_growth_that_just_reaches_what_is_allowed_stays_fast():
    state = settled(rate=1.0)
    state.log_rate = math.log(1.10 / 5) + 1e-12
    state.advance(1.0, 1e9)
    assert state.slow == 0


def test_without_a_reading_the_rate_does_not_grow():
    assert settled(log_rate=math.nan).advance(1.0, 1e9) == 1.0


def test_a_step_is_at_most_15_percent_of_w():
    state = settled()
    assert state.advance(1.0, 4.0, scale=2.0) == pytest.approx(0.15 * 4 / 2)
    assert (state.bounded, state.rate) == (1, pytest.approx(0.3))
    assert state.advance(1.0, 0.0) == pytest.approx(1.1 * 0.3)  # weights of zero bound nothing
    assert settled().advance(1.0, 1.1 / 0.15 + 1e-9) == pytest.approx(1.1)


def test_a_direction_four_times_as_long_as_usual_is_cut_to_that():
    state = settled(length=2.0)
    assert state.advance(8.0, 1e9) == pytest.approx(1.1)
    assert (state.shortened, state.length) == (0, pytest.approx(2 + 0.1 * (8 - 2)))
    state = settled(length=2.0)
    assert state.advance(20.0, 1e9) == pytest.approx(1.1 * 8 / 20)
    assert (state.shortened, state.length) == (1, pytest.approx(2 + 0.1 * (8 - 2)))


def test_the_first_length_is_the_usual_one_and_none_changes_nothing():
    state = settled(length=math.nan)
    assert state.advance(0.0, 1e9) == pytest.approx(1.1)
    assert math.isnan(state.length)
    assert state.advance(30.0, 1e9) == pytest.approx(1.1**2)
    assert (state.length, state.shortened) == (30.0, 0)


def test_batch_sizes_are_averaged_with_a_memory_of_0_7():
    state = RateState()
    state.count_points(32.0, 32.0)
    assert state.points == 32
    state.count_points(12.0, 12.0)
    assert state.points == pytest.approx(0.7 * 32 + 0.3 * 12)


def test_a_step_that_is_not_made_is_counted_for_what_it_waits_for():
    waiting, skipped = settled(rate=math.nan, observed=5.0), settled(observed=5.0)
    for state, finite in ((waiting, True), (skipped, False)):
        state.skip(finite)
        assert (state.observed, state.observed_at, state.steps) == (0.0, 100.0, 100.0)
    assert (waiting.waiting, waiting.skipped) == (1, 0)
    assert (skipped.waiting, skipped.skipped) == (0, 1)


def test_iterates_are_averaged_by_the_squares_of_the_largest_rates():
    state, newest = settled(), []
    for rate in (2.0, 1.0, 3.0):
        state.rate = rate
        state.average(0.5)
        newest.append(state.newest(0.0))
    assert newest == pytest.approx([1.0, 1 / 2, 3**2 / (2**2 + 2**2 + 3**2)])  # a constant factor changes nothing
    assert state.newest(0.5 * (2**2 + 2**2)) == 1.0  # an average that began with the last step
    assert state.newest(state.weight) == 1.0


def test_iterates_of_a_schedule_count_by_its_factor_and_those_that_curvature_slows_down_count_in_full():
    state = settled(rate=1.0)
    state.average(1.0)
    state.average(0.01)
    assert state.newest(0.0) == pytest.approx(0.01 / 1.01)
    state = settled(rate=1.0)
    state.average(1.0)
    state.rate = 0.01
    state.average(1.0)
    assert state.newest(0.0) == pytest.approx(1 / 2)


def test_what_braked_is_told_once_with_its_count():
    state = settled(shortened=1.0, skipped=2.0, bounded=3.0, waiting=4.0)
    notes = state.diagnostics(1.0)
    assert [note.split(" ", 3)[:3] for note in notes] == [
        ["1", "step", "was"],
        *([f"{n}", "steps", "were"] for n in (2, 3, 4)),
    ]
    words = ("more than 4 times as long", "NaN or infinity", "15% of |w|", "all gradients were zero")
    assert all(word in note for word, note in zip(words, notes, strict=True))
    assert state.diagnostics(1.0) == ()
    state.rate = state.allowed
    assert state.diagnostics(1.0) == ()
    state.rate = 1.01 * state.allowed
    assert "has grown" in state.diagnostics(1.0)[0]


@pytest.mark.parametrize(("points", "factor"), [(0.0, 8.0), (32.0, 8.0), (256.0, 8.0), (4.0, 4.0)])
def test_where_rotated_curvature_allows_for_eight_times_the_ratio_and_less_with_small_batches(points, factor):
    assert settled(log_rate=0.7, points=points, rule=KRONECKER).allowed == pytest.approx(factor * math.exp(0.7))


@pytest.mark.parametrize("rule", [KRONECKER, RateState.rule])
def test_tokens_count_as_points_up_to_the_reference_batch_and_no_further(rule):
    def allowed(points, tokens):
        state = settled(log_rate=0.7, points=0.0, rule=rule)
        state.count_points(points, tokens)
        return state.allowed

    assert allowed(4.0, 512.0) == allowed(32.0, 32.0)
    assert allowed(4.0, 16.0) == allowed(16.0, 16.0)
    assert allowed(64.0, 64.0 * 128) == allowed(64.0, 64.0)


def test_where_rotated_three_quarters_of_all_steps_are_the_longest_gap_until_that_is_eighty():
    due, last = [], 0
    for t in range(1, 700):
        if settled(steps=t - 1.0, steps_at_probe=float(last), rule=KRONECKER).due:
            due.append(t)
            last = t
    assert due[:6] == [1, 4, 16, 64, 144, 224]
    assert [b - a for a, b in zip(due[-4:], due[-3:])] == [80, 80, 80]


@pytest.mark.parametrize("blind", [0, 4, 64])
def test_where_rotated_a_first_reading_sets_the_rate_however_late_it_comes(blind):
    state = RateState()
    state.rule = KRONECKER
    state.begin(1.0, 1.0)
    for _ in range(blind):
        state.advance(1.0, 1e9)
    assert state.rate == 1e-3
    state.see(3.0)
    assert state.uncertain.value == state.rate == pytest.approx(8 * math.exp(3.0))
    state.advance(1.0, 1e9)
    assert state.rate == state.allowed


def test_where_rotated_the_first_reading_sets_the_rate_at_once_and_later_ones_within_few_steps():
    state = RateState()
    state.rule = KRONECKER
    state.begin(1e3, 1.0)
    assert state.advance(1.0, 1e9) == pytest.approx(1.0)  # a thousandth of |w| while no curvature was seen
    for log_ratio in (0.0, 2.0):
        state.see(log_ratio)
        state.advance(1.0, 1e9)
        assert state.rate == pytest.approx(state.allowed)
    state.steps, allowed = 10.0, state.allowed
    state.advance(1.0, 1e9)
    assert state.slow
    state.see(9.0)
    state.advance(1.0, 1e9)
    assert state.rate < 1.3 * allowed < state.allowed


def test_where_rotated_the_rate_grows_as_the_number_of_steps_once_it_has_reached_what_is_allowed_for():
    state = settled(steps=100.0, slow=1.0, rule=KRONECKER)
    for _ in range(100):
        state.advance(1.0, 1e9)
    assert state.rate == pytest.approx(2.0, rel=0.01)
    plain = settled(steps=100.0, slow=1.0)
    plain.advance(1.0, 1e9)
    assert plain.rate == pytest.approx(1.01)


def test_eps_is_in_units_of_the_largest_gradient_of_all_probes():
    state = settled()
    for gradient in (1.0, 3.0, math.nan, math.inf, 0.0, 2.0):
        state.measure(gradient)
    assert state.gradient == 3.0


@pytest.mark.parametrize(("gradient", "raised"), [(1.0, True), (1.01e-4, True), (0.99e-4, False), (0.0, False)])
def test_a_gradient_at_the_size_of_rounding_is_no_evidence_for_a_larger_rate_but_for_a_smaller_one(gradient, raised):
    state = settled(log_rate=1.0)
    state.measure(1.0)
    state.see(5.0, gradient)
    assert (state.log_rate > 1.0) is raised
    before = state.log_rate
    state.see(-5.0, gradient)
    assert state.log_rate < before


def test_a_first_reading_counts_whatever_its_gradient():
    state = RateState()
    state.see(3.0, 0.0)
    assert state.log_rate == 3.0


@pytest.mark.parametrize(("length", "due"), [(4.0, False), (4.01, True), (math.nan, False)])
def test_directions_that_have_grown_far_beyond_those_that_were_read_are_probed(length, due):
    assert settled(length=length, length_read=1.0).due is due
    assert not settled(length=length).due  # checkpoints of earlier versions do not know what was read


def test_a_direction_four_times_as_long_as_those_that_were_read_is_cut_to_that():
    state = settled(length=3.0, length_read=2.0)
    assert state.advance(16.0, 1e9) == pytest.approx(1.1 * 4 * 2 / 16)
    assert state.shortened == 1


def jumped(by, steps, **changes):
    """Whether training is to start over after that many gradients of another length, of 1 before and 10 in the beginning."""
    state = settled(usual=1.0, usual_read=1.0, most_usual=10.0, **changes)
    found = []
    for _ in range(steps):
        state.observed_at = state.steps + 1
        found.append(state.follow(by))
    return found[-1]


def test_gradients_of_another_size_for_several_steps_are_of_another_loss():
    assert not jumped(1e9, 8)  # a few hard batches
    assert jumped(1e9, 9)
    assert jumped(12.0, 100)
    assert not jumped(9.9, 100)
    assert not jumped(1e-9, 100)


def test_no_start_over_while_gradients_are_small_beside_those_of_the_beginning():
    state = settled(usual=1e-3, usual_read=1e-3, most_usual=10.0, observed_at=101.0)
    assert not any(state.follow(0.5) for _ in range(100))


def test_no_start_over_without_a_training_pass_that_could_be_probed():
    state = settled(usual=1.0, usual_read=1.0, most_usual=1.0, observed_at=3.0)
    assert not any(state.follow(1e9) for _ in range(100))


def test_a_state_afresh_is_that_before_the_first_step_but_for_what_batches_are_like():
    old = settled(slow=1.0, usual=5.0, gradient=7.0, noisy=300.0, largest=9.0, points=64.0, shortened=3.0)
    old.rule = KRONECKER
    new, first = (
        old.afresh(),
        RateState(points=64.0, usual=5.0, most_usual=5.0, shortened=3.0, started_over=1.0, observed_at=-1.0),
    )
    assert new.rule is KRONECKER
    assert new.tensor().tolist() == pytest.approx(first.tensor().tolist(), nan_ok=True)
    assert "started over" in " ".join(new.diagnostics(math.inf))
    assert "started over" not in " ".join(new.diagnostics(math.inf))


@pytest.mark.parametrize("lr", [1.0, 0.1, 0.01, 0.0])
def test_the_distance_of_a_difference_is_the_coming_step_under_any_schedule(lr):
    state = RateState(rate=1.0, log_rate=9.0, length=1.0)
    for _ in range(2000):
        state.steps += 1
        state.average(lr)
    assert state.distance(0.9, lr) == pytest.approx(lr * (0.1 + 0.9 * state.newest(0.0)), rel=1e-3)
