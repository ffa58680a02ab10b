"""Record what LangChain and LangGraph do into the rollout that is open: `config={"callbacks": [RolloutCallback()]}`.

nodes   of LangGraph are operations, named after the node
tools   are tools
calls   of chat models are calls, with the messages, the response's id, the model, and token ids and log-probs where the
        model gives them. Without token ids they are those that a gateway records under the same response id
place   found by context variables, which LangChain and LangGraph hand on to their threads and tasks
errors  what can't be recorded raises, as anywhere: a call that is silently missing would train a rollout with a hole

Outside of any rollout nothing is recorded; the first time, a warning says so.

Needs     the extra `langchain`; Python 3.11, whose tasks take a context
Not here  which reward counts for which call: consumers.attribution
"""

import logging
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from typing import Any, NamedTuple, cast
from uuid import UUID
from weakref import WeakKeyDictionary

try:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import BaseMessage, convert_to_openai_messages
    from langchain_core.outputs import Generation, LLMResult
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"rolloutlog.eventstore.integrations.langchain needs {(error.name or '').partition('.')[0]}, which is not "
        "installed: pip install 'rolloutlog[langchain]'",
        name=error.name,
    ) from error

from rolloutlog.eventstore import scope as _scope
from rolloutlog.eventstore.recorder import Recorder
from rolloutlog.eventstore.spans import CallBlock, SpanBlock

_NODE_TAG = "graph:step:"  # LangGraph's, on the run of a node and on nothing within it
_TOKEN_PREFIX = "token_id:"  # vLLM's, with return_tokens_as_token_ids

_logger = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """A model that was asked: its call, and the context it is open in, which is no one else's."""

    recorder: Recorder
    call: CallBlock
    context: Context
    messages: Sequence[Mapping[str, Any]] | None

    def entered(self) -> "_Asked":
        self.context.run(self.call.__enter__)
        return self

    def again(self) -> "_Asked":
        """A further answer to the same request."""
        return self._replace(call=self.recorder.call(self.call.model)).entered()


