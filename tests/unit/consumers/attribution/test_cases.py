"""Every case of attribution.json. `ROLLOUTLOG_SHARED` names a folder with another `cases/attribution.json`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rolloutlog.consumers.attribution.cases import as_json, cases_in, run_case


def _file() -> Path:
    shared = os.environ.get("ROLLOUTLOG_SHARED")
    folder = Path(shared) / "cases" if shared else Path(__file__).parents[3] / "cases"
    return folder / "attribution.json"


CASES: list[dict[str, Any]] = cases_in(json.loads(_file().read_text()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case_gives_the_expected_result(case: dict[str, Any]) -> None:
    got, expected = as_json(run_case(case)), case["expected"]
    if "error" in expected:
        assert "error" in got
        return
    assert got["outcomes"] == expected["outcomes"]
    assert list(got["calls"]) == list(expected["calls"])
    for span_id, call in expected["calls"].items():
        assert got["calls"][span_id]["total"] == pytest.approx(call["total"], abs=1e-9)
        assert got["calls"][span_id]["step"] == pytest.approx(call["step"], abs=1e-9)
        assert got["calls"][span_id]["final"] == pytest.approx(call["final"], abs=1e-9)
    assert got["final"] == pytest.approx(expected["final"], abs=1e-9)


def test_cases_are_all_there() -> None:
    assert len(CASES) >= 65
