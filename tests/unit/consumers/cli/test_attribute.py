"""`rolloutlog attribute FILE`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolloutlog.consumers.cli.attribute import attribute
from rolloutlog.eventstore.errors import InvalidSettings

CASES = Path(__file__).parents[3] / "cases" / "attribution.json"


def test_attribute_json_prints_all_cases_in_file_order_though_some_are_refused() -> None:
    result = CliRunner().invoke(attribute, [str(CASES), "--json"])
    printed = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [case["name"] for case in printed] == [case["name"] for case in json.loads(CASES.read_text())["cases"]]
    refused = next(case for case in printed if case["name"] == "refuse_nan")
    assert refused == {
        "name": "refuse_nan",
        "error": "reward s1 refused: expected a finite number or null, got nan at $.value (log entry 1)",
    }


def test_attribute_as_text_says_why_a_reward_is_filtered() -> None:
    result = CliRunner().invoke(attribute, [str(CASES)])
    assert result.exit_code == 0
    assert (
        "reward s1 (reward 0.2, step): filtered by exclude_operation=^check_query$: the call found was c, in operation "
        "check_query; handed to no other call"
    ) in result.stdout


def test_attribute_as_text_says_what_would_have_to_change(tmp_path: Path) -> None:
    log = [
        {"type": "span", "id": "c", "kind": "call", "start": 1, "end": 2},
        {"type": "reward", "id": "w", "value": 1.0, "time": 3, "target": {"response_id": "\x1b[2J"}},
        {"type": "reward", "id": "f", "value": 1.0, "time": 4, "scope": "rollout"},
    ]
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([{"name": "n", "log": log}]))
    assert CliRunner().invoke(attribute, [str(file)], catch_exceptions=False).stdout.splitlines()[-2:] == [
        "  reward w (reward 1, step): unresolved: no call has response_id '\\x1b[2J' or any other: record it with "
        "call.record(response_id=...)",
        "  reward f (reward 1, rollout): final, it belongs to the rollout and reaches call c",
    ]


def test_attribute_of_a_file_without_cases_fails_and_names_it(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"spans": []}')
    result = CliRunner().invoke(attribute, [str(file)])
    assert result.exit_code == 1
    assert "other.json holds no attribution cases: expected a list of cases, got NoneType" in result.stderr


def test_attribute_of_a_malformed_case_gives_its_error_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    cases = [3, {"name": "a", "log": [{"type": "span"}]}, {"name": "b", "config": {"final": "x"}, "log": []}]
    file.write_text(json.dumps([*cases, {"name": "c", "log": []}]))
    printed = json.loads(CliRunner().invoke(attribute, [str(file), "--json"]).stdout)
    assert ["error" in case for case in printed] == [True, True, True, False]
    assert printed[3] == {"name": "c", "calls": {}, "final": {}, "outcomes": {}}


def test_attribute_with_a_policy_uses_it_for_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "first_call_policy.py").write_text("def first_call(view):\n    return view.calls[0].span_id\n")
    spans = [{"type": "span", "id": name, "kind": "call", "start": 1, "end": 2} for name in ("x", "y")]
    reward = {"type": "reward", "id": "w", "value": 1.0, "time": 3}
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([{"name": "n", "config": {"policy": "nearest"}, "log": [*spans, reward]}]))
    arguments = [str(file), "--json", "--policy", "first_call_policy:first_call"]
    (case,) = json.loads(CliRunner().invoke(attribute, arguments, catch_exceptions=False).stdout)
    assert case["outcomes"]["w"] == {"outcome": "attributed", "calls": ["x"], "rule": "first_call_policy:first_call"}


def test_attribute_shows_what_a_policy_did_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_policy.py").write_text("def failing(view):\n    raise LookupError('no tool')\n")
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([{"name": "n", "log": [{"type": "reward", "id": "w", "value": 1.0, "time": 3}]}]))
    arguments = [str(file), "--policy", "failing_policy:failing"]
    lines = CliRunner().invoke(attribute, arguments, catch_exceptions=False).stdout.splitlines()
    assert lines[-1] == "  LookupError: no tool"
    assert "  policy failing_policy:failing failed for 1 of 1 rewards, first for reward w: Traceback" in lines[-4]


def test_attribute_with_a_policy_that_cannot_be_used_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text("[]")
    with pytest.raises(InvalidSettings, match="No module named 'nowhere_at_all'"):
        CliRunner().invoke(
            attribute,
            [str(tmp_path / "cases.json"), "--policy", "nowhere_at_all:f"],
            catch_exceptions=False,
        )
