"""A comparison as text and as JSON."""

import json
from collections import Counter
from typing import Any

from unit.consumers.comparing.making import Pair, reward, rollout, sample

from rolloutlog.consumers.comparing.as_json import comparison_json
from rolloutlog.consumers.comparing.comparison import Comparison
from rolloutlog.consumers.comparing.lines import comparison_lines
from rolloutlog.consumers.comparing.reward_lines import spark
from rolloutlog.consumers.comparing.sides import Side, Sides

COLUMNS = 80


def sides(**after: Any) -> Sides:
    before = Side("live", "batches", settings={"merge": "none"}, batches=1, rollouts=2, hashes=Counter({"aa": 1}))
    given = {"settings": {"merge": "none"}, "batches": 1, "rollouts": 2, "hashes": Counter({"bb": 1}), **after}
    return Sides(before, Side("judged", "output.judged", **given))


def pairs() -> list[Pair]:
    old = reward("main:2", 1.0)
    new = reward("judge:0", 0.25, scorer="judge", scorer_version="2")
    revised = old._replace(outcome="revised", rule=None)
    return [
        (rollout("r1", 1.0, task_id="count", rewards=(old,), samples=(sample("c", 1.0),)),
         rollout("r1", 0.25, task_id="count", rewards=(revised, new), samples=(sample("c", 0.25),))),
        (rollout("r2", 0.5, task_id="sum", samples=(sample("c", 0.5),)),
         rollout("r2", 0.5, task_id="sum", status="incomplete", reason="scorer judge failed: KeyError")),
    ]  # fmt: skip


def text(*groups: list[Pair], of: Sides | None = None, top: int = 10) -> str:
    comparison = Comparison(top=top)
    for group in groups or [pairs()]:
        comparison.add_pairs(group)
    return "\n".join(line.plain for line in comparison_lines(comparison.result(), of or sides(), top=top))


def test_comparison_shows_everything_that_changed():
    assert (
        text()
        == """\
A  live: 1 group, 2 rollouts, settings aa
B  judged: 1 group, 2 rollouts, settings bb
made with the same settings; scorers or recorded rewards differ
2 rollouts in both
not emitted, so left out of values there: 1 rollout in B

reward, final value of a rollout
     count  mean   std   min   max  without
  A      2  0.75  0.25   0.5     1    0.0 %  0 not emitted
  B      1  0.25     0  0.25  0.25    0.0 %  1 not emitted
  mean -0.5, 1 rollout with another value
  value  A                            B
   0.25  0                            1  ████████████████████████
    0.5  1  ████████████████████████  0
      1  1  ████████████████████████  0
  version  rollouts  mean A  mean B  std A  std B  spread A  spread B
        3  2 → 1       0.75    0.25   0.25      0  ·██       █··
  mean by task, 1 of 2 tasks changed
  task   rollouts  A     B  change
  count         1  1  0.25   -0.75
  rollouts that changed most
  rollout  task   A     B  change
  r1       count  1  0.25   -0.75
      by reward judge:0, scorer judge 2

advantages within groups
  1 group with two or more rewards in both, 1 in another order
  2 of 2 rollouts with an advantage of another sign, in 1 group
  group  task   other sign
  g      count  2 of 2
      1 0.5 → 0.25 0.5

samples
  1 sample in both, 1 with another total; only in A 1, only in B 0
  total  count  mean   std   min   max  without
  A          2  0.75  0.25   0.5     1    0.0 %
  B          1  0.25     0  0.25  0.25    0.0 %
  totals that changed most
  sample  A     B  change
  r1/0/c  1  0.25   -0.75
  only in A, because in B
  samples  why
        1  incomplete: scorer judge failed: KeyError
  such as  task  total
  r2/0/c   sum     0.5

how rollouts ended
  rollouts  status
         1  emitted → incomplete
  rollout  task  status
  r2       sum   emitted → incomplete
      B: scorer judge failed: KeyError

what became of rewards
  1 reward in both, 1 with another outcome or other calls
  count  reward  outcome
      1  reward  final → revised
  such as  reward  value  outcome
  r1       main:2      1  final → revised
  rewards only in B
  count  reward  scorer
      1  reward  judge 2"""
    )


def test_settings_that_differ_stand_on_top():
    found = text(of=sides(settings={"merge": "trajectory", "attribution": {"weights": {"style": 2.0}}}))
    assert found.splitlines()[2:5] == [
        "settings that differ:",
        "   merge: none → trajectory",
        "   attribution.weights.style: none → 2.0",
    ]


def test_settings_that_are_not_known_are_said_to_be_so():
    expected = "made with other settings; those of B are not known here: give them with --settings"
    assert text(of=sides(settings=None)).splitlines()[2] == expected


def test_how_a_side_was_made_stands_below_it():
    found = text(of=sides(scorers=("judge 2",), selection="3 groups", refused=1, hashes=Counter({"bb": 2, "cc": 1})))
    assert found.splitlines()[1:5] == [
        "B  judged: 1 group, 2 rollouts, settings bb (2), cc (1)",
        "   scored by judge 2",
        "   of 3 groups",
        "   1 record could not be read",
    ]


def test_outputs_without_a_common_rollout_show_what_they_are():
    comparison = Comparison()
    comparison.add_alone(0, rollout("a", samples=(sample("c"),)))
    lines = [line.plain for line in comparison_lines(comparison.result(), sides(), top=10)]
    assert lines[-1] == "0 rollouts in both; 1 rollout (1 sample) only in A"
    assert json.loads(json.dumps(comparison_json(comparison.result(), sides()), allow_nan=False))["rewards"] == []