class RolloutCallback(BaseCallbackHandler):
    """Records into the rollout of the context it is called in; one serves any number of rollouts, threads and tasks.

    agents  node → agent: the agent that works in a node, in a block around its operation
    """

    raise_error = True
    # In the task that runs the node, not in a thread beside it: what is opened here must be open there.
    run_inline = True

    def __init__(self, agents: Mapping[str, str] | None = None) -> None:
        self._agents = dict(agents or {})
        self._asked: dict[UUID, _Asked] = {}
        self._blocks: dict[UUID, tuple[Recorder, list[SpanBlock]]] = {}
        self._warned: set[str] = set()

    def answer(self, generation: Generation, output: Mapping[str, Any]) -> dict[str, Any]:
        """What `CallBlock.record` takes of an answer, but for `messages`. Override it for a model that tells otherwise.

        output  of the whole request. What it has, and the generation's info, are looked at after the message's metadata

        Reads response_id `id`, else the message's own; `prompt_token_ids`; `token_ids`; `logprobs`: numbers, or
        OpenAI's form, whose tokens may be `token_id:7` as vLLM writes them; `finish_reason`; `policy_version`
        """
        message = getattr(generation, "message", None)
        metadata = {**output, **(generation.generation_info or {}), **getattr(message, "response_metadata", {})}
        logprobs, token_ids = metadata.get("logprobs"), metadata.get("token_ids")
        if isinstance(logprobs, Mapping):
            tokens = logprobs.get("content") or []
            logprobs = [token["logprob"] for token in tokens] or None
            if token_ids is None and tokens and all(str(each["token"]).startswith(_TOKEN_PREFIX) for each in tokens):
                token_ids = [int(each["token"].removeprefix(_TOKEN_PREFIX)) for each in tokens]
        fields = {
            "response_id": metadata.get("id") or getattr(message, "id", None),
            "finish_reason": metadata.get("finish_reason"),
            "policy_version": metadata.get("policy_version"),
        }
        prompt_ids = metadata.get("prompt_token_ids")
        if prompt_ids is not None:
            return fields | {"prompt_ids": prompt_ids, "response_ids": token_ids, "logprobs": logprobs}
        if token_ids is not None:
            self._warn_once(
                "prompt",
                "a chat model gives `token_ids` without `prompt_token_ids`, and a response can't be trained on without "
                "its prompt: they are left out, for a gateway to record under the same response id (said once)",
            )
        return fields

    # LangChain's events

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        node = (metadata or {}).get("langgraph_node")
        if not node or not any(tag.startswith(_NODE_TAG) for tag in tags or ()):
            return
        if recorder := self._recorder(f"node {node!r}"):
            agent = self._agents.get(node)
            self._open(run_id, recorder, *([recorder.agent(agent)] if agent else []), recorder.operation(node))

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._close(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._close(run_id, error)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        name = kwargs.get("name") or (serialized or {}).get("name") or "tool"
        if recorder := self._recorder(f"tool {name!r}"):
            self._open(run_id, recorder, recorder.tool(name))

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._close(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._close(run_id, error)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # One list of messages: a batch of several is told one by one, each with a run of its own.
        self._ask(run_id, convert_to_openai_messages(messages[0]), metadata, kwargs)

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._ask(run_id, None, metadata, kwargs)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        asked = self._asked.pop(run_id, None)
        if asked is None:
            return
        for index, generation in enumerate(response.generations[0]):
            fields = self.answer(generation, response.llm_output or {})
            fields["response_id"] = fields.get("response_id") or f"lc_run--{run_id}"
            if index:
                fields["choice_index"] = index
                asked = asked.again()
            asked.context.run(_record, asked, {"messages": asked.messages, **fields})
            # Told in a task of its own, this is seen there alone.
            _scope.see_call(asked.recorder, asked.call.span_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if asked := self._asked.pop(run_id, None):
            asked.context.run(asked.recorder.leave_block, asked.call, error)

    # Ours

    def _recorder(self, what: str) -> Recorder | None:
        recorder = _scope.current_rollout()
        if recorder is None:
            self._warn_once(
                "rollout",
                f"{what} runs outside of any rollout: it runs, and nothing is recorded (said once); open `with "
                "events.rollout(...)` around it",
            )
        return cast(Recorder | None, recorder)

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _logger.warning("%s", text)

    def _open(self, run_id: UUID, recorder: Recorder, *blocks: SpanBlock) -> None:
        entered: list[SpanBlock] = []
        self._blocks[run_id] = recorder, entered
        try:
            for block in blocks:
                block.__enter__()
                entered.append(block)
        except BaseException as error:
            self._close(run_id, error)
            raise

    def _close(self, run_id: UUID, error: BaseException | None = None) -> None:
        recorder, blocks = self._blocks.pop(run_id, (None, []))
        if recorder is None:
            return
        failure = None if error is None or _is_control_flow(error) else error
        for block in reversed(blocks):
            try:
                recorder.leave_block(block, failure)
            finally:
                # Async runs end in a task of their own, whose context is a copy.
                _scope.leave_everywhere(recorder, block.span_id)

    def _ask(
        self,
        run_id: UUID,
        messages: Sequence[Mapping[str, Any]] | None,
        metadata: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> None:
        parameters = more.get("invocation_params") or {}
        model = (metadata or {}).get("ls_model_name") or parameters.get("model") or parameters.get("model_name")
        if recorder := self._recorder(f"model {model!r}"):
            # Its end may be told in another context: opened in a copy, it is open nowhere else.
            self._asked[run_id] = _Asked(recorder, recorder.call(model), copy_context(), messages).entered()


def last_response_id() -> str | None:
    """The response id of the last call that a RolloutCallback recorded in the innermost open block that has one.

    Looks as far as the nearest agent's block; outside of any agent, at the whole rollout. None = no call yet, or no
    rollout.
    """
    recorder = _scope.current_rollout()
    if recorder is None:
        return None
    last = _last.get(cast(Recorder, recorder), {})
    spans = _scope.enclosing_spans(recorder, within_agent=True)
    return next((last[span_id] for span_id in spans if span_id in last), None)


_last: WeakKeyDictionary[Recorder, dict[str | None, str]] = WeakKeyDictionary()
"""Of each rollout, and each span: the id of the last response beneath it."""


def _record(asked: _Asked, fields: dict[str, Any]) -> None:
    recorder, call = asked.recorder, asked.call
    try:
        call.record(**fields)
    except Exception as error:
        recorder.leave_block(call, error)
        raise
    recorder.leave_block(call, None)
    last = _last.setdefault(recorder, {})
    for span_id in _scope.enclosing_spans(recorder):
        last[span_id] = fields["response_id"]


def _is_control_flow(error: BaseException) -> bool:
    """Whether LangGraph raises it to interrupt a graph or to jump, which is no failure."""
    return any(each.__name__ == "GraphBubbleUp" for each in type(error).__mro__)
