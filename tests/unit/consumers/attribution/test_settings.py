"""Attribution settings: what is refused, and what the config hash sees."""

import json

import pytest

from rolloutlog.consumers.attribution import AttributionSettings, settings_from
from rolloutlog.eventstore.errors import InvalidSettings


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"policy": "closest"}, "'policy' is unusable: expected one of enclosing, nearest"),
        ({"agent": "("}, "'agent' is unusable: expected a regular expression"),
        ({"agent": 3}, "'agent' is unusable: expected a regular expression or None, got 3"),
        ({"weights": {"style": float("nan")}}, "'weights.style' is unusable: expected a finite number, got nan"),
        ({"weights": {"style": True}}, "'weights.style' is unusable: expected a finite number, got True"),
        ({"weights": [1]}, "'weights' is unusable: expected a mapping"),
        ({"polizy": "none"}, "'polizy' is unknown: expected one of agent, operation"),
    ],
)
def test_setting_that_is_unusable_is_named(values: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        settings_from(values)
    assert text in str(error.value)


def test_canonical_holds_every_setting_and_sorts_weights() -> None:
    plain = AttributionSettings(weights={"b": 1, "a": 2}).canonical()
    assert json.dumps(plain) == (
        '{"agent": null, "operation": null, "model": null, "exclude_agent": null, "exclude_operation": null, '
        '"policy": "enclosing", "link_subtree": "last", "reduce": "sum", "final": "last_call", '
        '"weights": {"a": 2.0, "b": 1.0}}'
    )


def test_weights_changed_by_the_caller_afterwards_stay_as_they_were() -> None:
    weights = {"style": 1.0}
    settings = AttributionSettings(weights=weights)
    weights["style"] = 2.0
    assert settings.weights == {"style": 1.0}
