"""SWE-agent's trajectories: which events they become, and what is refused."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rolloutlog.consumers.importing.inputs import Input
from rolloutlog.consumers.importing.rendering import Bytes
from rolloutlog.consumers.importing.swe_agent import SweFile, find_files, parse_files
from rolloutlog.consumers.importing.swe_results import parse_results
from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Event, RewardRecorded, RolloutCompleted, RolloutStarted, Span
from rolloutlog.eventstore.prompts import PromptRestore
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX

SYSTEM = {"role": "system", "content": "SETTING: you are an autonomous programmer.", "agent": "main"}
ISSUE = {"role": "user", "content": [{"type": "text", "text": "Fix the bug."}], "agent": "main"}
LIST_CALL = {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
FIRST = {"role": "assistant", "content": "I look around.", "thought": "I look around.", "action": "ls -F",
         "agent": "main", "tool_calls": [LIST_CALL], "message_type": "action"}  # fmt: skip
OBSERVED = {"role": "tool", "content": "README.md", "agent": "main", "tool_call_ids": ["t1"]}
SECOND = {"role": "assistant", "content": "Done.", "action": "submit", "agent": "main", "tool_calls": None}


def steps(**first: Any) -> list[dict[str, Any]]:
    return [
        {"action": "ls -F\n", "observation": "README.md", "response": "I look around.", "thought": "I look around.",
         "state": {"working_dir": "/repo"}, "execution_time": 0.1, "query": [SYSTEM, ISSUE], **first},
        {"action": "submit", "observation": "", "response": "Done.", "thought": "Done.", "execution_time": 0.2,
         "query": [SYSTEM, ISSUE, FIRST, OBSERVED]},
    ]  # fmt: skip


def trajectory(**fields: Any) -> dict[str, Any]:
    return {
        "trajectory": steps(),
        "history": [SYSTEM, ISSUE, FIRST, OBSERVED, SECOND],
        "info": {
            "exit_status": "submitted",
            "submission": "diff --git a/x b/x",
            "model_stats": {"instance_cost": 0.5, "api_calls": 2},
            "swe_agent_hash": "abc",
        },
        "environment": "main",
        **fields,
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "astropy__astropy-1.traj"


def write(file: Path, content: Any) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file


def events(file: Path, content: Any, rewards: dict[str, float] | None = None) -> list[Event]:
    ((_, rollout),) = parse_files([SweFile(Input(write(file, content)), rewards or {})], Bytes())
    if isinstance(rollout, InvalidEvent):
        raise rollout
    made = list(rollout.events("ab" * 16, group_size=2, run_id="run", time_ns=1_000_000))
    for each in made:
        check_event(each)
    return made


def spans(made: list[Event], kind: str) -> list[Span]:
    return [each for each in made if isinstance(each, Span) and each.kind == kind]


def text(packed: bytes | None) -> str:
    return bytes((packed or b"")[::4]).decode()


def test_file_becomes_a_start_calls_actions_the_agent_and_a_completion(file: Path):
    made = events(file, trajectory())
    assert [getattr(each, "span_id", type(each).__name__) for each in made] == [
        "RolloutStarted",
        "call-0",
        "action-0",
        "call-1",
        "action-1",
        "agent",
        "RolloutCompleted",
    ]
    assert {each.parent_id for each in (*spans(made, "call"), *spans(made, "tool"))} == {"agent"}


def test_start_is_of_the_instance_and_tells_how_it_ended(file: Path):
    start = events(file, trajectory())[0]
    assert isinstance(start, RolloutStarted)
    assert (start.task_id, start.group_id) == ("astropy__astropy-1", "import-abababababab-astropy__astropy-1")
    assert json.loads(start.metadata) == {
        "instance_id": "astropy__astropy-1",
        "exit_status": "submitted",
        "model_stats": {"instance_cost": 0.5, "api_calls": 2},
        "swe_agent_hash": "abc",
    }


def test_call_is_prompted_with_what_the_step_was_shown(file: Path):
    made = events(file, trajectory())
    restore = PromptRestore()
    for each in spans(made, "call"):
        restore.add(each)
    first, second = spans(made, "call")
    assert text(restore.prompt(first)) == (
        "<|im_start|>system\nSETTING: you are an autonomous programmer.<|im_end|>\n"
        "<|im_start|>user\nFix the bug.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text(restore.prompt(second)).startswith(text(restore.prompt(first)) + text(first.response_ids))
    assert second.prompt_base == "call-0"


def test_call_answers_with_the_tool_calls_that_the_history_has(file: Path):
    first, second = spans(events(file, trajectory()), "call")
    assert text(first.response_ids) == (
        'I look around.\n<tool_call>{"name": "bash", "arguments": "{\\"command\\":\\"ls\\"}"}</tool_call><|im_end|>\n'
    )
    assert text(second.response_ids) == "Done.<|im_end|>\n"


def test_call_keeps_messages_without_the_agents_bookkeeping(file: Path):
    first, second = spans(events(file, trajectory()), "call")
    assert json.loads(first.messages or b"")[1] == {
        "role": "user",
        "content": [{"type": "text", "text": "Fix the bug."}],
    }
    assert json.loads(second.messages or b"")[-1] == {"role": "tool", "content": "README.md", "tool_call_id": "t1"}


def test_action_is_a_tool_named_by_its_command(file: Path):
    first, second = spans(events(file, trajectory()), "tool")
    assert (first.name, second.name) == ("ls", "submit")
    assert json.loads(first.attributes) == {
        "action": "ls -F\n",
        "observation": "README.md",
        "thought": "I look around.",
        "state": {"working_dir": "/repo"},
        "execution_time": 0.1,
    }


def test_agent_holds_the_submission(file: Path):
    (agent,) = spans(events(file, trajectory()), "agent")
    assert json.loads(agent.attributes)["submission"] == "diff --git a/x b/x"


def test_file_of_an_older_version_shows_messages(file: Path):
    older = steps()
    for each in older:
        each["messages"] = each.pop("query")
    made = events(file, trajectory(trajectory=older, history=[]))
    assert [text(each.response_ids) for each in spans(made, "call")] == [
        "I look around.<|im_end|>\n",
        "Done.<|im_end|>\n",
    ]


def test_file_without_shown_messages_takes_those_of_the_history(file: Path):
    bare = [{name: value for name, value in each.items() if name != "query"} for each in steps()]
    demo = {"role": "assistant", "content": "an example", "is_demo": True}
    history = [SYSTEM, demo, ISSUE, FIRST, OBSERVED, SECOND]
    first, second = spans(events(file, trajectory(trajectory=bare, history=history)), "call")
    assert [each["role"] for each in json.loads(first.messages or b"")] == ["system", "assistant", "user"]
    assert second.prompt_base == "call-0"


def test_step_without_an_answer_is_no_call(file: Path):
    given_up = {"action": "", "observation": "", "response": "", "thought": "Exit due to cost limit", "query": [{}]}
    made = events(file, trajectory(trajectory=[*steps(), given_up], history=[]))
    assert len(spans(made, "call")) == 2


@pytest.mark.parametrize(
    ("info", "status", "error"),
    [
        ({"exit_status": "submitted"}, "completed", None),
        ({"exit_status": "submitted (exit_cost)"}, "completed", None),
        ({"exit_status": "exit_context"}, "completed", None),
        ({"exit_status": "exit_environment_error"}, "failed", "exit_environment_error"),
        ({}, "failed", "no exit_status: the agent did not come to an end"),
    ],
)
def test_rollout_ends_as_the_exit_status_says(file: Path, info: Any, status: str, error: str | None):
    end = events(file, trajectory(info=info))[-1]
    assert isinstance(end, RolloutCompleted)
    assert (end.status, end.error) == (status, error)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected a JSON object of SWE-agent, got text that is none"),
        (b"\xff\xfe", "expected a JSON object of SWE-agent, got text that is none"),
        (b"[" * 100_000, "expected a JSON object of SWE-agent, got text that is none"),
        ({}, "expected a list of steps, got None at $.trajectory"),
        ({"trajectory": ["x"]}, "expected a step, which is a JSON object, got 'x' at $.trajectory[0]"),
        ({"trajectory": steps(response=7)}, "expected text, got 7 at $.trajectory[0].response"),
        ({"trajectory": steps(query=None)}, "expected what the step was shown"),
        ({"trajectory": steps(query=[{"role": "robot"}])}, "got 'robot' at $.trajectory[0].query[0].role"),
        ({"trajectory": [], "info": 7}, "expected an object, got 7 at $.info"),
        ({"trajectory": [], "history": [7]}, "at $.history[0]"),
        ({"trajectory": [], "info": {"x": float("nan")}}, "expected a value that JSON can hold"),
        ({"trajectory": [], "reward": "good"}, "expected a finite number or null, got 'good' at $.reward"),
    ],
)
def test_file_that_is_refused_names_the_field(file: Path, content: Any, said: str):
    with pytest.raises(InvalidEvent) as caught:
        events(file, content)
    assert said in str(caught.value)


# Verdicts


@pytest.mark.parametrize(
    ("results", "value"),
    [
        ({"resolved_ids": ["astropy__astropy-1"], "unresolved_ids": []}, 1.0),
        ({"resolved_ids": [], "unresolved_ids": ["astropy__astropy-1"]}, 0.0),
        ({"resolved_ids": [], "empty_patch_ids": ["astropy__astropy-1"]}, 0.0),
        ({"resolved_ids": [], "error_ids": ["astropy__astropy-1"]}, None),
        ({"resolved": ["astropy__astropy-1"], "generated": ["astropy__astropy-1"]}, 1.0),
        ({"resolved": [], "generated": ["astropy__astropy-1"]}, 0.0),
        ({"astropy__astropy-1": {"resolved": True, "patch_exists": True}}, 1.0),
        ({"other": {"resolved": True}}, None),
    ],
)
def test_verdict_of_an_evaluation_is_the_rollouts_reward(file: Path, results: Any, value: float | None):
    made = events(file, trajectory(), parse_results(json.dumps(results).encode()))
    found = [(each.name, each.value, each.scope) for each in made if isinstance(each, RewardRecorded)]
    assert found == ([] if value is None else [("resolved", value, "rollout")])


@pytest.mark.parametrize("bad", [b"[]", b'{"resolved_ids": 7}', b'{"resolved": [7]}', b'{"a": {"resolved": 1}}'])
def test_results_that_are_none_are_refused(bad: bytes):
    with pytest.raises(InvalidEvent, match="expected"):
        parse_results(bad)


def test_folders_give_their_trajectories_sorted_with_the_index_of_the_path(tmp_path: Path):
    for name in ("run1/b/b.traj", "run1/a/a.traj", "run2/a/a.traj.gz", "run1/a/a.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    found = find_files([tmp_path / "run1", tmp_path / "run2"])
    assert [(index, str(path.relative_to(tmp_path))) for index, path in found] == [
        (0, "run1/a/a.traj"),
        (0, "run1/b/b.traj"),
        (1, "run2/a/a.traj.gz"),
    ]


def test_file_that_cannot_be_read_is_refused_and_the_next_one_taken(file: Path):
    write(file, trajectory())
    gone, good = parse_files([SweFile(Input(file.with_name("gone.traj")), {}), SweFile(Input(file), {})], Bytes())
    assert str(gone[1]) == "expected a file that can be read, got none (No such file or directory)"
    assert not isinstance(good[1], InvalidEvent)


def test_folder_that_cannot_be_read_is_an_error_and_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(PermissionError, match="closed"):
        find_files([tmp_path])


def test_links_that_lead_in_a_circle_are_passed_over(tmp_path: Path):
    (tmp_path / "self").symlink_to(tmp_path)
    (tmp_path / "a.traj").symlink_to("b.traj")
    (tmp_path / "b.traj").symlink_to("a.traj")
    (tmp_path / "c.traj").write_text("{}")
    assert find_files([tmp_path]) == [(0, tmp_path / "c.traj")]


def test_info_above_the_limit_of_an_event_is_refused_by_its_field(file: Path):
    with pytest.raises(InvalidEvent, match=rf"expected at most {EVENT_BYTES_MAX} bytes, .* at \$.info"):
        events(file, trajectory(info={"submission": "x" * EVENT_BYTES_MAX}))
