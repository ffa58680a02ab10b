"""The demo's agent records what it did: calls with real tokens, and the step reward where the query is checked."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.store import Store

from rolloutlog.consumers.assembler import Assembler, AssemblerSettings
from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.demo import agent
from rolloutlog.consumers.demo.policy import SHAPE, Weights
from rolloutlog.consumers.demo.tasks import TASKS, open_shop
from rolloutlog.consumers.demo.vocabulary import END, fragment_id, question_ids, word_id
from rolloutlog.eventstore import EventPublisher

COUNT_ORDERS = next(task for task in TASKS if task.task_id == "count-orders")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "TOKEN_S", 0.0)


def writes(*fragments: str, after_an_error: tuple[str, ...] = ()) -> Weights:
    """A policy that always writes these, and others once it has read an error."""
    weights = np.zeros(SHAPE)
    for prompt_token, query, size in (
        (word_id("question:"), fragments, 50.0),
        (word_id("error: no such column"), after_an_error, 200.0),
    ):
        tokens = [END, *(fragment_id(each) for each in query), END]
        for before, token in pairwise(tokens):
            if query:
                weights[prompt_token, before, token] = size
    return weights


def solved(tmp_path: Path, weights: Weights) -> Batch:
    with Store(f"sqlite:///{tmp_path}/log.db") as store:
        with (
            EventPublisher.open(store.url) as events,
            open_shop() as shop,
            events.rollout(COUNT_ORDERS.task_id, policy_version=3) as rollout,
        ):
            random = np.random.default_rng(0)
            rollout.finish(reward=agent.solve(rollout, COUNT_ORDERS, shop, weights, 3, random))
        store.run(Assembler(store.log, AssemblerSettings()).run(range(4), until_end=True))
        (batch,) = store.batches()
    return batch


def test_agent_with_a_right_query_gets_both_rewards_on_its_one_call(tmp_path: Path):
    batch = solved(tmp_path, writes("SELECT", "COUNT(*)", "FROM", "orders"))
    (sample,) = batch.samples
    assert (dict(sample.step), dict(sample.final), sample.total) == ({"parses": 0.2}, {"reward": 1.0}, 1.2)
    assert np.frombuffer(sample.prompt_ids, "<i4").tolist() == question_ids("count orders")
    assert sample.policy_version_runs[0].policy_version == 3


def test_agent_with_a_query_that_runs_and_is_wrong_does_not_write_it_anew(tmp_path: Path):
    (sample,) = solved(tmp_path, writes("SELECT", "COUNT(*)", "FROM", "shops")).samples
    assert sample.total == 0.2


def test_agent_with_a_query_that_fails_reads_the_error_and_writes_it_anew(tmp_path: Path):
    weights = writes("SELECT", "name", "FROM", "orders", after_an_error=("SELECT", "COUNT(*)", "FROM", "orders"))
    first, second = solved(tmp_path, weights).samples
    assert (dict(first.step), first.total) == ({"parses": 0.0}, 0.0)
    assert (dict(second.step), dict(second.final), second.total) == ({}, {"reward": 1.0}, 1.0)
    failed = np.frombuffer(first.response_ids, "<i4").tolist()
    assert np.frombuffer(second.prompt_ids, "<i4").tolist() == [
        *question_ids("count orders"),
        *failed,
        word_id("error: no such column"),
    ]
