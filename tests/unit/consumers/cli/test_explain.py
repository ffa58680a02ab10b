"""`rolloutlog explain`: what it prints and its exit codes, on an embedded log."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.building import call, completed, reward, started
from support.outputs import write_output
from support.store import Store
from support.workload import new_record, whole_group

from rolloutlog.consumers.cli import main as entry
from rolloutlog.consumers.replaying.outputs import OutputScorer
from rolloutlog.consumers.scoring import records_of
from rolloutlog.eventstore.events import RewardRecorded, Span


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=2) as opened:
        opened.append([*whole_group("group-1", rollouts=2), *whole_group("group-2", partition=1)])
        yield opened


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Store):
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rolloutlog", "explain", "--log", store.url, *arguments])
        with pytest.raises(SystemExit) as caught:
            entry()
        return int(caught.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def published(explain, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Two groups of one that were published, each with a reward that `nearest` moves; `explain` for them."""
    for number in range(2):
        store.append([new_record(each, key=f"own-{number}", partition=number) for each in own(f"own-{number}")])
    monkeypatch.setattr(sys, "argv", ["rolloutlog", "assemble", "--log", store.url, "--until-end"])
    with pytest.raises(SystemExit) as caught:
        entry()
    assert not caught.value.code
    capsys.readouterr()
    return explain


def own(rollout_id: str) -> list[object]:
    agent = {"kind": "agent", "prompt_ids": None, "response_ids": None}
    return [
        started(rollout_id, group_id=rollout_id, task_id=f"task-{rollout_id}"),
        call("c", 1, rollout_id, parent_id="a"),
        Span(**{**call("a", 2, rollout_id).__dict__, **agent, "name": "sql"}),
        Span(**{**call("b", 3, rollout_id).__dict__, **agent, "name": "critic"}),
        reward(4, rollout_id, reward_id="s", name="style", value=0.5, parent_id="b"),
        completed(5, rollout_id),
    ]


def test_explain_prints_the_rollout_without_colours_into_a_pipe(explain):
    code, out, _ = explain("group-1-r1")
    assert code == 0
    assert out.startswith("rollout group-1-r1, attempt 0, task t, group group-1, split train\n")
    assert "\x1b" not in out


def test_explain_finds_a_rollout_of_any_partition_by_its_beginning(explain):
    code, out, _ = explain("group-2", "--json")
    assert (code, json.loads(out)["rollout_id"]) == (0, "group-2-r0")


def test_explain_of_an_unknown_rollout_exits_1_and_says_where_it_looked(explain):
    code, out, err = explain("nothing")
    assert (code, out) == (1, "")
    assert "rollout nothing: expected one of 0 published rollouts or of 3 starts in the events, got none" in err


def test_explain_of_a_beginning_that_several_share_exits_1_and_names_them(explain):
    code, _, err = explain("group-1")
    assert code == 1
    assert "got that of 2: group-1-r0, group-1-r1" in err


def test_explain_with_another_policy_shows_what_moves_below_the_rollout(published):
    code, out, _ = published("own-0", "--policy", "nearest")
    assert code == 0
    assert "unattributed: no call was recorded before it beneath agent critic" in out
    assert out.endswith(
        "\npolicy nearest against recorded: 1 of 1 reward moves, totals of 1 of 1 call change\n"
        "\n"
        "reward  name   value  recorded      policy nearest\n"
        "s       style    0.5  unattributed  c (nearest)     moves\n"
        "\n"
        "call  agent  operation  total before  total after\n"
        "c     sql                       none          0.5  changes\n"
    )


def test_explain_with_a_settings_file_compares_by_it(published, tmp_path: Path):
    file = tmp_path / "settings.toml"
    file.write_text('[attribution]\npolicy = "nearest"\n')
    assert "policy nearest against recorded: 1 of 1" in published("own-0", "--settings", str(file))[1]


def test_explain_with_the_settings_of_the_record_has_nothing_to_compare(published, tmp_path: Path):
    file = tmp_path / "settings.toml"
    file.write_text("min_group = 2\n")
    code, out, _ = published("own-0", "--settings", str(file))
    assert (code, "against" in out) == (0, False)


def test_explain_for_programs_has_the_comparison(published):
    code, out, _ = published("own-0", "--policy", "nearest", "--json")
    it = json.loads(out)
    assert (code, it["settings_exact"], it["comparison"]["moved"]) == (0, True, 1)
    assert it["comparison"]["rewards"][0]["after"] == {"outcome": "attributed", "rule": "nearest", "calls": ["c"]}
    assert it["comparison"]["calls"][0]["after"] == {"selected": True, "total": 0.5}


def test_explain_of_one_rollout_compares_two_policies(published):
    assert "nearest against none: 1 of 1 reward moves" in published("own-0", "--diff", "none", "nearest")[1]


def test_explain_of_a_rollout_whose_events_are_gone_compares_nothing_and_exits_1(published, store: Store):
    store.cut("events", 1, store.records("events", [1])[-1].offset)
    code, out, err = published("own-1", "--policy", "nearest")
    assert code == 1
    assert "its events are gone: retention has removed them; --archive URL reads them from an archive. What the" in out
    assert "reward s (style 0.5, step): unattributed" in out
    assert err == "nothing can be compared: its events are gone\n"


