from rolloutlog.consumers.observed import Observed

NS = 1_000_000_000


def observed(**fields: float) -> Observed:
    """The end was reached at offset 10, at 100 s, when the highest log time folded was 1,000 s."""
    seen = Observed(longest_s=1_000, bytes_max=640)
    seen.reach_end(10, 1_000 * NS, 100.0)
    return seen


def test_events_from_before_the_end_wait_since_it_was_reached():
    assert [observed().waited(60, at_s) for at_s in (159, 160)] == [-1, 10]


def test_events_below_a_mark_were_folded_by_its_time():
    seen = observed()
    seen.move(12, 150.0)
    seen.move(20, 200.0)
    assert [seen.waited(60, at_s) for at_s in (209, 210, 259, 260)] == [10, 12, 12, 20]


def test_events_above_all_marks_have_not_waited():
    """They came within the last second."""
    seen = observed()
    seen.move(12, 150.0)
    seen.move(14, 150.5)
    assert seen.waited(0.1, 151.0) == 12


def test_position_that_does_not_move_makes_no_mark():
    seen = observed()
    seen.move(10, 400.0)
    seen.move(11, 900.0)
    assert [seen.waited(0, at_s) for at_s in (899, 900)] == [10, 11]


def test_marks_that_are_older_than_any_limit_are_dropped_and_tell_so_still():
    seen = observed()
    for index in range(3_000):
        seen.move(11 + index, 101.0 + index)
    assert len(seen._offsets) < 1_100
    assert seen.waited(1_000, 3_100) == 2_010


def test_age_of_events_from_before_the_end_is_by_log_time():
    seen = observed()
    assert [seen.aged(limit_s, 130.0).includes(3, 400 * NS) for limit_s in (630, 631)] == [True, False]


def test_age_of_events_from_after_the_end_is_by_the_owners_clock():
    seen = observed()
    seen.move(12, 150.0)
    assert [seen.aged(limit_s, 180.0).includes(11, 5 * NS) for limit_s in (30, 31)] == [True, False]


def test_first_log_time_that_is_heard_after_the_end_counts_for_ages():
    seen = observed()
    seen.hear_log_time(5_000 * NS, 110.0)
    seen.hear_log_time(90_000 * NS, 115.0)
    age_s = 4_990 - 400 + 30
    assert [seen.aged(limit_s, 130.0).includes(3, 400 * NS) for limit_s in (age_s, age_s + 1)] == [True, False]


def test_log_time_that_is_heard_before_the_end_changes_nothing():
    seen = Observed(longest_s=1_000, bytes_max=640)
    seen.hear_log_time(5_000 * NS, 50.0)
    seen.reach_end(10, 1_000 * NS, 100.0)
    age_s = 600.0
    assert [seen.aged(limit_s, 100.0).includes(3, 400 * NS) for limit_s in (age_s, age_s + 1)] == [True, False]


def test_log_time_that_is_lower_than_that_of_events_changes_nothing():
    seen = observed()
    seen.hear_log_time(7 * NS, 110.0)
    age_s = 600.0
    assert [seen.aged(limit_s, 100.0).includes(3, 400 * NS) for limit_s in (age_s, age_s + 1)] == [True, False]


def test_bytes_are_counted_from_an_offset_on():
    seen = observed()
    for offset in range(20):
        seen.read(offset, 100)
    assert [seen.bytes_since(offset) for offset in (0, 5, 19, 20)] == [2_000, 1_500, 100, 0]


def test_bytes_are_told_to_within_a_64th_of_the_limit():
    seen = Observed(longest_s=1.0, bytes_max=6_400)
    for offset in range(200):
        seen.read(offset, 30)
    assert all(0 <= (200 - offset) * 30 - seen.bytes_since(offset) <= 130 for offset in range(200))


def test_bytes_below_what_is_asked_for_are_forgotten():
    seen = observed()
    for offset in range(1_000):
        seen.read(offset, 100)
    seen.forget_bytes(900)
    assert (seen.bytes_since(900), len(seen._byte_offsets)) == (10_000, 100)
