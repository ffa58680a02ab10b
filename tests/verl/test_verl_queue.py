"""What verl's fully-async trainer pulls from, by that trainer's own methods, on an embedded log. `make test-verl`."""

import asyncio
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.batches import assert_ledger_holds, end_records, last_words, records_of
from support.store import Store
from unit.consumers.adapters.stepping import step

pytest.importorskip("verl", reason="verl and torch are large, and not installed here: make test-verl runs this")

from omegaconf import OmegaConf
from ray import cloudpickle
from verl.experimental.fully_async_policy.detach_utils import assemble_batch_from_rollout_samples
from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
from verl.experimental.fully_async_policy.message_queue import MessageQueueClient

from rolloutlog.consumers.adapters.verl import StepRefused
from rolloutlog.consumers.adapters.verl_queue import StepQueue, to_rollout_samples
from rolloutlog.consumers.stream.advantages import group_advantages
from rolloutlog.consumers.trainer import WaitedTooLong
from rolloutlog.eventstore.acks import StepAcknowledged, read_ack
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import ACKS

pytestmark = pytest.mark.timeout(120)

SHAPE = {"prompt_tokens": 3, "response_tokens": 4, "pad_id": 0}
TRAINER = FullyAsyncTrainer.__ray_metadata__.modified_class


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=1) as opened:
        yield opened


def put(store: Store, groups: dict[str, list[float]], infos: Any = ()) -> None:
    for each in step(groups, infos).batches:
        store.append(records_of(each))


def queue_of(store: Store, **given: Any) -> StepQueue:
    settings = {"groups_per_step": 2, "max_staleness": None, "wait_s": 20.0, **SHAPE, **given}
    return StepQueue(store.url, **settings)


