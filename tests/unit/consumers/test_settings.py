"""Settings that change output, and their hash."""

from hashlib import blake2b
from typing import Any

import pytest

from rolloutlog.consumers import settings
from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.settings import FoldSettings, digest
from rolloutlog.eventstore.errors import InvalidSettings


def test_config_hash_of_defaults_stays():
    """Every stored batch carries it: a change of defaults has to be meant."""
    assert FoldSettings().config_hash == "90a025a0cb7f96390d05b576ed8075ad"


@pytest.mark.parametrize(
    "changed",
    [
        {"attribution": AttributionSettings(final="every_call")},
        {"attribution": AttributionSettings(weights={"reward": 0.5})},
        {"merge": "trajectory"},
        {"min_group": 1},
        {"splits": ("train", "val")},
        {"on_incomplete": "keep"},
        {"late_window_s": 1.0},
    ],
)
def test_config_hash_differs_for_each_setting_that_changes_output(changed: dict[str, Any]):
    assert FoldSettings(**changed).config_hash != FoldSettings().config_hash


def test_config_hash_differs_for_another_fold_version(monkeypatch: pytest.MonkeyPatch):
    before = FoldSettings().config_hash
    monkeypatch.setattr(settings, "FOLD_VERSION", 2)
    assert FoldSettings().config_hash != before


@pytest.mark.parametrize("splits", [("val", "train"), ("train", "val", "train")])
def test_config_hash_is_one_for_splits_in_any_order(splits: tuple[str, ...]):
    assert FoldSettings(splits=splits).config_hash == FoldSettings(splits=("train", "val")).config_hash


def test_config_hash_is_one_for_a_whole_number_of_seconds():
    assert FoldSettings(late_window_s=5).config_hash == FoldSettings(late_window_s=5.0).config_hash


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"merge": "all"}, "merge: expected one of none, trajectory, got 'all'"),
        ({"on_incomplete": "x"}, "on_incomplete: expected one of drop, keep, got 'x'"),
        ({"splits": ("dev",)}, "splits: expected one of train, val, test, got 'dev'"),
        ({"min_group": 0}, "min_group: expected an integer from 1, got 0"),
        ({"min_group": True}, "min_group: expected an integer from 1, got True"),
        ({"late_window_s": -1.0}, "late_window_s: expected seconds from 0 to 31622400, got -1.0"),
        ({"late_window_s": float("nan")}, "late_window_s: expected seconds from 0 to 31622400, got nan"),
    ],
)
def test_settings_with_a_wrong_value_name_setting_expected_and_got(given: dict[str, Any], text: str):
    with pytest.raises(InvalidSettings) as caught:
        FoldSettings(**given)
    assert str(caught.value) == text


def test_digest_is_blake2b_128_of_canonical_json():
    text = '{"a":"é","b":1}'
    assert digest({"b": 1, "a": "é"}) == blake2b(text.encode(), digest_size=16).hexdigest()
