"""One rollout, for people: what happened in it, and where each reward went.

`lines` gives text with styles, `render` the same as one object. A reward stands at the span where it was emitted, with
a sentence that says which calls it counts for and why, or what would have to change.

Not here   finding it: finding; the sentences: account; for programs: explain_json
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from rolloutlog.consumers.batches import RewardOutcome
from rolloutlog.consumers.explaining.account import Account, account_of
from rolloutlog.consumers.explaining.columns import many, number
from rolloutlog.consumers.explaining.comparison import Comparison
from rolloutlog.consumers.explaining.explain_tables import comparison_lines
from rolloutlog.consumers.explaining.extra_info_shown import extra_text
from rolloutlog.consumers.explaining.finding import Found, Recorded, find_rollout
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.times import exact_time
from rolloutlog.eventstore.events import RewardRecorded, Span
from rolloutlog.eventstore.tokens import TOKEN_BYTES

__all__ = ["Found", "find_rollout", "lines", "render", "tree"]

LEVELS_MAX = 24  # of indentation; deeper ones say how deep they are
UNREAD_SHOWN = 5
SAMPLES_SHOWN = 5
EXTRA_INDENT = "   "

_STYLES = {"agent": "bold cyan", "call": "bold green", "tool": "yellow", "evaluator": "magenta"}
_GOOD = ("emitted", "attributed", "final")
_NOT_SELECTED = "not selected"


@dataclass(frozen=True, slots=True)
class Node:
    """A span or reward and its place in the tree. `last`: the last child of its parent."""

    depth: int
    last: bool
    recorded: Recorded


def render(found: Found) -> RenderableType:
    """Lines of text with styles; without colours when they are not printed to a terminal."""
    return Group(*lines(account_of(found)))


def lines(account: Account, comparison: Comparison | None = None) -> Iterator[Text]:
    """A rollout line by line, and below it how it would be under other settings."""
    yield from _lines(account)
    if comparison is not None:
        yield Text()
        yield from comparison_lines(comparison)


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


def _lines(account: Account) -> Iterator[Text]:
    found = account.found
    yield from _head(account)
    yield Text()
    if found.cut:
        yield Text(_gone(found), style="yellow")
    sentences, outcomes, rewards = account.sentences, account.outcomes, account.rewards
    totals = dict.fromkeys(account.not_selected, _NOT_SELECTED) | _totals_in_words(found.samples)
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
        if isinstance(event, RewardRecorded):
            yield from extra_lines(event.extra_info, _guide_beneath(open_levels))
    for reward_id, outcome in outcomes.items():
        if reward_id not in shown:  # its event is gone, or a scorer gave it
            yield _sentence_line(outcome, sentences[reward_id])
            if reward_id in rewards:
                yield from extra_lines(rewards[reward_id].extra_info)
    if not rewards.keys() >= outcomes.keys():
        yield from _samples_extra(found.samples)
    for offset, reason in found.unread[:UNREAD_SHOWN]:
        yield Text(f"offset {found.partition}:{offset} cannot be read: {printable(reason)}", style="red")
    if len(found.unread) > UNREAD_SHOWN:
        yield Text(f"and {len(found.unread) - UNREAD_SHOWN} more events that cannot be read", style="red")


def _gone(found: Found) -> str:
    if found.archived:
        return "its events are gone, or some of them: they were lost before they were archived. What the batch says:"
    gone = "its events are gone: retention has removed them"
    return f"{gone}; --archive URL reads them from an archive. What the batch says:"


def _head(account: Account) -> Iterator[Text]:
    found = account.found
    result, batch, started = found.result, found.batch, found.started
    split = result.split if result is not None else started.split if started is not None else "unknown"
    line = Text("rollout ")
    line.append(printable(found.rollout_id), style="bold")
    line.append(printable(f", attempt {found.attempt}, task {task_of(found)}, group {found.group_id}, split {split}"))
    yield line
    if result is None:
        yield Text(printable(f"{found.state}: {'; '.join(found.words)}"), style="yellow")
        yield Text(f"first event {found.partition}:{found.first_event}, {_version(policy_version_of(found))}")
        return
    words = f"{result.status}" + (f": {result.reason}" if result.reason else "")
    for each in words.splitlines():  # of a policy that failed, with its traceback
        yield Text(printable(each), style="green" if result.status in _GOOD else "yellow")
    for each in f"error: {result.error}".splitlines() if result.error else ():
        yield Text(printable(each), style="red")
    yield Text(
        f"{many(result.turn_count, 'call')}, {many(len(found.samples), 'sample')}, {_version(result.policy_version)}, "
        f"final {', '.join(f'{printable(name)} {value:g}' for name, value in result.final.items()) or 'none'}"
    )
    if batch is not None and found.published is not None:
        yield Text(
            printable(
                f"batch {batch.batch_id} at {found.published.partition}:{found.published.offset}, closed "
                f"({batch.closed_reason}) at {exact_time(batch.closed_ns)} by event {found.partition}:{batch.trigger}; "
                f"events of the rollout {found.partition}:{result.first_event} to "
                f"{found.partition}:{result.closing_event}"
            ),
            style="dim",
        )
        if account.settings is None and not found.cut:
            yield Text(
                f"its assembler's settings (hash {batch.config_hash}) are not at hand, none here give the same: "
                "--settings FILE",
                style="dim",
            )


def _guide(open_levels: list[bool], node: Node) -> str:
    levels = open_levels[:LEVELS_MAX]
    beneath = "".join("│  " if goes_on else "   " for goes_on in levels[1:])
    if node.depth == 0:
        return ""
    deeper = f"[{node.depth} deep] " if node.depth > LEVELS_MAX else ""
    return beneath + ("└─ " if node.last else "├─ ") + deeper


def _guide_beneath(open_levels: list[bool]) -> str:
    """Of a further line of what was shown last."""
    return "".join("│  " if goes_on else "   " for goes_on in open_levels[1 : LEVELS_MAX + 1]) + EXTRA_INDENT


def extra_lines(encoded: bytes, guide: str = EXTRA_INDENT) -> Iterator[Text]:
    """A reward's extra info beneath it, where it has any."""
    text = extra_text(encoded)
    if text:
        yield Text(guide + text, style="dim")