def test_explain_of_an_open_rollout_compares_with_how_it_stands(published, store: Store):
    store.append([new_record(each, key="late", partition=0) for each in own("late")[:-1]])
    code, out, _ = published("late", "--policy", "nearest")
    assert code == 0
    assert "not decided yet; as it stands: unattributed" in out
    assert "policy nearest against as it stands: 1 of 1 reward moves" in out


def test_explain_diff_goes_over_all_published_rollouts(published):
    code, out, _ = published("--diff", "enclosing", "nearest")
    assert code == 0
    assert out.startswith("nearest against enclosing: 2 of 5 rollouts change\n")
    assert "style       2      2  100.0 %  2 unattributed → attributed\n" in out


def test_explain_diff_over_an_output_goes_over_its_rollouts_alone(published, store: Store):
    own_0 = [each for each in store.batches() if each.group_id == "own-0"]
    store.run(write_output(store.log, "part", own_0, ends=(100, 100)))
    code, out, _ = published("--diff", "enclosing", "nearest", "--output", "part")
    assert code == 0
    assert out.startswith("nearest against enclosing: 1 of 1 rollout changes\n")
    assert published("--diff", "enclosing", "nearest", "--output", "part", "--last", "5")[1] == out
    assert published("--diff", "enclosing", "nearest", "--output", "live")[1].startswith(
        "nearest against enclosing: 2 of 5"
    )


def test_explain_diff_over_an_output_counts_the_recorded_rewards_that_it_counted(published, store: Store):
    own_0 = [each for each in store.batches() if each.group_id == "own-0"]
    added = RewardRecorded(
        rollout_id="own-0", attempt=0, source="judge.00000000000000bb", sequence=0, time_ns=0, name="clear", value=2.0,
        scope="step", scorer="judge", scorer_version="1",
    )  # fmt: skip
    store.append(records_of([added], "own-0", 0))
    store.run(write_output(store.log, "part", own_0, ends=(100, 100), rewards_ends=(1, 0)))
    found = json.loads(published("--diff", "enclosing", "nearest", "--output", "part", "--json")[1])
    assert found["rewards"]["clear"]["count"] == 1
    assert found["agents"]["sql"]["after"]["mean_total"] == 2.5


def test_explain_diff_over_an_output_of_scorers_is_refused_and_says_what_to_do(published, store: Store):
    scorers = (OutputScorer("judge", "2", "ab", True),)
    store.run(write_output(store.log, "judged", store.batches(), ends=(100, 100), scorers=scorers))
    code, out, err = published("--diff", "enclosing", "nearest", "--output", "judged")
    assert (code, out) == (2, "")
    assert "got one that was scored by judge 2. Replay with the same --scorer to two outputs" in err


def test_explain_diff_over_an_output_that_is_not_there_names_those_that_are(published):
    code, out, err = published("--diff", "enclosing", "nearest", "--output", "other")
    assert (code, out) == (2, "")
    assert "output 'other': expected one of live, got none of that name" in err


def test_explain_diff_takes_settings_files(published, tmp_path: Path):
    file = tmp_path / "a.toml"
    file.write_text('[attribution]\npolicy = "nearest"\nweights = { style = 2.0 }\n')
    code, out, _ = published("--diff", "enclosing", str(file), "--json", "--task", "task-own-1")
    it = json.loads(out)
    assert (code, it["rollouts"], it["after"]) == (0, 1, str(file))
    assert it["agents"]["sql"]["after"]["mean_total"] == 1.0


def test_explain_diff_over_a_file_of_ids_exits_1_when_one_is_not_published(published, tmp_path: Path):
    file = tmp_path / "ids"
    file.write_text("own-0\n\nnothing\nown-0\n")
    code, out, _ = published("--diff", "enclosing", "nearest", "--rollouts", str(file))
    assert code == 1
    assert out.startswith("nearest against enclosing: 1 of 1 rollout changes\nnot published: nothing\n")


def test_explain_diff_over_the_last_takes_so_many(published):
    out = published("--diff", "enclosing", "nearest", "--last", "1")[1]
    assert out.startswith("nearest against enclosing: 1 of 1 rollout changes\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a ROLLOUT_ID, or --diff A B"),
        (("own-0", "--last", "3"), "say over which rollouts --diff A B goes"),
        (("--diff", "a", "b", "--policy", "nearest"), "--policy says what --diff already does"),
        (("--diff", "enclosing", "closest"), "--diff closest: attribution setting 'policy' is unusable"),
        (("--diff", "enclosing", "none.toml"), "settings file none.toml: expected readable TOML"),
        (("own-0", "--policy", "closest"), "attribution setting 'policy' is unusable"),
    ],
)
def test_explain_with_unusable_options_exits_2_and_says_what_to_give(explain, arguments: tuple[str, ...], said: str):
    code, out, err = explain(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_explain_with_a_policy_of_the_users_own_asks_it(published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_rules_of_a_test.py").write_text("def pick(view):\n    return view.calls[0].span_id\n")
    monkeypatch.syspath_prepend(tmp_path)
    out = published("own-0", "--policy", "own_rules_of_a_test:pick")[1]
    assert "s       style    0.5  unattributed  c (own_rules_of_a_test:pick)" in out


def test_explain_diff_over_a_task_that_nothing_is_published_of_exits_1_and_says_so(published):
    code, out, err = published("--diff", "enclosing", "nearest", "--task", "other")
    assert (code, out, err) == (1, "", "nothing to compare: no rollout of task 'other' is published\n")
    assert published("--diff", "enclosing", "nearest", "--task", "other", "--json")[0] == 1
