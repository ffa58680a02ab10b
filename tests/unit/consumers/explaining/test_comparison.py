"""One rollout's rewards under two settings."""

from io import StringIO

from rich.console import Console, Group

from rolloutlog.consumers.attribution import AttributionSettings, Entry, RewardEntry, SpanEntry, attribute
from rolloutlog.consumers.attribution.facts import Facts
from rolloutlog.consumers.explaining.comparison import Comparison, Side, Went, compare, settings_words, side_of
from rolloutlog.consumers.explaining.explain_tables import comparison_lines

ENTRIES: list[Entry] = [
    SpanEntry("sql", None, "agent", "sql"),
    SpanEntry("check", "sql", "operation", "check_query", 1),
    SpanEntry("c", "check", "call", "chat", 2, 3, token_count=2),
    RewardEntry("s", 0.2, "parses", parent_id="check"),
    SpanEntry("d", "sql", "call", "chat", 4, 5, token_count=2),
    RewardEntry("late", 0.5, "style", parent_id="check"),
    RewardEntry("f", 1.0, scope="rollout"),
]


def side(words: str, **settings: object) -> Side:
    return side_of(words, attribute(ENTRIES, AttributionSettings(**settings)), Facts(ENTRIES))


def compared(before: dict[str, object], after: dict[str, object]) -> Comparison:
    return compare(Facts(ENTRIES), side("old", **before), side("new", **after))


def printed(found: Comparison) -> list[str]:
    out = StringIO()
    Console(file=out, width=40).print(Group(*comparison_lines(found)), soft_wrap=True, highlight=False)
    return out.getvalue().splitlines()


def test_comparison_with_another_policy_shows_what_moves_and_totals_of_its_calls():
    assert printed(compared({}, {"policy": "nearest"})) == [
        "new against old: 1 of 3 rewards moves, totals of 2 of 2 calls change",
        "",
        "reward  name    value  old            new",
        "s       parses    0.2  c (enclosing)  c (nearest)",
        "late    style     0.5  c (enclosing)  d (nearest)  moves",
        "f       reward      1  final: d       final: d",
        "",
        "call  agent  operation    total before  total after",
        "c     sql    check_query           0.7          0.2  changes",
        "d     sql                            1          1.5  changes",
    ]


def test_comparison_of_finals_that_reach_other_calls_counts_them_as_moved():
    found = compared({}, {"final": "every_call"})
    assert [(each.reward_id, each.before.calls, each.after.calls) for each in found.rewards if each.moved] == [
        ("f", ("d",), ("c", "d"))
    ]


def test_comparison_with_calls_not_selected_any_more_shows_them_so():
    found = compared({}, {"exclude_operation": "check"})
    assert [(each.span_id, each.selected_after) for each in found.calls] == [("c", False), ("d", True)]
    assert printed(found)[3] == "s       parses    0.2  c (enclosing)  filtered: c  moves"
    assert printed(found)[-2].split() == ["c", "sql", "check_query", "0.7", "not", "selected", "changes"]


def test_comparison_of_weights_changes_totals_and_moves_nothing():
    found = compared({}, {"weights": {"parses": 2.0}})
    assert (found.moved, found.changed) == (0, 1)
    assert printed(found)[0] == "new against old: 0 of 3 rewards move, totals of 1 of 2 calls change"


def test_comparison_without_a_difference_says_so():
    assert printed(compared({}, {}))[0] == "new against old: no reward moves, no call's total changes"


def test_comparison_of_many_rewards_shows_those_that_move():
    entries: list[Entry] = [
        SpanEntry("c", "a", "call", "chat", token_count=1),
        *(RewardEntry(f"r{number}", 0.0, parent_id="a") for number in range(60)),
        RewardEntry("gone", 1.0, parent_id="b"),
    ]
    facts = Facts(entries)
    one, other = (
        side_of(policy, attribute(entries, AttributionSettings(policy=policy)), facts)
        for policy in ("enclosing", "nearest")
    )
    lines = printed(compare(facts, one, other))
    assert lines[3].split() == ["gone", "reward", "1", "unattributed", "c", "(nearest)", "moves"]
    assert lines[4] == "and 60 rewards that stay"


def test_comparison_shows_what_a_policy_of_the_users_own_did_wrong():
    found = Comparison("old", "my.rules:pick", faults=("policy my.rules:pick failed\nIndexError",))
    assert printed(found)[1:3] == ["policy my.rules:pick failed", "IndexError"]


def test_cell_of_many_calls_names_three():
    assert Went("attributed", "linked", ("a", "b", "c", "d")).text() == "a, b, c and 1 more (linked)"
    assert Went("final", "final", ()).text() == "final: no call"


def test_words_of_settings_name_the_policy_and_what_is_not_default():
    assert settings_words(AttributionSettings()) == "policy enclosing"
    settings = AttributionSettings(policy="nearest", final="every_call", weights={"style": 0.5})
    assert settings_words(settings) == "policy nearest, final every_call, weights style=0.5"


def test_settings_in_words_name_a_policy_of_ones_own_without_the_hash_of_its_source():
    assert settings_words(AttributionSettings(policy="json:loads")) == "policy json:loads"
