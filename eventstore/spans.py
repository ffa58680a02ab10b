"""Blocks of a rollout's work: what `rollout.agent(...)`, `rollout.call(...)` and the like give, attached or not.

A block works with `with` and with `async with`, once. Its span event is published when it is left: status `error` when
an exception leaves it, else `ok`. What can't be recorded then raises, unless the block is left by an exception already,
which is never hidden: the fault is logged and added to it as a note.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import numpy.typing as npt

from rolloutlog.eventstore import scope as _scope
from rolloutlog.eventstore.checks import (
    INT64_MAX,
    check_id,
    check_integer,
    check_text,
    plain_integer,
    refused,
    say_where,
)
from rolloutlog.eventstore.conversation import Conversation
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Span
from rolloutlog.eventstore.json_text import json_bytes
from rolloutlog.eventstore.recording import PolicyVersion, Recording, make_recording, plain_policy_version
from rolloutlog.eventstore.scope import NotOpen
from rolloutlog.eventstore.source import new_id
from rolloutlog.eventstore.tokens import Logprobs, TokenIds

if TYPE_CHECKING:
    from rolloutlog.eventstore.recorder import Recorder, RewardValue

ERROR_CHARACTERS_MAX = 4_096


class SpanOptions(TypedDict, total=False):
    """Keywords of every block, for work that is recorded afterwards or has an id elsewhere.

    span_id           identity within the attempt, once in it; else random
    start_ns, end_ns  UTC nanoseconds; else when the block is entered and left
    links             ids of spans this one refers to
    """

    span_id: str | None
    start_ns: int | None
    end_ns: int | None
    links: Iterable[str]


class RewardOptions(TypedDict, total=False):
    """Further keywords of a reward, as `Rollout.reward` takes them."""

    target: Mapping[str, str] | None
    extra_info: Mapping[str, Any] | None
    reward_id: str | None
    supersedes: str | None
    scorer: str | None
    scorer_version: str | None
    scope: str


class SpanBlock:
    """A piece of work. `span_id` is known before the block is entered; keywords: SpanOptions."""

    def __init__(
        self,
        recorder: "Recorder",
        name: str,
        *,
        kind: str,
        span_id: str | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        links: Iterable[str] = (),
    ) -> None:
        start_ns, end_ns = plain_integer(start_ns), plain_integer(end_ns)
        try:
            check_id(name, "name")
            if span_id is not None:
                check_id(span_id, "span_id")
            for field, time_ns in (("start_ns", start_ns), ("end_ns", end_ns)):
                if time_ns is not None:
                    check_integer(time_ns, field, 0, INT64_MAX)
            links = _texts(links, "links")
        except InvalidEvent as error:
            say_where(error, Span.record, recorder.rollout_id, recorder.attempt)
            raise
        self.span_id = new_id(8) if span_id is None else span_id
        self.name = name
        self.kind = kind
        self.given_id = span_id is not None
        self._recorder = recorder
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._links = links
        self._parent_id: str | None = None
        self._attributes: dict[str, bytes] = {}
        self._entered = False
        self._ended = False

    def set(self, **attributes: Any) -> None:
        """Set attributes: values that JSON can hold, as they are now.

        Raises  InvalidEvent naming the attribute; NotOpen before the block is entered and after it is left
        """
        self._require_open("set")
        packed = {}
        for key, value in attributes.items():
            try:
                packed[key] = json_bytes(value, f"attributes.{key}")
            except InvalidEvent as error:
                say_where(error, f"Span {self.name!r}", self._recorder.rollout_id, self._recorder.attempt)
                raise
        self._attributes.update(packed)

    def reward(self, value: "RewardValue", name: str | None = None, **fields: Unpack[RewardOptions]) -> str:
        """`Rollout.reward`, emitted in this block wherever the code is now: in another thread, or after its end.

        Raises  InvalidEvent naming the field; NotOpen before the block is entered and after the rollout's end
        """
        if not self._entered:
            raise NotOpen(
                f"reward refused: block {self.name!r} of rollout {self._recorder.rollout_id} was not entered, and the "
                f"reward would be linked to nothing; use `with rollout.{self.kind}(...) as {self.kind}:` first"
            )

        def emit() -> str:
            return self._recorder.reward(value, name, **fields)

        if _scope.enclosing_span(self._recorder) == self.span_id:
            return emit()
        return _scope.run_in_block(self._recorder, self.span_id, emit)

    def begin(self, now_ns: int, parent_id: str | None) -> None:
        """Called by its recorder when the block is entered."""
        if self._entered:
            raise NotOpen(f"block {self.name!r} was entered before; make a new one for each time")
        self._entered = True
        self._parent_id = parent_id
        if self._start_ns is None:
            self._start_ns = now_ns

    def end(self, now_ns: int, failure: BaseException | str | None) -> dict[str, Any]:
        """Called by its recorder when the block is left: the fields of its span event."""
        self._ended = True
        start_ns = now_ns if self._start_ns is None else self._start_ns
        attributes = dict(self._attributes)
        if failure is not None:
            attributes.setdefault("error", json_bytes(describe(failure), "attributes.error"))
        text = b",".join(json_bytes(key, "attributes") + b":" + value for key, value in attributes.items())
        return {
            "span_id": self.span_id,
            "parent_id": self._parent_id,
            "name": self.name,
            "kind": self.kind,
            "start_ns": start_ns,
            "end_ns": max(start_ns, now_ns) if self._end_ns is None else self._end_ns,
            "status": "ok" if failure is None else "error",
            "attributes": b"{" + text + b"}" if text else b"",
            "links": self._links,
        }

    def _require_open(self, what: str) -> None:
        if not self._entered:
            raise NotOpen(
                f"{what} refused: block {self.name!r} of rollout {self._recorder.rollout_id} was not entered, and "
                f"would lose it; use `with rollout.{self.kind}(...) as {self.kind}:` and `{self.kind}.{what}(...)` "
                "within"
            )
        if self._ended:
            raise NotOpen(
                f"block {self.name!r} of rollout {self._recorder.rollout_id} has ended; nothing more can be recorded "
                "in it"
            )
        if not self._recorder.holds(self):
            raise NotOpen(
                f"{what} refused: block {self.name!r} of rollout {self._recorder.rollout_id} was entered before this "
                "process was forked, and is recorded by the process that entered it; open one here"
            )

    def __enter__(self) -> Self:
        self._recorder.enter_block(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.leave_block(self, error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class CallBlock(SpanBlock):
    """A block in which the policy answers. `record` takes the answer; without it the span has no tokens.

    policy_version  of the weights that answer; None = as the rollout started
    """

    def __init__(
        self,
        recorder: "Recorder",
        name: str,
        *,
        model: str | None,
        policy_version: PolicyVersion,
        **span: Unpack[SpanOptions],
    ) -> None:
        super().__init__(recorder, name, kind="call", **span)
        try:
            check_text(model, "model")
            self._policy_version = plain_policy_version(policy_version)
        except InvalidEvent as error:
            say_where(error, Span.record, recorder.rollout_id, recorder.attempt)
            raise
        self.model = model
        self._recording: Recording | None = None

    def record(
        self,
        *,
        prompt_ids: TokenIds | None = None,
        response_ids: TokenIds | None = None,
        logprobs: Logprobs | None = None,
        response_id: str | None = None,
        choice_index: int = 0,
        finish_reason: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        arrays: Mapping[str, npt.ArrayLike] | None = None,
        trainable: bool = True,
        policy_version: PolicyVersion = None,
    ) -> None:
        """Record the answer, once. It is queued when the block is left: after an error this can be called again.

        prompt_ids, response_ids  token ids from 0 to 2**31 - 1: lists, numpy arrays, or int32 little-endian bytes. Give
                                  the whole prompt: what an earlier call has is stored once
        logprobs        natural log, finite, one per response token: a list, numpy array, or float32 little-endian bytes
        response_id     the server's id of the answer, under which a reward or another recorder's span finds this call
        messages        the chat messages of the prompt, all of them; those of the earlier call are stored once
        arrays          name → values whose first axis is the response tokens
        policy_version  an integer, or runs of (version or None, tokens) over the response; None = the call's
        Raises          InvalidEvent naming the field, what was expected and what came; NotOpen outside of the block

        A response needs its prompt: one without `prompt_ids` is refused, since it would be trained on as if nothing had
        come before (an empty list says that). Without `response_ids`, or with none in it, the call is recorded and
        never trained on or rewarded, unless another span with its `response_id` has the tokens. Neither token ids nor
        `response_id` nor `messages` is nothing to record, and refused.
        """
        self._require_open("record")
        version = self._policy_version if policy_version is None else policy_version
        if self._recording is not None:
            error = InvalidEvent(
                f"expected one answer a call, got a second in {self.name!r}; open a call for each choice",
                reason="recorded_twice",
            )
            say_where(error, Span.record, self._recorder.rollout_id, self._recorder.attempt)
            raise error
        try:
            recording = make_recording(
                prompt_ids=prompt_ids,
                response_ids=response_ids,
                logprobs=logprobs,
                response_id=response_id,
                choice_index=choice_index,
                finish_reason=finish_reason,
                messages=messages,
                arrays=arrays,
                trainable=trainable,
                policy_version=version,
            )
        except InvalidEvent as error:
            say_where(error, Span.record, self._recorder.rollout_id, self._recorder.attempt)
            raise
        self._recorder.check_recording(self, recording)
        self._recording = recording

    def call_fields(self, conversation: Conversation) -> dict[str, Any]:
        """The fields of the span event that belong to calls."""
        fields: dict[str, Any] = {"model": self.model}
        if self._recording is not None:
            fields.update(conversation.fields(self._recording))
        return fields

    def check_fields(self, recording: Recording) -> dict[str, Any]:
        """As they will be, but for what earlier calls have: enough to check them."""
        return {"model": self.model, "prompt_ids": recording.prompt_ids, **recording.fields}

    def remember(self, conversation: Conversation, fields: dict[str, Any]) -> None:
        """The event is recorded: later calls may begin with this one."""
        if self._recording is not None:
            conversation.remember(self.span_id, self._recording, fields)

    @property
    def answered(self) -> bool:
        """Whether attribution can find it: it has an answer's tokens, or the id under which another span has them."""
        if self._recording is None:
            return False
        fields = self._recording.fields
        return bool(fields["response_ids"] or fields["response_id"])


def _texts(values: Any, field: str) -> tuple[str, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise refused("a list of texts", values, field)
    texts = tuple(values)
    for text in texts:
        check_id(text, field)
    return texts


def describe(failure: BaseException | str) -> str:
    """`TypeName: text` of an error, cut at ERROR_CHARACTERS_MAX, in text that UTF-8 can hold."""
    if isinstance(failure, str):
        text = failure
    else:
        try:
            text = str(failure)
        except Exception:  # an error whose text fails is still an error
            text = ""
        name = type(failure).__name__
        text = f"{name}: {text}" if text else name
    if len(text) > ERROR_CHARACTERS_MAX:
        text = text[: ERROR_CHARACTERS_MAX - 3] + "..."
    return text.encode(errors="backslashreplace").decode()