def test_reward_that_has_not_changed_takes_two_lines():
    lines = text([(rollout("r1", 1.0), rollout("r1", 1.0))]).splitlines()
    at = lines.index("reward, final value of a rollout")
    assert lines[at + 1 : at + 3] == ["  alike in both: 1 value, mean 1", ""]


def test_reward_of_one_output_alone_shows_its_values_and_no_changes():
    """Every rollout's value came: a list of those that changed most would be a list of all."""

    def pair(index: int) -> Pair:
        before = rollout(f"r{index}", 1.0)
        return before, before._replace(final=(*before.final, ("style", float(index % 2))))

    lines = text([pair(index) for index in range(4)]).splitlines()
    at = lines.index("style, final value of a rollout, only in B")
    assert lines[at + 1 : lines.index("", at)] == [
        "     count  mean  std  min  max  without",
        "  B      4   0.5  0.5    0    1    0.0 %",
        "  value  B",
        "      0  2  ████████████████████████",
        "      1  2  ████████████████████████",
        "  version  rollouts  mean B  std B  spread B",
        "        3         4     0.5    0.5  ██",
    ]


def test_ids_that_are_cut_keep_their_ends():
    changed = (rollout("a" * 40 + "-1-7", 1.0), rollout("a" * 40 + "-1-7", 0.5))
    assert "aaaaaaaaaaaaa…aaaaaaaaaa-1-7" in text([changed])


def test_ids_and_names_of_any_length_and_content_leave_lines_readable():
    long = "\n" + "long " * 100

    def pair(index: int) -> Pair:
        name = f"\x1b[2J{index}-" + "ü" * 300
        common = {"task_id": long + str(index), "group_id": name, "reason": long, "reward": -1e3 * index}
        before = rollout(name, **common, samples=(sample(name, 1e3), sample("d", 0.0)))
        after = rollout(name, **common, samples=(sample(name, -1e3 * index),))
        rewards = (reward(name, -1e3, scorer=long, scorer_version=name, name=long),)
        changed = (("reward", 1e-3 * index), (long, -1e3 / (index + 1)))
        return (
            before._replace(final=(("reward", 1e3), (long, 1e3))),
            after._replace(final=changed, rewards=rewards, status="failed", reward=1e3 * index),
        )

    lines = text([pair(index) for index in range(30)]).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert all(line.isprintable() for line in lines)


def test_top_limits_every_list():
    def pair(index: int) -> Pair:
        name = f"r{index:02}"
        return (
            rollout(name, index / 7, task_id=name, samples=(sample("c", 0.0),)),
            rollout(name, index / 3, task_id=name, samples=(sample("c", 1.0 + index),)),
        )

    found = text(*([pair(index)] for index in range(30)), top=2)
    assert "mean by task, 29 of 30 tasks changed" in found
    assert {name for name in (f"r{index:02}" for index in range(30)) if name in found} == {"r28", "r29"}


def test_spark_shows_the_share_of_the_highest_and_no_bar_for_none():
    assert spark([0, 1, 50, 100]) == "·▂▅█"
    assert spark([]) == ""


def test_json_has_every_number():
    comparison = Comparison()
    comparison.add_pairs(pairs())
    found = json.loads(json.dumps(comparison_json(comparison.result(), sides()), allow_nan=False))
    assert found["rollouts"] == {"both": 2, "compared": 2, "only_a": 0, "only_b": 0, "repeated": 0,
                                 "not_emitted": {"a": 0, "b": 1}}  # fmt: skip
    assert found["rewards"][0]["not_emitted"] == {"a": 0, "b": 1}
    assert (found["settings_differ"], found["settings"]) == (True, [])
    (of_reward,) = found["rewards"]
    assert of_reward["a"] == {"count": 2, "without": 0, "mean": 0.75, "std": 0.25, "min": 0.5, "max": 1.0}
    assert of_reward["histogram"] == {"exact": True, "edges": [0.25, 0.5, 1.0], "a": [0, 1, 1], "b": [1, 0, 0]}
    assert of_reward["policy_versions"][0]["b"]["histogram"] == [1, 0, 0]
    assert of_reward["tasks"][0] == {
        "task_id": "count", "a": {"mean": 1.0, "count": 1}, "b": {"mean": 0.25, "count": 1}, "difference": -0.75,
    }  # fmt: skip
    assert of_reward["changed_most"] == [
        {"rollout_id": "r1", "attempt": 0, "group_id": "g", "task_id": "count", "a": 1.0, "b": 0.25,
         "difference": -0.75, "reward_id": "judge:0", "scorer": "judge", "scorer_version": "2"}
    ]  # fmt: skip
    assert found["samples"]["only_a"]["why"] == {"incomplete: scorer judge failed: KeyError": 1}
    assert found["advantages"]["changed_most"] == [
        {"group_id": "g", "task_id": "count", "flipped_rollouts": 2, "rollouts": ["r1", "r2"], "a": [1.0, 0.5],
         "b": [0.25, 0.5]}
    ]  # fmt: skip
    assert found["statuses"]["changed"] == [{"a": "emitted", "b": "incomplete", "count": 1}]
    assert found["outcomes"]["only_b"] == [{"name": "reward", "scorer": "judge", "scorer_version": "2", "count": 1}]