def _samples_extra(samples: tuple[Sample, ...]) -> Iterator[Text]:
    """Joined from that of the rewards that count for each: all that is left of rewards that are recorded nowhere."""
    with_info = [(sample, text) for sample in samples if (text := extra_text(sample.extra_info))]
    for sample, text in with_info[:SAMPLES_SHOWN]:
        yield Text(printable(f"sample {sample.sample_id}: ") + text, style="dim")
    if len(with_info) > SAMPLES_SHOWN:
        more = many(len(with_info) - SAMPLES_SHOWN, "more sample")
        yield Text(f"and {more} with extra_info (all of them with --json)", style="dim")


def _span_line(span: Span, totals: Mapping[str, str]) -> Text:
    line = Text()
    line.append(f"{printable(span.kind)} ", style=_STYLES.get(span.kind, ""))
    line.append(printable(span.name))
    details = [_duration(span.end_ns - span.start_ns)]
    if span.kind == "call":
        details.insert(0, f"{prompt_tokens(span)} + {len(span.response_ids or b'') // TOKEN_BYTES} tokens")
        details.insert(0, printable(span.model or "no model"))
        versions = [run.policy_version for run in span.policy_version_runs if run.policy_version is not None]
        if versions:
            low, high = min(versions), max(versions)
            details.append(f"policy version {low}" if low == high else f"policy versions {low} to {high}")
    line.append(f"  {', '.join(details)}", style="dim")
    if span.status != "ok":
        line.append(f"  {printable(span.status)}", style="bold red")
    if span.span_id in totals:
        total = totals[span.span_id]
        line.append(f"  {printable(total)}", style="yellow" if total == _NOT_SELECTED else "bold")
    line.append(f"  {printable(span.span_id)}", style="dim")
    return line


def _reward_line(reward: RewardRecorded, outcome: RewardOutcome | None, sentences: Mapping[str, str]) -> Text:
    if outcome is not None:
        return _sentence_line(outcome, sentences[reward.id])
    value = "no value" if reward.value is None else f"{reward.value:g}"
    undecided = f"reward {reward.id} ({reward.name} {value}, {reward.scope}): not decided yet"
    return Text(printable(sentences.get(reward.id, undecided)), style="yellow")


def _sentence_line(outcome: RewardOutcome, sentence: str) -> Text:
    scorer = "" if outcome.scorer is None else f"; scorer {outcome.scorer} {outcome.scorer_version or ''}".rstrip()
    return Text(printable(sentence + scorer), style="blue" if outcome.outcome in _GOOD else "yellow")


# What is said of it


def _totals_in_words(samples: tuple[Sample, ...]) -> dict[str, str]:
    """What stands at each call of a sample: a row of several calls has one total, and their last call bears it."""
    words: dict[str, str] = {}
    for sample in samples:
        *others, last = sample.span_ids
        words.update(dict.fromkeys(others, f"in the row of {last}"))
        row = f" of the row of {len(sample.span_ids)} calls" if others else ""
        words[last] = f"total {number(sample.total)}{row}"
    return words


def totals_of(samples: tuple[Sample, ...]) -> dict[str, float | None]:
    """Total reward of each sample, at its last call."""
    return {sample.span_ids[-1]: sample.total for sample in samples}


def task_of(found: Found) -> str | None:
    if found.result is not None:
        return found.result.task_id
    return None if found.started is None else found.started.task_id


def policy_version_of(found: Found) -> int | None:
    if found.result is not None:
        return found.result.policy_version
    return None if found.started is None else found.started.policy_version


def _version(policy_version: int | None) -> str:
    return "policy version unknown" if policy_version is None else f"policy version {policy_version}"


def _duration(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.3g} s" if duration_ns >= 1e9 else f"{duration_ns / 1e6:.3g} ms"


def prompt_tokens(span: Span) -> int:
    return span.prompt_base_tokens + len(span.prompt_ids or b"") // TOKEN_BYTES