def trainer_of(queue: StepQueue) -> Any:
    """What the methods of verl's trainer that are called here read of it."""
    config = {
        "trainer": {"balance_batch": False},
        "algorithm": {"use_kl_in_reward": False, "adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0},
        "actor_rollout_ref": {"rollout": {"n": 2}},
    }
    return SimpleNamespace(
        config=OmegaConf.create(config), tokenizer=None, required_samples=2, message_queue_client=queue, use_rm=False,
        dynamic_schedule_enabled=False, current_param_version=4, stale_trajectory_processed=0, timing_raw={},
        metrics={}, _step_wait_times=[], _step_wait_samples=[],
    )  # fmt: skip


def acknowledged(store: Store) -> list[tuple[int, int | None]]:
    found = [read_ack(record) for record in store.records(ACKS, [0])]
    return [(each.step, each.policy_version) for each in found if isinstance(each, StepAcknowledged) and each.samples]


def test_queue_has_every_method_of_verls_client_but_those_of_validation():
    public = {name for name in vars(MessageQueueClient) if not name.startswith("_")}
    assert public - set(dir(StepQueue)) == {"put_validate", "get_validate_sync", "get_memory_usage"}


def test_verls_trainer_takes_steps_computes_advantages_and_ends_with_the_run(store):
    groups = {"a": [1.0, 0.0], "b": [0.5, 2.0], "c": [1.0, 3.0], "d": [0.0, 0.25]}
    put(store, groups, [{"acc": 1.0, "pred": "x"}, {"acc": 0.0}, {"pred": "y"}, {"note": [1, 2]}])
    store.append(end_records(1))
    queue = queue_of(store)
    trainer = trainer_of(queue)

    async def train() -> list[Any]:
        steps = []
        while (taken := await TRAINER._get_samples_from_queue(trainer))[1] is not None:
            batch = taken[1]
            TRAINER._collect_metrics_from_samples(trainer, batch, trainer.metrics)
            batch = TRAINER._fit_compute_reward(trainer, batch)
            steps.append(TRAINER._fit_compute_advantage(trainer, batch))
        return steps

    try:
        first, second = asyncio.run(train())
        assert first.non_tensor_batch["uid"].tolist() == ["a", "a", "b", "b"]
        assert first.meta_info["reward_extra_keys"] == ["acc", "pred", "note"]
        assert first.non_tensor_batch["note"].tolist() == [None, None, None, [1, 2]]
        ours = group_advantages(step({name: groups[name] for name in "ab"}), unit="row", normalize_std=True)
        np.testing.assert_allclose(first.batch["advantages"][:, 0].numpy(), ours, atol=1e-6)
        assert second.non_tensor_batch["uid"].tolist() == ["c", "c", "d", "d"]
        assert second.meta_info["reward_extra_keys"] == []
        assert first.meta_info["trajectory_param_versions"].tolist() == [3, 3, 3, 3]
        assert trainer.stale_trajectory_processed == 8
        assert trainer.metrics["fully_async/rolloutlog/step"] == 1
        assert acknowledged(store) == [(0, 1), (1, 2)]
        assert set(last_words(store).values()) == {"trained"}
        assert_ledger_holds(store, in_flight=0)
    finally:
        queue.close()


def test_step_is_acknowledged_when_the_next_is_asked_for_and_not_before(store):
    put(store, {name: [1.0, 0.0] for name in "abcd"})
    queue = queue_of(store, steps_per_version=2)
    try:
        for left in (1, 0):
            sample, queue_len = asyncio.run(queue.get_sample())
            assert isinstance(sample, bytes)
            assert queue_len == queue.get_queue_size_sync() == left
        assert acknowledged(store) == []
        asyncio.run(queue.get_sample())
        assert acknowledged(store) == [(0, 0)]
        with pytest.raises(InvalidSettings, match="got 1 left"):
            queue.ack()
        asyncio.run(queue.get_sample())
        queue.ack()
        queue.ack()
        assert acknowledged(store) == [(0, 0), (1, 1)]
        assert asyncio.run(queue.get_statistics())["total_consumed"] == 4
    finally:
        queue.close()


def test_checkpoint_saved_with_weights_goes_back_to_exactly_what_they_were_trained_on(store, tmp_path):
    put(store, {name: [1.0, 0.0] for name in "abcdef"})

    def take(queue: StepQueue) -> list[str]:
        return [cloudpickle.loads(asyncio.run(queue.get_sample())[0]).sample_id for _ in range(2)]

    queue = queue_of(store)
    try:
        assert take(queue) == ["a", "b"]
        queue.save(tmp_path)
        assert take(queue) == ["c", "d"]
        assert take(queue) == ["e", "f"]
    finally:
        queue.close()
    assert json.loads((tmp_path / "rolloutlog.json").read_text())["step"] == 1
    again = queue_of(store)
    try:
        again.load(tmp_path)
        assert take(again) == ["c", "d"]
    finally:
        again.close()


def test_queue_that_is_sent_to_another_process_opens_its_own_stream_there(store):
    put(store, {name: [1.0, 0.0] for name in "ab"})
    queue = queue_of(store)
    try:
        asyncio.run(queue.get_sample())
        sent = pickle.loads(pickle.dumps(queue))
        assert sent.get_queue_size_sync() == 0
        assert sent.stream is not queue.stream
        sent.close()
    finally:
        queue.close()


def test_waiting_for_a_group_ends_with_what_is_missing(store):
    put(store, {"a": [1.0, 0.0]})
    queue = queue_of(store, wait_s=1.0)
    try:
        with pytest.raises(WaitedTooLong):
            asyncio.run(queue.get_sample())
    finally:
        queue.close()


def test_step_that_is_refused_is_refused_again_and_never_acknowledged(store):
    for each in step({"a": [1.0], "b": [0.0]}, logprobs=None).batches:
        store.append(records_of(each))
    put(store, {"c": [1.0], "d": [0.0]})
    queue = queue_of(store)
    try:
        for _ in range(2):
            with pytest.raises(StepRefused, match="sample a-0/0/c has no log-probs"):
                asyncio.run(queue.get_sample())
        assert acknowledged(store) == []
    finally:
        queue.close()


def test_asking_that_was_cancelled_leaves_the_step_to_who_asks_next(store):
    queue = queue_of(store)

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get_sample(), 0.5)

    try:
        asyncio.run(ask())
        put(store, {"a": [1.0], "b": [0.0]})
        sample, left = asyncio.run(queue.get_sample())
        assert (cloudpickle.loads(sample).sample_id, left) == ("a", 1)
        assert acknowledged(store) == []
    finally:
        queue.close()


