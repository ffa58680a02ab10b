"""One rollout, for people: what happened in it, and where each reward went.

`render` gives lines for a terminal or a pipe, `as_json` the same for programs. A reward stands at the span where it was
emitted, with a sentence that says which calls it counts for. Outcomes are those that were published, never made anew.

Not here   finding it: consumers.finding
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rolloutlog.consumers.attribution import Outcome, RewardEntry, explain_recorded
from rolloutlog.consumers.batches import RewardOutcome
from rolloutlog.consumers.finding import Found, Recorded, find_rollout
from rolloutlog.consumers.samples import Sample
from rolloutlog.eventstore.events import RewardRecorded, Span
from rolloutlog.eventstore.tokens import TOKEN_BYTES

__all__ = ["Found", "as_json", "find_rollout", "render"]

LEVELS_MAX = 24  # of indentation; deeper ones say how deep they are
UNREAD_SHOWN = 5

_STYLES = {"agent": "bold cyan", "call": "bold green", "tool": "yellow", "evaluator": "magenta"}
_GOOD = ("emitted", "attributed", "final")


@dataclass(frozen=True, slots=True)
class Node:
    """A span or reward and its place in the tree. `last`: the last child of its parent."""

    depth: int
    last: bool
    recorded: Recorded


def render(found: Found) -> RenderableType:
    """Lines of text with styles; without colours when they are not printed to a terminal."""
    return Group(*_lines(found))


def as_json(found: Found) -> dict[str, Any]:
    """The same for programs: plain JSON values."""
    batch, result, started = found.batch, found.result, found.started
    sentences = _sentences(found)
    outcomes = {} if result is None else {each.reward_id: each for each in result.outcomes}
    totals = _totals(found.samples)
    return {
        "rollout_id": found.rollout_id,
        "attempt": found.attempt,
        "group_id": found.group_id,
        "task_id": _task(found),
        "split": result.split if result is not None else started.split if started is not None else None,
        "state": found.state,
        "waits": list(found.words),
        "status": None if result is None else result.status,
        "reason": None if result is None else result.reason,
        "error": None if result is None else result.error,
        "policy_version": _policy_version(found),
        "batch_id": None if batch is None else batch.batch_id,
        "config_hash": None if batch is None else batch.config_hash,
        "partition": found.partition,
        "batch_offset": None if found.published is None else found.published.offset,
        "first_event": found.first_event,
        "closing_event": None if result is None else result.closing_event,
        "trigger": None if batch is None else batch.trigger,
        "events_cut": found.cut,
        "final": {} if result is None else dict(result.final),
        "metadata": _metadata(found),
        "spans": [_span_json(node, totals) for node in tree(found) if isinstance(node.recorded.event, Span)],
        "rewards": [
            _reward_json(each, outcomes.get(each.event.id), sentences)
            for each in found.events
            if isinstance(each.event, RewardRecorded)
        ],
        "outcomes": {reward_id: _outcome_json(each, sentences) for reward_id, each in outcomes.items()},
        "samples": [
            {"sample_id": each.sample_id, "span_ids": list(each.span_ids), "total": each.total}
            for each in found.samples
        ],
        "unread": [{"offset": offset, "reason": reason} for offset, reason in found.unread],
    }


def tree(found: Found) -> Iterator[Node]:
    """Spans and rewards, parents before what lies beneath them, siblings by time. A tree of any depth."""
    spans = {each.event.span_id: each for each in reversed(found.events) if isinstance(each.event, Span)}
    placed: list[tuple[int, int, Recorded]] = []
    for index, each in enumerate(found.events):
        if isinstance(each.event, Span) and spans[each.event.span_id] is each:
            placed.append((each.event.start_ns, index, each))
        elif isinstance(each.event, RewardRecorded):
            placed.append((each.event.time_ns, index, each))
    children: dict[str | None, list[Recorded]] = {}
    for _, _, each in sorted(placed, key=lambda one: one[:2]):
        parent = getattr(each.event, "parent_id", None)
        children.setdefault(parent if parent in spans else None, []).append(each)
    shown: set[int] = set()
    yield from _walk(children, children.get(None, []), shown)
    # Parents that are each other's: no root leads to them.
    for _, _, each in sorted(placed, key=lambda one: one[:2]):
        if each.offset not in shown:
            yield from _walk(children, [each], shown)


def _walk(children: Mapping[str | None, list[Recorded]], roots: list[Recorded], shown: set[int]) -> Iterator[Node]:
    stack = [Node(0, each is roots[-1], each) for each in reversed(roots)]
    while stack:
        node = stack.pop()
        if node.recorded.offset in shown:
            continue
        shown.add(node.recorded.offset)
        yield node
        event = node.recorded.event
        beneath = children.get(event.span_id, []) if isinstance(event, Span) else []
        stack += [Node(node.depth + 1, each is beneath[-1], each) for each in reversed(beneath)]


# Lines


def _lines(found: Found) -> Iterator[Text]:
    yield from _head(found)
    yield Text()
    if found.cut:
        yield Text("its events are gone: retention has removed them; what the batch says:", style="yellow")
    sentences, totals = _sentences(found), _totals(found.samples)
    outcomes = {} if found.result is None else {each.reward_id: each for each in found.result.outcomes}
    shown = set()
    open_levels: list[bool] = []  # by depth: whether more siblings come
    for node in tree(found):
        del open_levels[node.depth :]
        line = Text(_guide(open_levels, node), style="dim")
        open_levels.append(not node.last)
        event = node.recorded.event
        if isinstance(event, Span):
            line.append_text(_span_line(event, totals))
        elif isinstance(event, RewardRecorded):
            shown.add(event.id)
            line.append_text(_reward_line(event, outcomes.get(event.id), sentences))
        yield line
    for reward_id, outcome in outcomes.items():
        if reward_id not in shown:  # its event is gone
            yield _sentence_line(outcome, sentences[reward_id])
    for offset, reason in found.unread[:UNREAD_SHOWN]:
        yield Text(f"offset {found.partition}:{offset} cannot be read: {_clean(reason)}", style="red")
    if len(found.unread) > UNREAD_SHOWN:
        yield Text(f"and {len(found.unread) - UNREAD_SHOWN} more events that cannot be read", style="red")


def _head(found: Found) -> Iterator[Text]:
    result, batch, started = found.result, found.batch, found.started
    split = result.split if result is not None else started.split if started is not None else "unknown"
    line = Text("rollout ")
    line.append(found.rollout_id, style="bold")
    line.append(_clean(f", attempt {found.attempt}, task {_task(found)}, group {found.group_id}, split {split}"))
    yield line
    if result is None:
        yield Text(_clean(f"{found.state}: {'; '.join(found.words)}"), style="yellow")
        yield Text(f"first event {found.partition}:{found.first_event}, {_version(_policy_version(found))}")
        return
    words = f"{result.status}" + (f": {result.reason}" if result.reason else "")
    yield Text(_clean(words), style="green" if result.status in _GOOD else "yellow")
    if result.error:
        yield Text(_clean(f"error: {result.error}"), style="red")
    yield Text(
        f"{result.turn_count} calls, {len(found.samples)} samples, {_version(result.policy_version)}, "
        f"final {', '.join(f'{_clean(name)} {value:g}' for name, value in result.final.items()) or 'none'}"
    )
    if batch is not None and found.published is not None:
        yield Text(
            _clean(
                f"batch {batch.batch_id} at {found.published.partition}:{found.published.offset}, closed "
                f"({batch.closed_reason}) by event {found.partition}:{batch.trigger}; events of the rollout "
                f"{found.partition}:{result.first_event} to {found.partition}:{result.closing_event}"
            ),
            style="dim",
        )


def _guide(open_levels: list[bool], node: Node) -> str:
    levels = open_levels[:LEVELS_MAX]
    beneath = "".join("│  " if goes_on else "   " for goes_on in levels[1:])
    if node.depth == 0:
        return ""
    deeper = f"[{node.depth} deep] " if node.depth > LEVELS_MAX else ""
    return beneath + ("└─ " if node.last else "├─ ") + deeper


def _span_line(span: Span, totals: Mapping[str, float | None]) -> Text:
    line = Text()
    line.append(f"{_clean(span.kind)} ", style=_STYLES.get(span.kind, ""))
    line.append(_clean(span.name))
    details = [_duration(span.end_ns - span.start_ns)]
    if span.kind == "call":
        details.insert(0, f"{_prompt_tokens(span)} + {len(span.response_ids or b'') // TOKEN_BYTES} tokens")
        details.insert(0, _clean(span.model or "no model"))
        versions = [run.policy_version for run in span.policy_version_runs if run.policy_version is not None]
        if versions:
            low, high = min(versions), max(versions)
            details.append(f"policy version {low}" if low == high else f"policy versions {low} to {high}")
    line.append(f"  {', '.join(details)}", style="dim")
    if span.status != "ok":
        line.append(f"  {_clean(span.status)}", style="bold red")
    if span.span_id in totals:
        total = totals[span.span_id]
        line.append("  total " + ("none" if total is None else f"{total:g}"), style="bold")
    line.append(f"  {_clean(span.span_id)}", style="dim")
    return line


def _reward_line(reward: RewardRecorded, outcome: RewardOutcome | None, sentences: Mapping[str, str]) -> Text:
    if outcome is not None:
        return _sentence_line(outcome, sentences[reward.id])
    value = "no value" if reward.value is None else f"{reward.value:g}"
    return Text(_clean(f"reward {reward.id} ({reward.name} {value}, {reward.scope}): not decided yet"), style="yellow")


def _sentence_line(outcome: RewardOutcome, sentence: str) -> Text:
    scorer = "" if outcome.scorer is None else f"; scorer {outcome.scorer} {outcome.scorer_version or ''}".rstrip()
    return Text(_clean(sentence + scorer), style="blue" if outcome.outcome in _GOOD else "yellow")


# What is said of it


def _sentences(found: Found) -> dict[str, str]:
    """A sentence for every reward that has an outcome."""
    if found.result is None:
        return {}
    targets = {
        each.event.id: (each.event.target.key, each.event.target.value)
        for each in found.events
        if isinstance(each.event, RewardRecorded) and each.event.target is not None
    }
    said = {}
    for outcome in found.result.outcomes:
        entry = RewardEntry(
            outcome.reward_id, outcome.value, outcome.name, outcome.scope, target=targets.get(outcome.reward_id)
        )
        reached = [sample.span_ids[-1] for sample in found.samples if outcome.name in sample.final]
        said[outcome.reward_id] = explain_recorded(
            entry, Outcome(outcome.outcome, outcome.calls, outcome.rule, outcome.found), reached
        )
    return said


def _totals(samples: tuple[Sample, ...]) -> dict[str, float | None]:
    """Total reward of each sample, at its last call."""
    return {sample.span_ids[-1]: sample.total for sample in samples}


def _task(found: Found) -> str | None:
    if found.result is not None:
        return found.result.task_id
    return None if found.started is None else found.started.task_id


def _policy_version(found: Found) -> int | None:
    if found.result is not None:
        return found.result.policy_version
    return None if found.started is None else found.started.policy_version


def _version(policy_version: int | None) -> str:
    return "policy version unknown" if policy_version is None else f"policy version {policy_version}"


def _duration(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.3g} s" if duration_ns >= 1e9 else f"{duration_ns / 1e6:.3g} ms"


def _prompt_tokens(span: Span) -> int:
    return span.prompt_base_tokens + len(span.prompt_ids or b"") // TOKEN_BYTES


def _metadata(found: Found) -> Any:
    given = b"" if found.result is None else found.result.metadata
    if found.result is None and found.started is not None:
        given = found.started.metadata
    return json.loads(given or b"{}")


def _span_json(node: Node, totals: Mapping[str, float | None]) -> dict[str, Any]:
    span = node.recorded.event
    assert isinstance(span, Span)
    found = {
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "depth": node.depth,
        "kind": span.kind,
        "name": span.name,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "status": span.status,
        "offset": node.recorded.offset,
    }
    if span.kind != "call":
        return found
    return {
        **found,
        "model": span.model,
        "prompt_tokens": _prompt_tokens(span),
        "response_tokens": len(span.response_ids or b"") // TOKEN_BYTES,
        "total": totals.get(span.span_id),
        "sampled": span.span_id in totals,
    }


def _reward_json(recorded: Recorded, outcome: RewardOutcome | None, sentences: Mapping[str, str]) -> dict[str, Any]:
    reward = recorded.event
    assert isinstance(reward, RewardRecorded)
    return {
        "reward_id": reward.id,
        "name": reward.name,
        "value": reward.value,
        "scope": reward.scope,
        "parent_id": reward.parent_id,
        "after_call": reward.after_call,
        "target": None if reward.target is None else {reward.target.key: reward.target.value},
        "supersedes": reward.supersedes,
        "offset": recorded.offset,
        "outcome": None if outcome is None else outcome.outcome,
        "explained": sentences.get(reward.id),
    }


def _outcome_json(outcome: RewardOutcome, sentences: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "value": outcome.value,
        "scope": outcome.scope,
        "outcome": outcome.outcome,
        "rule": outcome.rule,
        "calls": list(outcome.calls),
        "found": list(outcome.found),
        "scorer": outcome.scorer,
        "scorer_version": outcome.scorer_version,
        "offset": outcome.offset,
        "explained": sentences[outcome.reward_id],
    }


def _clean(text: str) -> str:
    """Without what would move a terminal's cursor or colours: names and ids come from anyone."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)
