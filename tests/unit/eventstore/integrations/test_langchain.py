"""What LangChain and LangGraph do, as events on a log in memory."""

import asyncio
import logging
import subprocess
import sys
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from pydantic import Field

from rolloutlog.eventstore import InvalidEvent, agent, emit_reward
from rolloutlog.eventstore.events import RewardRecorded, Span
from rolloutlog.eventstore.integrations.langchain import RolloutCallback, last_response_id
from rolloutlog.eventstore.tokens import pack_logprobs, pack_token_ids


class Policy(BaseChatModel):
    """Answers what it is asked; `metadata` stands in the response's."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    answers: int = 1
    model: str = "policy"

    @property
    def _llm_type(self) -> str:
        return "policy"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        text = messages[-1].content
        if text == "fail":
            raise TimeoutError("no answer")
        given = {
            "id": f"resp-{text}",
            "prompt_token_ids": [1, 2],
            "token_ids": [3],
            "logprobs": [-0.5],
            **self.metadata,
        }
        message = AIMessage(text, response_metadata={k: v for k, v in given.items() if v is not None})
        return ChatResult(generations=[ChatGeneration(message=message)] * self.answers)


class State(TypedDict):
    seen: Annotated[list[Any], add]


def ask(text, **policy):
    return Policy(**policy).invoke(text)


def graph(*edges, checkpointer=None, **nodes):
    """A graph of nodes, in a row unless `edges` says otherwise."""
    built = StateGraph(State)
    for name, node in nodes.items():
        built.add_node(name, node)
    for edge in edges or [*zip([START, *nodes], nodes, strict=False)]:
        built.add_edge(*edge)
    return built.compile(checkpointer=checkpointer)


def run(published, compiled, mode="sync", given=None, **options):
    """Run the graph in a rollout, and emit a reward after it."""
    config = {"callbacks": [RolloutCallback(**options)]}
    given = {"seen": []} if given is None else given

    async def go():
        async with published.publisher.rollout("t"):
            if mode == "async":
                result = await compiled.ainvoke(given, config)
            else:
                result = [part async for part in compiled.astream(given, config)]
            emit_reward(1.0, "after")
            return result

    if mode == "sync":
        with published.publisher.rollout("t"):
            result = compiled.invoke(given, config)
            emit_reward(1.0, "after")
            return result
    return asyncio.run(go())


def tree(published):
    """Names by the names of the spans around them, outermost first."""
    spans = {span.span_id: span for span in published.of(Span)}

    def path(span_id):
        return [] if span_id is None else [*path(spans[span_id].parent_id), spans[span_id].name]

    found = ["/".join(path(span_id)) for span_id in spans]
    return sorted(found + ["/".join([*path(r.parent_id), r.name]) for r in published.of(RewardRecorded)])


MODES = ["sync", "async", "astream"]


@pytest.mark.parametrize("mode", MODES)
def test_nodes_are_operations_that_end_with_the_node(published, mode):
    def write(state):
        ask("a")
        return {"seen": []}

    def check(state):
        emit_reward(0.2, "parses")
        return {"seen": []}

    run(published, graph(write=write, check=check), mode)
    assert tree(published) == ["after", "check", "check/parses", "write", "write/chat"]


async def awrite(state):
    await Policy().ainvoke("a")
    emit_reward(0.1, "written")
    return {"seen": [last_response_id()]}


@pytest.mark.parametrize("mode", ["async", "astream"])
def test_async_nodes_keep_calls_and_rewards_in_their_place(published, mode):
    run(published, graph(write=awrite, again=awrite), mode)
    assert tree(published) == ["after", "again", "again/chat", "again/written", "write", "write/chat", "write/written"]


@pytest.mark.parametrize("mode", MODES)
def test_parallel_nodes_keep_their_calls_rewards_and_last_responses_apart(published, mode):
    def branch(name):
        def node(state):
            ask(name)
            emit_reward(0.1, f"r{name}")
            return {"seen": [last_response_id()]}

        return node

    compiled = graph((START, "a"), (START, "b"), a=branch("a"), b=branch("b"))
    result = run(published, compiled, mode)
    assert tree(published) == ["a", "a/chat", "a/ra", "after", "b", "b/chat", "b/rb"]
    if mode != "astream":
        assert sorted(result["seen"]) == ["resp-a", "resp-b"]


def test_nodes_of_a_subgraph_are_beneath_its_node(published):
    def inner(state):
        ask("a")
        return {"seen": []}

    run(published, graph(sub=graph(inner=inner)), agents={"sub": "writer"})
    assert tree(published) == ["after", "writer", "writer/sub", "writer/sub/inner", "writer/sub/inner/chat"]
    assert {span.name: span.kind for span in published.of(Span)}["writer"] == "agent"


def test_decorated_node_works_within_its_operation(published):
    @agent("writer")
    def write(state):
        ask("a")
        return {"seen": []}

    run(published, graph(write=write))
    assert tree(published) == ["after", "write", "write/writer", "write/writer/chat"]


def test_tool_is_a_tool_and_its_rewards_are_beneath_it(published):
    @tool
    def run_sql(query: str) -> str:
        """Run it."""
        emit_reward(0.1, "rows")
        return query

    def execute(state):
        return {"seen": [run_sql.invoke("select")]}

    run(published, graph(execute=execute))
    assert tree(published) == ["after", "execute", "execute/run_sql", "execute/run_sql/rows"]
    assert {span.name: span.kind for span in published.of(Span)}["run_sql"] == "tool"


@pytest.mark.parametrize("mode", MODES)
def test_tools_that_a_tool_node_runs_at_once_keep_their_rewards_apart(published, mode):
    @tool
    def run_sql(query: str) -> str:
        """Run it."""
        emit_reward(0.1, query)
        return query

    calls = [{"name": "run_sql", "args": {"query": name}, "id": name} for name in ("a", "b")]
    built = StateGraph(MessagesState)
    built.add_node("write", lambda state: {"messages": [AIMessage("", tool_calls=calls)]})
    built.add_node("tools", ToolNode([run_sql]))
    built.add_edge(START, "write")
    built.add_edge("write", "tools")
    run(published, built.compile(), mode, given={"messages": []})
    assert tree(published) == [
        "after", "tools", "tools/run_sql", "tools/run_sql", "tools/run_sql/a", "tools/run_sql/b", "write"
    ]  # fmt: skip


def test_call_has_what_the_model_gives(published):
    def write(state):
        ask("a", metadata={"finish_reason": "stop", "policy_version": 3})
        return {"seen": []}

    run(published, graph(write=write))
    (call,) = [span for span in published.of(Span) if span.kind == "call"]
    assert (call.model, call.response_id, call.finish_reason) == ("policy", "resp-a", "stop")
    assert (call.prompt_ids, call.response_ids) == (pack_token_ids([1, 2], ""), pack_token_ids([3], ""))
    assert call.logprobs == pack_logprobs([-0.5], "")
    assert call.messages == b'[{"role":"user","content":"a"}]'
    assert [(run.policy_version, run.tokens) for run in call.policy_version_runs] == [(3, 1)]


def test_call_takes_token_ids_from_the_log_probs_of_vllm(published):
    logprobs = {"content": [{"token": "token_id:7", "logprob": -0.25}, {"token": "token_id:8", "logprob": -0.5}]}

    def write(state):
        ask("a", metadata={"token_ids": None, "logprobs": logprobs})
        return {"seen": []}

    run(published, graph(write=write))
    (call,) = [span for span in published.of(Span) if span.kind == "call"]
    assert (call.response_ids, call.logprobs) == (pack_token_ids([7, 8], ""), pack_logprobs([-0.25, -0.5], ""))


def test_call_without_prompt_ids_leaves_the_tokens_to_a_gateway_and_says_so(published, caplog):
    def write(state):
        ask("a", metadata={"prompt_token_ids": None})
        return {"seen": []}

    with caplog.at_level(logging.WARNING):
        run(published, graph(write=write))
    (call,) = [span for span in published.of(Span) if span.kind == "call"]
    assert (call.response_id, call.prompt_ids, call.response_ids) == ("resp-a", None, None)
    assert "gives `token_ids` without `prompt_token_ids`" in caplog.text


def test_call_without_a_servers_id_has_the_messages(published):
    def write(state):
        answer = ask("a", metadata={"id": None})
        return {"seen": [answer.id, last_response_id()]}

    result = run(published, graph(write=write))
    (call,) = [span for span in published.of(Span) if span.kind == "call"]
    assert result["seen"] == [call.response_id, call.response_id]


def test_call_with_several_answers_is_one_call_for_each(published):
    def write(state):
        ask("a", answers=2)
        return {"seen": []}

    run(published, graph(write=write))
    calls = [span for span in published.of(Span) if span.kind == "call"]
    assert [(call.response_id, call.choice_index) for call in calls] == [("resp-a", 0), ("resp-a", 1)]


def test_call_that_fails_is_a_failed_span(published):
    def write(state):
        ask("fail")

    with pytest.raises(TimeoutError):
        run(published, graph(write=write))
    assert {span.name: span.status for span in published.of(Span)} == {"chat": "error", "write": "error"}


@pytest.mark.parametrize("mode", MODES)
def test_call_that_cannot_be_recorded_raises(published, mode):
    """A call that is missing silently would train a rollout with a hole."""

    def write(state):
        ask("a", metadata={"logprobs": [0.5]})

    with pytest.raises(InvalidEvent, match="were probabilities passed"):
        run(published, graph(write=write), mode)


def test_interrupt_is_no_failure_of_its_node(published):
    def approve(state):
        return {"seen": [interrupt("go on?")]}

    compiled = graph(approve=approve, checkpointer=InMemorySaver())
    config = {"callbacks": [RolloutCallback()], "configurable": {"thread_id": "1"}}
    with published.publisher.rollout("t"):
        compiled.invoke({"seen": []}, config)
    assert [(span.name, span.status) for span in published.of(Span)] == [("approve", "ok")]


def test_last_response_id_in_a_later_node_is_that_of_the_rollout(published):
    def write(state):
        (RunnableLambda(lambda text: text) | Policy() | (lambda message: message.content)).invoke("a")
        return {"seen": [last_response_id()]}

    def check(state):
        return {"seen": [last_response_id()]}

    assert run(published, graph(write=write, check=check))["seen"] == ["resp-a", "resp-a"]


def test_last_response_id_in_an_agent_without_calls_is_none(published):
    def write(state):
        ask("a")
        return {"seen": []}

    @agent
    def checker(state):
        return {"seen": [last_response_id()]}

    assert run(published, graph(write=write, check=checker))["seen"] == [None]
    assert last_response_id() is None


def test_callback_serves_rollouts_at_once(make_published):
    published = make_published()
    callback = RolloutCallback()
    compiled = graph(write=awrite)

    async def one():
        async with published.publisher.rollout("t") as rollout:
            await compiled.ainvoke({"seen": []}, {"callbacks": [callback]})
            return rollout.rollout_id

    async def all_of_them():
        return await asyncio.gather(one(), one(), one())

    rollouts = asyncio.run(all_of_them())
    assert sorted((s.rollout_id, s.name) for s in published.of(Span)) == sorted(
        (rollout_id, name) for rollout_id in rollouts for name in ("chat", "write")
    )


def test_callback_outside_of_a_rollout_records_nothing_and_says_so_once(published, caplog):
    def write(state):
        ask("a")
        return {"seen": []}

    with caplog.at_level(logging.WARNING):
        graph(write=write).invoke({"seen": []}, {"callbacks": [RolloutCallback()]})
    assert [record.getMessage()[:43] for record in caplog.records] == ["node 'write' runs outside of any rollout: i"]
    assert published.events() == []


def test_import_without_langchain_names_the_extra():
    code = "import sys; sys.modules['langchain_core'] = None; import rolloutlog.eventstore.integrations.langchain"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "needs langchain_core, which is not installed: pip install 'rolloutlog[langchain]'" in done.stderr