def test_end_of_verls_own_rollouter_ends_nothing_and_its_samples_are_refused():
    queue = StepQueue("sqlite:///none.db", groups_per_step=2, max_staleness=None, **SHAPE)
    assert asyncio.run(queue.put_sample(None)) is True
    with pytest.raises(InvalidSettings, match="samples come from the log"):
        asyncio.run(queue.put_sample(b"sample"))


def test_groups_of_a_step_join_in_any_order_and_rows_of_padding_go_with_the_last():
    made = to_rollout_samples(
        step({"a": [1.0], "b": [0.5, 2.0]}, [{"y": 1, "x": 2}, {"x": 3}]), rows_multiple_of=4, **SHAPE
    )
    assert [len(each.full_batch) for each in made] == [1, 3]
    batch = assemble_batch_from_rollout_samples(made[::-1], None, None)
    assert batch.meta_info["reward_extra_keys"] == ["y", "x"]
    assert batch.meta_info["global_token_num"] == [5, 5, 2, 5]
    assert batch.non_tensor_batch["is_padding"].tolist() == [False, False, True, False]


def test_columns_of_a_step_are_those_of_its_rows():
    made = step({"a": [1.0], "b": [0.5]})
    groups = to_rollout_samples(
        made, columns=lambda given: {"data_source": [each.sample_id for each in given.samples]}, **SHAPE
    )
    assert [each.full_batch.non_tensor_batch["data_source"].tolist() for each in groups] == [["a-0/0/c"], ["b-0/0/c"]]


@pytest.mark.parametrize(
    ("lacking", "text"),
    [({"logprobs": None}, "no log-probs"), ({"policy_version_runs": ()}, "no policy version")],
    ids=["logprobs", "version"],
)
def test_sample_without_what_the_trainer_needs_is_refused_by_name(lacking, text):
    made = step({"a": [1.0, 0.0]})
    made = replace(made, samples=(made.samples[0], made.samples[1]._replace(**lacking)))
    with pytest.raises(StepRefused, match=f"sample a-1/0/c has {text}"):
        to_rollout_samples(made, **SHAPE)


def test_steps_per_version_below_1_are_refused():
    with pytest.raises(InvalidSettings, match="steps_per_version"):
        StepQueue("sqlite:///none.db", groups_per_step=2, max_staleness=None, steps_per_version=0, **SHAPE)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"pad_id": None}, "pad_id"),
        ({"on_collision": "drop"}, "on_collision"),
        ({"rows_multiple_of": 0}, "rows_multiple_of"),
        ({"columns": {"data_source": ["a"]}}, "columns: expected a function of a step"),
    ],
)
def test_queue_with_settings_that_no_step_could_be_made_with_is_refused_before_any_comes(given: Any, text: str):
    with pytest.raises(InvalidSettings, match=text):
        StepQueue("sqlite:///never-opened.db", groups_per_step=1, max_staleness=None, **{**SHAPE, **given})


def test_trainer_that_fails_before_its_first_checkpoint_starts_where_it_started_and_at_version_0(store, tmp_path):
    put(store, {name: [1.0, 0.0] for name in "abcdef"})
    for _ in range(2):
        queue = queue_of(store)
        try:
            queue.start(tmp_path / "global_step_0")
            taken = [cloudpickle.loads(asyncio.run(queue.get_sample())[0]).sample_id for _ in range(5)]
            assert taken == ["a", "b", "c", "d", "e"]
            assert queue.stream.state_dict()["policy_version"] == 2
        finally:
            queue.close()
    assert json.loads((tmp_path / "global_step_0/rolloutlog.json").read_text())["step"] == 0
