"""Policies of the user's own: how they are found and checked, what they are given, and what becomes of their faults."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.building import call as call_event
from support.building import completed, started
from support.building import reward as reward_event
from unit.consumers.folding import Partition

from rolloutlog.consumers.attribution import (
    Attribution,
    AttributionSettings,
    Entry,
    PolicyView,
    RewardEntry,
    SpanEntry,
    attribute,
)
from rolloutlog.consumers.attribution.cases import run_case
from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.errors import InvalidSettings

NUMBERS = count()

AGENT = SpanEntry("agent", None, "agent", "solver")
WRITE = SpanEntry("write", "agent", "operation", "write")


def call(span_id: str, parent_id: str | None = None, **fields: object) -> SpanEntry:
    return SpanEntry(span_id, parent_id, "call", "chat", token_count=3)._replace(**fields)  # type: ignore[arg-type]


Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Write a module with this source; returns `module:policy`, a module of a new name each time."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def write(source: str, function: str = "policy") -> str:
        made.append(f"policies_{next(NUMBERS)}")
        (tmp_path / f"{made[-1]}.py").write_text(source, encoding="utf-8")
        return f"{made[-1]}:{function}"

    yield write
    for name in made:
        sys.modules.pop(name, None)


def returning(expression: str) -> str:
    return f"def policy(view):\n    return {expression}\n"


def run(policy: str, *entries: Entry, **fields: object) -> Attribution:
    return attribute(entries, AttributionSettings(policy=policy, **fields))  # type: ignore[arg-type]


def outcome(result: Attribution, reward_id: str = "w") -> tuple[str, tuple[str, ...], str | None]:
    found = result.outcomes[reward_id]
    return found.outcome, found.calls, found.rule


# What it decides


def test_policy_that_names_a_call_has_the_reward_attributed_by_its_name(make: Make) -> None:
    policy = make(returning("'x'"))
    result = run(policy, call("x"), call("y"), RewardEntry("w", 0.5))
    assert outcome(result) == ("attributed", ("x",), policy)
    assert [each.total for each in result.calls] == [0.5, None]


@pytest.mark.parametrize("nothing", ["None", "[]", "()", "(each for each in ())"])
def test_policy_that_names_none_leaves_the_reward_unattributed_without_a_fault(make: Make, nothing: str) -> None:
    result = run(make(returning(nothing)), call("x"), RewardEntry("w", 0.5))
    assert outcome(result) == ("unattributed", (), None)
    assert result.fault is None


def test_policy_that_names_several_gives_each_the_full_value(make: Make) -> None:
    result = run(make(returning("['y', 'x', 'y']")), call("x"), call("y"), RewardEntry("w", 0.5))
    assert outcome(result)[:2] == ("attributed", ("x", "y"))
    assert [each.total for each in result.calls] == [0.5, 0.5]


def test_policy_that_names_several_under_split_divides_over_the_selected(make: Make) -> None:
    calls = (call("x"), call("y", trainable=False), call("z"))
    result = run(make(returning("['x', 'y', 'z']")), *calls, RewardEntry("w", 1.0), link_subtree="split")
    assert [each.total for each in result.calls] == [0.5, 0.5]


def test_policy_that_names_a_call_not_selected_has_the_reward_filtered(make: Make) -> None:
    policy = make(returning("'x'"))
    result = run(policy, call("x", trainable=False), call("y"), RewardEntry("w", 0.5))
    assert outcome(result) == ("filtered", (), policy)
    assert result.outcomes["w"].found == ("x",)


def test_policy_that_names_another_span_of_a_call_means_the_call(make: Make) -> None:
    calls = (call("x", response_id="r"), call("proxy", response_id="r", token_count=0))
    assert outcome(run(make(returning("'proxy'")), *calls, RewardEntry("w", 1.0)))[1] == ("x",)


def test_policy_is_not_asked_about_rewards_that_other_rules_decide(make: Make) -> None:
    rewards = (
        RewardEntry("final", 1.0, scope="rollout"),
        RewardEntry("linked", 1.0, target=("span_id", "x")),
        RewardEntry("null", None),
        RewardEntry("old", 1.0),
        RewardEntry("new", 1.0, supersedes="old"),
    )
    source = "def policy(view):\n    assert view.reward.reward_id == 'new'\n    return 'y'\n"
    result = run(make(source), call("x"), call("y"), *rewards)
    assert result.fault is None
    assert [each.outcome for each in result.outcomes.values()] == [
        "final", "attributed", "no_verdict", "revised", "attributed",
    ]  # fmt: skip


# What it is given


def seen(make: Make, expression: str, *entries: Entry) -> str:
    """What an expression over the view is, told by way of a fault."""
    fault = run(make(f"def policy(view):\n    raise ValueError(repr({expression}))\n"), *entries).fault
    assert fault is not None
    return fault.rpartition("ValueError: ")[2]


JUDGE = (SpanEntry("judge", "agent", "evaluator"), call("j", "judge"))
LOG = (AGENT, WRITE, call("x", "write", start_ns=5), *JUDGE, call("y", "agent", start_ns=3))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("view.reward.name", "'reward'"),
        ("[each.span_id for each in view.calls]", "['x', 'y', 'z']"),
        ("[each.turn_index for each in view.calls]", "[2, 1, 0]"),
        ("[each.span_id for each in view.earlier]", "['x', 'y']"),
        ("[each.span_id for each in reversed(view.earlier)]", "['y', 'x']"),
        ("view.earlier[-1].span_id", "'y'"),
        ("[each.span_id for each in view.earlier[:1]]", "['x']"),
        ("(len(view.earlier), view.calls[2] in view.earlier)", "(2, False)"),
        ("[each.agent for each in view.calls]", "['solver', 'solver', None]"),
        ("len(view.spans)", "7"),
        ("(view.agent, view.operations)", "('solver', ('write',))"),
        ("view.after", "None"),
        ("view.call('x').parent_id", "'write'"),
        ("(view.call('j'), view.call('write'), view.call('nowhere'))", "(None, None, None)"),
        ("(view.span('write').name, view.span('nowhere'))", "('write', None)"),
        ("[each.span_id for each in view.enclosing('x')]", "['x', 'write', 'agent']"),
        ("list(view.enclosing(None))", "[]"),
        ("view.last_beneath('agent').span_id", "'y'"),
        ("view.last_beneath('nowhere')", "None"),
        ("[each.span_id for each in view.beneath('agent')]", "['y', 'x']"),
        ("view.beneath('nowhere')", "[]"),
    ],
)
def test_view_shows_the_rollout_as_it_stood_before_the_reward(make: Make, expression: str, expected: str) -> None:
    assert seen(make, expression, *LOG, RewardEntry("w", 1.0, parent_id="write"), call("z")) == expected


def test_view_of_a_reward_after_a_call_counts_that_call_as_earlier(make: Make) -> None:
    log = (call("x"), RewardEntry("w", 1.0, after_call="r"), call("y", response_id="r"), call("z"))
    assert seen(make, "([each.span_id for each in view.earlier], view.after.span_id)", *log) == "(['x', 'y'], 'y')"


def test_view_climbs_once_round_spans_that_enclose_each_other(make: Make) -> None:
    log = (SpanEntry("a", "b", "operation", "one"), SpanEntry("b", "a", "operation", "two"))
    assert seen(make, "view.operations", *log, RewardEntry("w", 1.0, parent_id="a")) == "('one', 'two')"


def test_view_of_a_reward_in_a_span_never_recorded_has_neither_agent_nor_operations(make: Make) -> None:
    assert seen(make, "(view.agent, view.operations)", RewardEntry("w", 1.0, parent_id="lost")) == "(None, ())"


def last_earlier(view: PolicyView) -> str | None:
    return view.earlier[-1].span_id if view.earlier else None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_policy_that_takes_the_last_earlier_call_gives_what_nearest_gives(data: st.DataObject) -> None:
    spans = [call(f"c{i}", start_ns=data.draw(st.integers(0, 3))) for i in range(data.draw(st.integers(0, 6)))]
    after = st.sampled_from((None, "c0", "c3", "c5"))
    rewards = [RewardEntry(f"w{i}", 1.0, after_call=data.draw(after)) for i in range(4)]
    log = data.draw(st.permutations([*spans, *rewards]))
    ours = attribute(log, AttributionSettings(policy="nearest"))
    sys.modules.setdefault(__name__, sys.modules[last_earlier.__module__])
    theirs = attribute(log, AttributionSettings(policy=f"{__name__}:last_earlier"))
    assert theirs.calls == ours.calls
    assert [each.calls for each in theirs.outcomes.values()] == [each.calls for each in ours.outcomes.values()]


# What it does wrong


def test_policy_that_raises_leaves_a_fault_with_its_traceback_and_no_path(make: Make, tmp_path: Path) -> None:
    policy = make("def policy(view):\n    return deeper(view)\n\n\ndef deeper(view):\n    return {}['x']\n")
    result = run(policy, call("x"), RewardEntry("w", 0.5))
    module = policy.partition(":")[0]
    assert result.fault == (
        f"policy {policy} failed for 1 of 1 rewards, first for reward w: Traceback (most recent call last):\n"
        f"  {module}, line 2, in policy\n    return deeper(view)\n"
        f"  {module}, line 6, in deeper\n    return {{}}['x']\n"
        "KeyError: 'x'"
    )
    assert outcome(result) == ("unattributed", (), None)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("'nowhere'", "expected the span id of a call of this rollout, got 'nowhere' of type str"),
        ("'agent'", "expected the span id of a call of this rollout, got 'agent' of type str"),
        ("'j'", "expected the span id of a call, got 'j' of type str, which is a judge's"),
        ("3", "expected a span id, several, or None, got 3 of type int"),
        ("[None]", "expected the span id of a call of this rollout, got None of type NoneType"),
        ("b'x'", "expected the span id of a call of this rollout, got 120 of type int"),
        ("view.calls[0]", "of type CallView"),
        ("iter(lambda: 'x', None)", "expected the span ids of calls, got more than 1006 of them"),
        ("type('Bad', (), {'__repr__': lambda self: 1 / 0})()", "<Bad instance>"),
    ],
)
def test_policy_that_answers_something_else_leaves_a_fault_that_says_what(make: Make, answer: str, text: str) -> None:
    result = run(make(returning(answer)), *LOG, RewardEntry("w", 0.5))
    assert result.fault is not None
    assert text in result.fault
    assert outcome(result) == ("unattributed", (), None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("return policy(view)", "RecursionError"),
        ("yield 'x'; 1 / 0", "ZeroDivisionError"),
        ("view.reward.value = 3", "FrozenInstanceError"),
        ("raise ValueError('\\ud800' * 10_000)", "ValueError: \\ud800"),
    ],
)
def test_policy_that_fails_in_any_way_does_not_end_the_process(make: Make, body: str, text: str) -> None:
    fault = run(make(f"def policy(view):\n    {body}\n"), call("x"), RewardEntry("w", 0.5)).fault
    assert fault is not None
    assert text in fault
    assert len(fault.encode()) < 4_000


def test_policy_that_fails_for_some_rewards_decides_the_others(make: Make) -> None:
    policy = make("def policy(view):\n    return {'a': 'x', 'b': 'y'}[view.reward.reward_id]\n")
    result = run(policy, call("x"), call("y"), *(RewardEntry(name, 1.0) for name in "wvab"))
    assert result.fault is not None
    assert result.fault.startswith(f"policy {policy} failed for 2 of 4 rewards, first for reward w: Traceback")
    assert [each.calls for each in result.outcomes.values()] == [(), (), ("x",), ("y",)]


def test_ctrl_c_during_a_policy_ends_the_process(make: Make) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(make("def policy(view):\n    raise KeyboardInterrupt\n"), call("x"), RewardEntry("w", 0.5))


def closed(policy: str, **fields: object) -> Partition:
    partition = Partition(attribution=AttributionSettings(policy=policy), **fields)
    partition.add(started(), call_event("c", 1), reward_event(2, value=0.5), completed(3))
    return partition


def test_rollout_whose_policy_fails_ends_incomplete_with_the_traceback_as_reason(make: Make) -> None:
    policy = make("def policy(view):\n    raise LookupError('no such tool')\n")
    result = closed(policy).result()
    assert result.status == "incomplete"
    assert result.reason is not None
    assert result.reason.startswith(f"policy {policy} failed for 1 of 1 rewards, first for reward ")
    assert result.reason.endswith(
        ", line 2, in policy\n    raise LookupError('no such tool')\nLookupError: no such tool"
    )
    assert [each.outcome for each in result.outcomes] == ["unattributed"]


def test_rollout_whose_policy_fails_gives_no_sample_unless_incomplete_ones_are_kept(make: Make) -> None:
    policy = make("def policy(view):\n    raise LookupError\n")
    assert closed(policy).batch.samples == ()
    assert [each.total for each in closed(policy, on_incomplete="keep").batch.samples] == [None]


def test_rollout_whose_policy_answers_is_emitted_with_the_reward(make: Make) -> None:
    partition = closed(make(returning("view.earlier[-1].span_id")))
    assert partition.result().status == "emitted"
    assert [each.total for each in partition.batch.samples] == [0.5]


# How it is found and checked


@pytest.mark.parametrize(
    ("source", "function", "text"),
    [
        ("policy = 3", "policy", "it is of type int"),
        ("", "policy", "it has no policy"),
        ("class policy:\n    def __init__(self, view): ...", "policy", "it is of type type"),
        ("async def policy(view): ...", "policy", "expected a plain function"),
        ("def policy(): ...", "policy", "expected a function of one argument, the view"),
        ("def policy(view, more): ...", "policy", "its signature: missing a required argument: 'more'"),
        ("def policy(view): ...", "policy.inner", "it has no inner"),
        ("def policy(view) return", "policy", "SyntaxError"),
        (
            "import nowhere_at_all",
            "policy",
            "ModuleNotFoundError: No module named 'nowhere_at_all'; install it, or run in",
        ),
        ("raise SystemExit(2)", "policy", "SystemExit: 2"),
        ("1 / 0", "policy", "ZeroDivisionError"),
    ],
)
def test_policy_that_cannot_be_used_is_refused_with_the_reason(
    make: Make, source: str, function: str, text: str
) -> None:
    policy = make(source, function)
    with pytest.raises(InvalidSettings) as error:
        AttributionSettings(policy=policy)
    assert str(error.value).startswith("attribution setting 'policy' is unusable: expected ")
    assert repr(policy) in str(error.value)
    assert text in str(error.value)


@pytest.mark.parametrize(
    "name", ["nowhere_at_all:policy", ":policy", "a:", "a:b:c", ".relative:f", "a b:c", "a/b:c", "::"]
)
def test_policy_of_no_usable_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidSettings, match="attribution setting 'policy' is unusable"):
        AttributionSettings(policy=name)


def test_policy_of_a_module_without_a_file_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="a module with a file, whose source goes into the config hash"):
        AttributionSettings(policy="sys:intern")


@pytest.mark.parametrize(
    "source",
    [
        "def policy(view, *, bonus=1): ...",
        "policy = lambda view: None",
        "from functools import partial\npolicy = partial(lambda tool, view: None, 'sql')",
        "class Rules:\n    def __call__(self, view): ...\n\npolicy = Rules()",
    ],
)
def test_policy_that_can_be_called_with_a_view_is_accepted(make: Make, source: str) -> None:
    assert run(make(source), call("x"), RewardEntry("w", 1.0)).fault is None


def test_config_hash_holds_the_source_of_the_policys_module(make: Make) -> None:
    one, same, other = make(returning("None")), make(returning("None")), make(returning("None") + "# changed\n")
    sources = [AttributionSettings(policy=each).canonical()["policy_source"] for each in (one, same, other)]
    assert sources[0] == sources[1] != sources[2]
    hashes = {FoldSettings(attribution=AttributionSettings(policy=each)).config_hash for each in (one, same, other)}
    assert len(hashes) == 3  # the name is in it too


def test_config_hash_holds_the_module_in_which_the_function_is_defined(make: Make) -> None:
    modules = [make(f"{returning('None')}# {each}\n").partition(":")[0] for each in ("a", "b")]
    passed_on = [make(f"from {module} import policy\n") for module in modules]
    sources = [AttributionSettings(policy=each).canonical()["policy_source"] for each in passed_on]
    assert sources[0] != sources[1]


def test_config_hash_without_a_policy_of_ones_own_has_no_source() -> None:
    assert "policy_source" not in AttributionSettings().canonical()


def test_settings_of_the_assembler_import_the_policy_at_start(make: Make) -> None:
    policy = make(returning("None"))
    assert load(None, {"attribution_policy": policy}, environment={}).assembler().fold.attribution.policy == policy
    with pytest.raises(InvalidSettings, match="No module named 'nowhere_at_all'"):
        load(None, {"attribution_policy": "nowhere_at_all:f"}, environment={}).assembler()


def test_case_that_names_a_function_is_refused_and_imports_nothing(make: Make, tmp_path: Path) -> None:
    policy = make(f"open({str(tmp_path / 'ran')!r}, 'w')\n{returning('None')}")
    result = run_case({"name": "n", "config": {"policy": policy}, "log": []})
    assert result.error is not None
    assert result.error.endswith("a function is imported only where the command line names it, with --policy")
    assert not (tmp_path / "ran").exists()


def test_case_run_with_a_policy_uses_that_one(make: Make) -> None:
    policy = make(returning("None"))
    result = run_case({"name": "n", "config": {"policy": "nearest"}, "log": []}, policy=policy)
    assert (result.error, result.settings.policy) == (None, policy)
