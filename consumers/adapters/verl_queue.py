"""What verl's fully-async trainer pulls from, in the place of its MessageQueueClient: the groups of our steps.

    trainer.set_message_queue_client(StepQueue(url, groups_per_step=64, ...))

verl asks for one group after the other until it has as many as a step takes, trains, and asks again. So a step is
handed out group by group, all of them made from the whole step at once, with one list of reward keys. Asking for the
next step says that the one before is trained: it is acknowledged then, or earlier by `save`.

verl drops the oldest of a full queue, waits for ever on an empty one, and takes None for the end at any time. Here
nothing is dropped, waiting ends with WaitedTooLong, and None is the end of the run.

Needs  the extra `verl`; verl 0.9
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rolloutlog.consumers.adapters import missing
from rolloutlog.consumers.adapters.verl import StepRefused, to_verl
from rolloutlog.consumers.stream.step import Step
from rolloutlog.consumers.trainer import BatchStream
from rolloutlog.eventstore.checks import plain_integer
from rolloutlog.eventstore.errors import InvalidSettings

try:
    from ray import cloudpickle
    from verl.experimental.fully_async_policy.detach_utils import RolloutSample
except ModuleNotFoundError as error:
    raise missing(__name__, "verl", error) from error

STATE_FILE = "rolloutlog.json"

Columns = Callable[[Step], Mapping[str, Sequence[Any]]]


class StepQueue:
    """Groups for one trainer. It opens its stream where it is first asked; sent to another process, it is new there."""

    _stream: BatchStream | None
    _groups: deque[bytes]  # pickled, of the step
    _step: Step | None  # handed out, at least in part, and not acknowledged
    _taken: Step | None  # of the stream, its groups not made yet

    def __init__(
        self,
        url: str | None = None,
        *,
        groups_per_step: int,
        max_staleness: int | None,
        prompt_tokens: int,
        response_tokens: int,
        pad_id: int,
        missing_reward: str | float = "exclude",
        steps_per_version: int = 1,
        columns: Columns | None = None,
        on_collision: str = "reject",
        rows_multiple_of: int = 1,
        **stream: Any,
    ) -> None:
        """Opens nothing. Raises InvalidSettings for what `to_verl` would refuse of any step.

        groups_per_step    verl's actor.ppo_mini_batch_size × async_training.require_batches, which is what it takes of
                           the queue for a step
        steps_per_version  verl's async_training.trigger_parameter_sync_step: after so many steps the policy version
                           goes up, as verl counts, from 0
        columns            of a step, as `to_verl` takes them; ray sends it to the trainer
        stream             more settings of BatchStream.open. Longer samples than P and R end filtered
        Others             as to_verl and BatchStream.open say
        """
        steps = plain_integer(steps_per_version)
        if type(steps) is not int or steps < 1:
            raise InvalidSettings(f"steps_per_version: expected an integer from 1, got {steps_per_version!r}")
        self._steps_per_version = steps
        if columns is not None and not callable(columns):
            raise InvalidSettings(
                f"columns: expected a function of a step, which gives its columns, got {type(columns).__name__}"
            )
        self._columns = columns
        self._shape: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "response_tokens": response_tokens,
            "pad_id": pad_id,
            "on_collision": on_collision,
            "rows_multiple_of": rows_multiple_of,
        }
        # the first step may be an hour away, and a tokenizer without a padding token is known now
        to_verl(Step(0, (), (), (), (), None), **self._shape)
        self._open = {
            "url": url,
            "groups_per_step": groups_per_step,
            "max_staleness": max_staleness,
            "missing_reward": missing_reward,
            "prompt_tokens_max": prompt_tokens,
            "response_tokens_max": response_tokens,
            # verl throws a step away that is not full
            "drop_last": True,
            **stream,
        }
        self._reset()

    @property
    def stream(self) -> BatchStream:
        """The stream behind it, opened when there is none yet."""
        if self._stream is None:
            settings = dict(self._open)
            self._stream = BatchStream.open(settings.pop("url"), **settings)
        return self._stream

    async def get_sample(self) -> tuple[bytes | None, int]:
        """The next group as verl's RolloutSample, pickled, and how many of its step are left; None = the run ended.

        Raises  WaitedTooLong, StepRefused, SampleTooLong, and what a stream raises
        """
        if not self._groups:
            async with self._filling:
                if not self._groups:
                    await self._fill()
        return (self._groups.popleft(), len(self._groups)) if self._groups else (None, 0)

    async def get_queue_size(self) -> int:
        return len(self._groups)

    def get_queue_size_sync(self) -> int:
        return len(self._groups)

    async def get_statistics(self) -> dict[str, Any]:
        """As verl's: groups that are left, were made, were handed out, were dropped, and how many it holds at most."""
        left = len(self._groups)
        return {
            "queue_size": left,
            "total_produced": self._produced,
            "total_consumed": self._produced - left,
            "dropped_samples": 0,
            "max_queue_size": self._open["groups_per_step"],
        }

    def get_sample_sync(self) -> tuple[bytes | None, int]:
        """Outside of an event loop."""
        return asyncio.run(self.get_sample())

    def get_statistics_sync(self) -> dict[str, Any]:
        return asyncio.run(self.get_statistics())

    async def put_sample(self, sample: Any) -> bool:
        """None, with which verl's rollouter ends, ends nothing here. Anything else is refused."""
        if sample is not None:
            raise InvalidSettings(
                "put_sample: samples come from the log; record rollouts with EventPublisher, and give verl's rollouter "
                "a queue of its own"
            )
        return True

    async def clear_queue(self) -> None:
        """verl clears at the end. Nothing is lost: what is not acknowledged is handed out again."""
        await self.shutdown()

    async def shutdown(self) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the stream. A step that is not acknowledged is handed out again, here or in another process."""
        if self._stream is not None:
            self._stream.close()
        self._reset()

    def ack(self) -> None:
        """The step that was handed out whole is trained. Nothing when none is, or when it is acknowledged.

        Raises  InvalidSettings while groups of the step are left; what `BatchStream.ack` raises
        """
        if self._step is None:
            return
        if self._groups:
            raise InvalidSettings(
                f"ack: expected all groups of step {self._step.number} handed out, got {len(self._groups)} left"
            )
        self.stream.ack(self._step, policy_version=self._version(self._step.number + 1))
        self._step = None

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Before a checkpoint's weights are written: acknowledge what is trained, and write where reading goes on.

        Before, because verl names a checkpoint the latest once its weights are there.
        """
        self.ack()
        path = Path(folder) / STATE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(self.stream.state_dict()), encoding="utf-8")
        os.replace(new, path)

    def start(self, folder: str | os.PathLike[str]) -> None:
        """Where weights begin anew: go back to what `folder` says, or write it when this is the first time.

        A trainer that failed before its first checkpoint counts versions from 0 again. Reading that went on after what
        the lost weights were trained on would count on, and find every new group stale.

        Raises  what `save` and `load` raise; InvalidSettings for the folder of another log
        """
        if (Path(folder) / STATE_FILE).exists():
            self.load(folder)
        else:
            self.save(folder)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go back to a checkpoint. Raises what `BatchStream.load_state_dict` raises; OSError when there is no file."""
        state = json.loads((Path(folder) / STATE_FILE).read_text(encoding="utf-8"))
        self.stream.load_state_dict(state)
        self._groups = deque()
        self._step = self._taken = None

    async def _fill(self) -> None:
        """Acknowledge the step that is trained, wait for the next, and make its groups.

        Cancelled or refused on the way, the next call goes on there: a step whose groups nobody saw is not trained.
        """
        stream = await asyncio.to_thread(lambda: self.stream)
        if self._taken is None:
            await asyncio.to_thread(self.ack)
            stream.set_policy_version(self._version(stream.state_dict()["step"]))
            self._taken = await stream.anext_step()
        if self._taken is not None:
            self._groups.extend(await asyncio.to_thread(self._pickled, self._taken))
            self._produced += len(self._groups)
            self._step, self._taken = self._taken, None

    def _pickled(self, step: Step) -> list[bytes]:
        made = to_rollout_samples(step, columns=self._columns, **self._shape)
        return [cloudpickle.dumps(each) for each in made]

    def _version(self, steps: int) -> int:
        return steps // self._steps_per_version

    def _reset(self) -> None:
        self._stream = None
        self._groups = deque()
        self._step = self._taken = None
        self._produced = 0
        self._filling = asyncio.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_open", "_shape", "_columns", "_steps_per_version")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


def to_rollout_samples(step: Step, *, columns: Columns | None = None, **shape: Any) -> list[RolloutSample]:
    """A step as verl's RolloutSamples, one a group, in the step's order.

    All have the same tensors, columns and `reward_extra_keys`, so that verl can join them. Rows of padding go with the
    last. Times of generation and of tool calls, which verl makes metrics of, are NaN: they are not known here.

    shape   arguments of `to_verl`
    Raises  StepRefused, also for a sample without log-probs or policy version, which verl's fully-async trainer needs
    """
    for sample in step.samples:
        lacks = "log-probs" if sample.logprobs is None else "" if _has_version(sample) else "policy version"
        if lacks:
            raise StepRefused(
                f"step {step.number} refused: sample {sample.sample_id} has no {lacks}, which verl's fully-async "
                "trainer needs; record it with each call"
            )
    data = to_verl(step, columns=None if columns is None else columns(step), **shape)
    # a group's rows stand together; slices copy nothing
    starts = [0, *(np.flatnonzero(np.diff(step.groups)) + 1).tolist()]
    made = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        full_batch = data[start:end]
        full_batch.meta_info = {
            **{name: list(value) for name, value in data.meta_info.items()},
            "metrics": [{"generate_sequences": np.nan, "tool_calls": np.nan} for _ in range(len(full_batch))],
        }
        status = {"rolloutlog/step": step.number}
        if step.staleness_max is not None:
            status["rolloutlog/staleness_max"] = step.staleness_max
        made.append(RolloutSample(full_batch, step.batches[step.groups[start]].group_id, 0, status))
    return made


def _has_version(sample: Any) -> bool:
    return any(run.policy_version is not None for run in sample.policy_version_runs)
