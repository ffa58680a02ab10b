"""Attribution cases: a rollout's log written down as JSON, and its result as JSON. docs/rewards.md, "Cases".

A case is `{"name", "config", "log"}`; config holds attribution settings, log the spans and rewards in log order:
    {"type": "span", "id", "parent", "kind", "name", "start", "end", "response_id", "choice_index", "model", "tokens",
     "trainable"}; without `tokens` a span has response token ids
    {"type": "reward", "id", "name", "value", "scope", "time", "parent", "target", "after_call", "supersedes"}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlog.consumers.attribution.custom import is_custom
from rolloutlog.consumers.attribution.model import Attribution, CallResult, Entry, Outcome, RewardEntry, SpanEntry
from rolloutlog.consumers.attribution.rules import attribute
from rolloutlog.consumers.attribution.settings import POLICIES, AttributionSettings, settings_from
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.rewards import REWARD_NAME, check_reward


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a case gave: its log and an attribution, or the error with which it was refused."""

    name: str
    settings: AttributionSettings
    entries: Sequence[Entry] = ()
    attribution: Attribution | None = None
    error: str | None = None


def cases_in(document: Any) -> list[Any]:
    """The cases of a parsed file: a list of them, or a mapping that has one under `cases`. Raises InvalidEvent."""
    cases = document.get("cases") if isinstance(document, Mapping) else document
    if not isinstance(cases, list):
        raise InvalidEvent(f"expected a list of cases, got {type(cases).__name__} at $.cases")
    return cases


def run_case(case: Any, *, policy: str | None = None) -> CaseResult:
    """Attribute the rewards of one case. A case that is refused gives the error, never an exception.

    policy  goes before the case's own, and may be a `package.module:function`; a case names none of those, since files
            of cases are passed around and are data, not code
    """
    name, settings = "", AttributionSettings()
    try:
        if not isinstance(case, Mapping):
            raise InvalidEvent(f"expected a case to be an object, got {type(case).__name__}")
        name = str(case.get("name", ""))
        settings = _settings(_typed(case, "config", dict, "an object", {}), policy)
        entries = entries_of(case)
    except (InvalidEvent, InvalidSettings) as error:
        return CaseResult(name, settings, error=str(error))
    return CaseResult(name, settings, entries, attribute(entries, settings))


def entries_of(case: Mapping[str, Any]) -> list[Entry]:
    """A case's spans and rewards in log order. Raises InvalidEvent naming the first that is refused."""
    return [_entry(entry, index) for index, entry in enumerate(_typed(case, "log", list, "a list"))]


def as_json(result: CaseResult) -> dict[str, Any]:
    """The result as plain JSON values: `name` with `error`, or with `calls`, `final` and `outcomes`."""
    if result.attribution is None:
        return {"name": result.name, "error": result.error}
    return {
        "name": result.name,
        "calls": {call.span_id: _call(call) for call in result.attribution.calls},
        "final": dict(result.attribution.final),
        "outcomes": {reward_id: _outcome(outcome) for reward_id, outcome in result.attribution.outcomes.items()},
        **({} if result.attribution.fault is None else {"fault": result.attribution.fault}),
    }


def _settings(config: Mapping[str, Any], policy: str | None) -> AttributionSettings:
    own = config.get("policy")
    if policy is not None:
        return settings_from({**config, "policy": policy})
    if isinstance(own, str) and is_custom(own):
        raise InvalidSettings(
            f"attribution setting 'policy' of a case: expected one of {', '.join(POLICIES)}, got {own!r}: a function "
            "is imported only where the command line names it, with --policy"
        )
    return settings_from(config)


def _call(call: CallResult) -> dict[str, Any]:
    return {"total": call.total, "step": dict(call.step), "final": dict(call.final)}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    plain: dict[str, Any] = {"outcome": outcome.outcome, "calls": list(outcome.calls), "rule": outcome.rule}
    if outcome.found:
        plain["found"] = list(outcome.found)
    return plain


def _entry(entry: Any, index: int) -> Entry:
    try:
        kind = _typed(entry, "type", str, "'span' or 'reward'") if isinstance(entry, Mapping) else None
        if kind == "span":
            return _span(entry)
        if kind == "reward":
            return _reward(entry)
        raise InvalidEvent(f"expected 'span' or 'reward', got {kind!r} at $.type")
    except InvalidEvent as error:
        what = f"{entry.get('type')} {entry.get('id')}" if isinstance(entry, Mapping) else "entry"
        raise InvalidEvent(f"{what} refused: {error} (log entry {index})", reason=error.reason) from error


def _span(entry: Mapping[str, Any]) -> SpanEntry:
    return SpanEntry(
        span_id=_typed(entry, "id", str, "text"),
        parent_id=_typed(entry, "parent", str, "text or null", None),
        kind=_typed(entry, "kind", str, "text"),
        name=_typed(entry, "name", str, "text", ""),
        start_ns=_typed(entry, "start", int, "an integer"),
        end_ns=_typed(entry, "end", int, "an integer"),
        response_id=_typed(entry, "response_id", str, "text or null", None),
        choice_index=_typed(entry, "choice_index", int, "an integer", 0),
        model=_typed(entry, "model", str, "text or null", None),
        token_count=int(_typed(entry, "tokens", bool, "true or false", True)),
        trainable=_typed(entry, "trainable", bool, "true or false", True),
    )


def _reward(entry: Mapping[str, Any]) -> RewardEntry:
    value, target, scope = entry.get("value"), entry.get("target"), entry.get("scope", "step")
    name = entry.get("name", REWARD_NAME)
    check_reward(value=value, name=name, scope=scope, target=target)
    return RewardEntry(
        reward_id=_typed(entry, "id", str, "text"),
        value=None if value is None else float(value),
        name=name,
        scope=scope,
        time_ns=_typed(entry, "time", int, "an integer"),
        target=None if target is None else next(iter(target.items())),
        parent_id=_typed(entry, "parent", str, "text or null", None),
        after_call=_typed(entry, "after_call", str, "text or null", None),
        supersedes=_typed(entry, "supersedes", str, "text or null", None),
    )


_REQUIRED = object()


def _typed(entry: Mapping[str, Any], field: str, wanted: type, expected: str, default: Any = _REQUIRED) -> Any:
    """A field of exactly one type: True is no integer. Missing and null give the default where there is one."""
    value = entry.get(field)
    if value is None and default is not _REQUIRED:
        return default
    if type(value) is not wanted:
        raise InvalidEvent(f"expected {expected}, got {value!r} at $.{field}", reason=field, field=f"$.{field}")
    return value
