"""Chat trajectories in OpenAI message form, as events of a rollout.

One trajectory is one rollout. Each assistant message is a call whose prompt is all messages before it; tool calls are
tool spans beside it; the trajectory's reward is a rollout-scope reward. Text is rendered so that a call's prompt and
answer together begin the next call's prompt. Token ids are the text's UTF-8 bytes, or those of a given vocabulary.

`parse_trajectory` refuses a line by the name of the field; `trajectory_events` makes the same events for the same line
every time, but for their times. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlog.consumers.importing.chat import (
    NAME_CHARACTERS_MAX,
    check_message,
    check_utf8,
    json_text,
    parse_object,
    tool_results,
)
from rolloutlog.consumers.importing.inputs import Input
from rolloutlog.consumers.importing.rendering import Bytes, Renderer, Rendering
from rolloutlog.consumers.importing.rollouts import Envelope, Parsed, id_prefix, source_of
from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    ROLLOUT,
    Event,
    RewardRecorded,
    RolloutCompleted,
    RolloutStarted,
    Span,
)
from rolloutlog.eventstore.prompts import PromptShare
from rolloutlog.eventstore.rewards import check_reward

STEP_NS = 1_000  # trajectories carry no times: calls are a microsecond apart, in their order


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One line. `task_id` and `trial` as text; `reward` None = the line has none."""

    line: int
    task_id: str
    trial: str
    reward: float | None
    messages: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class MessagesRollout:
    """A trajectory as `importing.rollouts` takes it."""

    trajectory: Trajectory
    rendering: Rendering

    @property
    def group(self) -> str:
        return self.trajectory.task_id

    def events(self, digest: str, *, group_size: int, run_id: str, time_ns: int) -> Iterator[Event]:
        return trajectory_events(
            self.trajectory,
            digest,
            group_size=group_size,
            run_id=run_id,
            time_ns=time_ns,
            rendering=self.rendering,
        )


def parse_messages(file: Input, rendering: Rendering) -> Iterator[Parsed]:
    """The trajectories of a file, one a line."""
    for line in file.lines():
        try:
            if line.fault is not None:
                raise line.fault
            yield line.place, MessagesRollout(parse_trajectory(line.text, line.number), rendering)
        except InvalidEvent as error:
            yield line.place, error


def parse_trajectory(text: bytes, line: int) -> Trajectory:
    """Read one line, from 1. Raises InvalidEvent naming the field, what was expected and what came."""
    record = parse_object(text)
    given = [name for name in ("traj", "messages") if name in record]
    if len(given) != 1:
        raise refused("one of traj and messages", f"{len(given)} of them", "messages")
    messages = record[given[0]]
    if not isinstance(messages, list):
        raise refused("a list of messages", messages, given[0])
    for index, message in enumerate(messages):
        check_message(message, f"{given[0]}[{index}]")
    return Trajectory(
        line,
        _name(record, "task_id"),
        _name(record, "trial") if "trial" in record else "0",
        parse_reward(record.get("reward"), "reward"),
        tuple(messages),
    )


def parse_reward(value: Any, field: str) -> float | None:
    """A reward of a file; None = it has none. Raises InvalidEvent naming `field`."""
    try:
        check_reward(value=value, name="reward", scope=ROLLOUT, target=None)
    except InvalidEvent as error:
        raise refused("a finite number or null", value, field) from error
    return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Imported:
    """Identities of one imported trajectory, derived from the file's digest, task, trial and line."""

    rollout_id: str
    group_id: str
    source: str


def identities(trajectory: Trajectory, digest: str) -> Imported:
    prefix = id_prefix(digest)
    rollout_id = f"{prefix}-{trajectory.task_id}-{trajectory.trial}-{trajectory.line}"
    return Imported(rollout_id, f"{prefix}-{trajectory.task_id}", source_of(digest, rollout_id))


def trajectory_events(
    trajectory: Trajectory,
    digest: str,
    *,
    group_size: int,
    run_id: str,
    time_ns: int,
    rendering: Rendering | None = None,
) -> Iterator[Event]:
    """The rollout's events, numbered from 0.

    time_ns    when the import began, UTC nanoseconds
    rendering  of token ids; None = UTF-8 bytes
    """
    which = identities(trajectory, digest)
    renderer = Renderer(Bytes() if rendering is None else rendering)
    share = PromptShare()
    shared_messages: dict[str, int] = {}
    envelope = Envelope(which.rollout_id, which.source, time_ns)
    yield RolloutStarted(
        **envelope.next(),
        run_id=run_id,
        task_id=trajectory.task_id,
        group_id=which.group_id,
        group_size=group_size,
        metadata=json_text({"trial": trajectory.trial, "line": trajectory.line}),
    )
    for index, message in enumerate(trajectory.messages):
        if message["role"] != "assistant":
            continue
        at_ns = time_ns + index * STEP_NS
        prompt, answer = renderer.prompt(trajectory.messages[:index]), renderer.answer(message)
        shared = share.share(prompt)
        span_id = f"call-{index}"
        before = shared_messages.get(shared.prompt_base or "", 0)
        yield Span(
            **envelope.next(),
            span_id=span_id,
            name="chat",
            kind="call",
            start_ns=at_ns,
            end_ns=at_ns,
            prompt_base=shared.prompt_base,
            prompt_base_tokens=shared.prompt_base_tokens,
            prompt_ids=shared.prompt_ids,
            response_ids=answer,
            messages=json_text(trajectory.messages[before : index + 1]),
        )
        share.remember(span_id, prompt, answer)
        shared_messages[span_id] = index + 1
        for number, (name, attributes) in enumerate(tool_results(trajectory.messages, index)):
            yield Span(
                **envelope.next(),
                span_id=f"tool-{index}-{number}",
                name=name,
                kind="tool",
                start_ns=at_ns + number + 1,
                end_ns=at_ns + number + 1,
                attributes=json_text(attributes),
            )
    if trajectory.reward is not None:
        yield RewardRecorded(**envelope.next(), value=trajectory.reward, scope=ROLLOUT)
    yield RolloutCompleted(**envelope.next())


def _name(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if type(value) not in (str, int) or value == "" or len(str(value)) > NAME_CHARACTERS_MAX:
        raise refused(f"text or an integer of 1 to {NAME_CHARACTERS_MAX} characters", value, field)
    check_utf8(str(value), field)
    return str(value)
