"""SWE-agent's trajectories (`INSTANCE.traj`), as events of a rollout.

One file is one rollout, files of one instance are one group. A step with an answer is a call: its prompt is the
messages that the step was shown (`query`, before 1.1.0 `messages`), or where the file has none, those of `history`
before the answer. An action is a tool span beside it, with what was observed. What came of it all (`info`) stands in
the span of the agent around them; the verdict of an evaluation is the rollout's reward.

Ended   `exit_status` submitted, or given up by the agent or a limit: completed. By an error of the model's server or of
        the environment, or without any status: failed, which is no reward of 0
Times   files carry none: steps are a microsecond apart, in their order
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from rolloutlog.consumers.importing.chat import check_message, check_plain, check_utf8, json_text, parse_object
from rolloutlog.consumers.importing.inputs import Input
from rolloutlog.consumers.importing.messages import parse_reward
from rolloutlog.consumers.importing.rendering import Message, Renderer, Rendering
from rolloutlog.consumers.importing.rollouts import Envelope, Parsed, id_prefix, short, source_of
from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.conversation import Conversation
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    COMPLETED,
    FAILED,
    ROLLOUT,
    Event,
    RewardRecorded,
    RolloutCompleted,
    RolloutStarted,
    Span,
)
from rolloutlog.eventstore.recording import make_recording

SUFFIXES = (".traj", ".traj.gz")
AGENT = "agent"
STEP_NS = 1_000
FAULTS = ("exit_error", "exit_api", "exit_environment_error")  # of what the agent ran on, not of the agent
TOOL_CHARACTERS_MAX = 80

_KEPT = ("role", "content", "name", "tool_calls", "tool_call_id")  # of a message; the rest is the agent's bookkeeping
_INFO = ("exit_status", "model_stats", "swe_agent_hash", "swe_agent_version")  # what travels with the batch


@dataclass(frozen=True, slots=True)
class Step:
    """`prompt` None = the step has no answer that could be a call."""

    prompt: tuple[Message, ...] | None
    answer: Message
    action: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SweRollout:
    """One file. `instance`: what it is called, and its task; `number`: of the file in the import, from 1."""

    instance: str
    number: int
    steps: tuple[Step, ...]
    info: Mapping[str, Any]
    reward: float | None
    rendering: Rendering

    @property
    def group(self) -> str:
        return self.instance

    def events(self, digest: str, *, group_size: int, run_id: str, time_ns: int) -> Iterator[Event]:
        prefix = id_prefix(digest)
        rollout_id = f"{prefix}-{short(self.instance)}-{self.number}"
        envelope = Envelope(rollout_id, source_of(digest, rollout_id), time_ns)
        metadata = {name: self.info[name] for name in _INFO if self.info.get(name) is not None}
        yield RolloutStarted(
            **envelope.next(),
            run_id=run_id,
            task_id=short(self.instance),
            group_id=f"{prefix}-{short(self.instance)}",
            group_size=group_size,
            metadata=json_text({"instance_id": self.instance, **metadata}),
        )
        renderer, conversation = Renderer(self.rendering), Conversation()
        for index, step in enumerate(self.steps):
            at_ns = time_ns + (index + 1) * STEP_NS
            if step.prompt is not None:
                yield self._call(envelope, renderer, conversation, step, index, at_ns)
            if step.action:
                yield Span(
                    **envelope.next(),
                    span_id=f"action-{index}",
                    parent_id=AGENT,
                    name=_tool_name(step.action),
                    kind="tool",
                    start_ns=at_ns + 1,
                    end_ns=at_ns + 1,
                    attributes=json_text(step.attributes),
                )
        yield Span(
            **envelope.next(),
            span_id=AGENT,
            name="swe-agent",
            kind="agent",
            start_ns=time_ns,
            end_ns=time_ns + (len(self.steps) + 1) * STEP_NS,
            attributes=json_text(dict(self.info)),
        )
        if self.reward is not None:
            yield RewardRecorded(**envelope.next(), name="resolved", value=self.reward, scope=ROLLOUT)
        status, error = _status(self.info)
        yield RolloutCompleted(**envelope.next(), status=status, error=error)

    def _call(
        self,
        envelope: Envelope,
        renderer: Renderer,
        conversation: Conversation,
        step: Step,
        index: int,
        at_ns: int,
    ) -> Span:
        assert step.prompt is not None
        recording = make_recording(
            prompt_ids=renderer.prompt(step.prompt),
            response_ids=renderer.answer(step.answer),
            logprobs=None,
            response_id=None,
            choice_index=0,
            finish_reason=None,
            messages=step.prompt,
            arrays=None,
            trainable=True,
            policy_version=None,
        )
        fields = conversation.fields(recording)
        span = Span(
            **envelope.next(),
            span_id=f"call-{index}",
            parent_id=AGENT,
            name="chat",
            kind="call",
            start_ns=at_ns,
            end_ns=at_ns,
            attributes=json_text({"answer": step.answer}),
            **fields,
        )
        conversation.remember(span.span_id, recording, fields)
        return span


@dataclass(frozen=True, slots=True)
class SweFile:
    """A file to read, with the verdicts of the evaluation that belongs to it."""

    file: Input
    rewards: Mapping[str, float]


def find_files(paths: Sequence[Path]) -> list[tuple[int, Path]]:
    """Trajectory files at these paths, and below where one is a folder, sorted; with the index of the path.

    Raises  OSError for a folder that cannot be read: nobody knows what it holds
    """
    found = []
    for index, path in enumerate(paths):
        found += [(index, each) for each in (sorted(_inside(path)) if path.is_dir() else [path])]
    return found


def _inside(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for below, _, names in os.walk(folder, onerror=refuse):
        paths = (Path(below, name) for name in names if name.endswith(SUFFIXES))
        yield from (path for path in paths if path.is_file())


def parse_files(files: Sequence[SweFile], rendering: Rendering) -> Iterator[Parsed]:
    for number, each in enumerate(files, 1):
        try:
            yield each.file.name, parse_trajectory(each.file, each.rewards, number, rendering)
        except InvalidEvent as error:
            yield each.file.name, error
        except OSError as error:
            yield (
                each.file.name,
                InvalidEvent(f"expected a file that can be read, got none ({error.strerror or error})"),
            )


def parse_trajectory(file: Input, rewards: Mapping[str, float], number: int, rendering: Rendering) -> SweRollout:
    """Read one file. Raises InvalidEvent naming the field, what was expected and what came."""
    record = parse_object(file.read(), "a JSON object of SWE-agent")
    instance = instance_of(file.path)
    info = record.get("info")
    if info is None:
        info = {}
    if not isinstance(info, dict):
        raise refused("an object", info, "info")
    _check_json(info, "info")
    given = record.get("trajectory")
    if not isinstance(given, list):
        raise refused("a list of steps", given, "trajectory")
    answers = _answers(record.get("history"))
    by_history = len(answers) == len(given)
    steps = []
    for index, step in enumerate(given):
        known = answers[index] if by_history else None
        steps.append(_step(step, known, f"trajectory[{index}]"))
    reward = record.get("reward", info.get("reward"))
    return SweRollout(
        instance,
        number,
        tuple(steps),
        info,
        rewards[instance] if reward is None and instance in rewards else parse_reward(reward, "reward"),
        rendering,
    )


def instance_of(path: PurePath) -> str:
    name = path.name.encode(errors="replace").decode()
    for suffix in (".gz", ".traj"):
        name = name.removesuffix(suffix)
    return name


def _step(step: Any, known: tuple[tuple[Message, ...], Message] | None, field: str) -> Step:
    if not isinstance(step, dict):
        raise refused("a step, which is a JSON object", step, field)
    texts = {}
    for name in ("response", "action", "observation", "thought"):
        value = step.get(name)
        texts[name] = "" if value is None else value
        if not isinstance(texts[name], str):
            raise refused("text", value, f"{field}.{name}")
        check_utf8(texts[name], f"{field}.{name}")
    _check_json(step.get("state"), f"{field}.state")
    _check_json(step.get("execution_time"), f"{field}.execution_time")
    shown: Sequence[Message] | None = None
    for name in ("query", "messages"):
        if step.get(name):
            shown = _messages(step[name], f"{field}.{name}")
            break
    answer: Message = {"role": "assistant", "content": texts["response"]}
    if known is not None:
        shown = shown or known[0]
        if known[1].get("tool_calls"):
            answer = {**answer, "tool_calls": known[1]["tool_calls"]}
    answered = bool(texts["response"] or answer.get("tool_calls"))
    attributes = {name: texts[name] for name in ("action", "observation", "thought")}
    for name in ("state", "execution_time"):
        if step.get(name) is not None:
            attributes[name] = step[name]
    if answered and shown is None:
        raise refused("what the step was shown, as query or messages, or a history", "none", field, quote=False)
    return Step(tuple(shown or ()) if answered else None, answer, texts["action"], attributes)


def _answers(history: Any) -> list[tuple[tuple[Message, ...], Message]]:
    """Each answer of the agent in `history`, demonstrations left out, and the messages before it."""
    if history is None:
        return []
    items = _messages(history, "history")
    demos = [bool(item.get("is_demo")) for item in history if item != {}]
    return [
        (tuple(items[:index]), item)
        for index, (item, demo) in enumerate(zip(items, demos, strict=True))
        if item["role"] == "assistant" and not demo
    ]


def _messages(given: Any, field: str) -> list[Message]:
    """Messages with what a model is shown of them. Raises InvalidEvent naming the field."""
    if not isinstance(given, list):
        raise refused("a list of messages", given, field)
    messages = []
    for index, item in enumerate(given):
        if item == {}:
            continue  # what a step that was given up is shown
        message = {name: item[name] for name in _KEPT if item.get(name) is not None} if isinstance(item, dict) else item
        if isinstance(message, dict) and message.get("role") == "tool" and not message.get("tool_call_id"):
            ids = item.get("tool_call_ids")
            if isinstance(ids, list) and len(ids) == 1:
                message["tool_call_id"] = ids[0]
        check_message(message, f"{field}[{index}]")
        messages.append(message)
    return messages


def _check_json(value: Any, field: str) -> None:
    check_plain({"": value}, field)


def _tool_name(action: str) -> str:
    """The command: the action's first word."""
    words = action.split(None, 1)
    return words[0][:TOOL_CHARACTERS_MAX] if words else "action"


def _status(info: Mapping[str, Any]) -> tuple[str, str | None]:
    status = info.get("exit_status")
    if status is None or status == "":
        return FAILED, "no exit_status: the agent did not come to an end"
    text = str(status)
    return (FAILED, text) if text in FAULTS else (COMPLETED, None)
