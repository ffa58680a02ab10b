"""`rolloutlog attribute FILE`."""

import json
from pathlib import Path

from click.testing import CliRunner

from rolloutlog.consumers.cli.attribute import attribute

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
    assert "filtered, rule enclosing found call c, not selected; handed to no other call" in result.stdout


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
