"""How much each call is given: reduced step values per name, final values, weighted totals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rolloutlog.consumers.attribution.calls import Call, Calls
from rolloutlog.consumers.attribution.model import CallResult, RewardEntry
from rolloutlog.consumers.attribution.settings import AttributionSettings

_REDUCE: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "last": lambda values: values[-1],
    "mean": lambda values: sum(values) / len(values),
    "max": max,
}


@dataclass(slots=True)
class Given:
    """The step rewards of one call in log order: reward name → values, and the rewards' ids."""

    values: dict[str, list[float]] = field(default_factory=dict)
    reward_ids: list[str] = field(default_factory=list)

    def add(self, reward: RewardEntry, value: float) -> None:
        self.values.setdefault(reward.name, []).append(value)
        self.reward_ids.append(reward.reward_id)


def call_results(
    calls: Calls, given: Mapping[Call, Given], final: Mapping[str, float], settings: AttributionSettings
) -> list[CallResult]:
    """One result per call except judges', in turn order. The result of a call reached by nothing has totals of None."""
    reached = _reached_by_final(calls.turns, settings.final) if final else set()
    final_total = _weighted(final, settings.weights)
    results = []
    for call in calls.turns:
        step, step_total, reward_ids = _step(given.get(call), settings)
        has_final = call in reached
        results.append(
            CallResult(
                span_id=call.span_id,
                span_ids=tuple([calls.tree.spans[v].span_id for v in call.spans]),
                turn_index=call.turn_index,
                selected=call.selected,
                step=step,
                final=dict(final) if has_final else {},
                step_total=step_total,
                final_total=final_total if has_final else None,
                total=_sum(step_total, final_total if has_final else None),
                reward_ids=reward_ids,
            )
        )
    return results


def taken_results(calls: Calls, taken: Mapping[Call, RewardEntry]) -> list[CallResult]:
    """The same for a 0.3 policy: each call has the value it took, as it is."""
    results = []
    for call in calls.turns:
        reward = taken.get(call)
        value = None if reward is None else reward.value
        results.append(
            CallResult(
                span_id=call.span_id,
                span_ids=tuple(calls.tree.spans[v].span_id for v in call.spans),
                turn_index=call.turn_index,
                selected=call.selected,
                step={} if reward is None or value is None else {reward.name: value},
                step_total=value,
                total=value,
                reward_ids=() if reward is None else (reward.reward_id,),
            )
        )
    return results


def _step(given: Given | None, settings: AttributionSettings) -> tuple[dict[str, float], float | None, tuple[str, ...]]:
    if given is None:
        return {}, None, ()
    reduce = _REDUCE[settings.reduce]
    step = {name: reduce(values) for name, values in given.values.items()}
    return step, _weighted(step, settings.weights), tuple(given.reward_ids)


def _reached_by_final(turns: Sequence[Call], final: str) -> set[Call]:
    selected = [call for call in turns if call.selected]
    if final == "every_call":
        return set(selected)
    return set(selected[-1:]) if final == "last_call" else set()


def _weighted(values: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    if not values:
        return None
    return sum(weights.get(name, 1.0) * value for name, value in values.items())


def _sum(step_total: float | None, final_total: float | None) -> float | None:
    if step_total is None or final_total is None:
        return final_total if step_total is None else step_total
    return step_total + final_total
