"""A trainer as small as one can be, for tests that kill it: `python trainer.py URL CHECKPOINT [options]`.

Its weights are the sample ids it was trained on. A checkpoint holds weights and the stream's state; it is loaded at the
start. It prints `POINT STEP ids…` at each point: `handed_out`, `trained` (not yet acknowledged), `acked`, `saved`.

--stop-at POINT:STEP  wait there for a line of input: for the test to kill it, or to let it go on
--every N             save a checkpoint after every N steps
--keep                save each checkpoint also as CHECKPOINT.STEP
--output NAME         train on a replay's output
--until STEP          end before this step
Ends with 0 when the run has ended, 4 when another trainer took over.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rolloutlog.consumers.trainer import BatchStream, FencedOut, Step

EXIT_FENCED = 4


def main() -> int:
    options = _options()
    with BatchStream.open(
        options.url,
        reader=options.reader,
        groups_per_step=options.groups,
        max_staleness=options.max_staleness,
        missing_reward="exclude",
        wait_s=60,
        output=options.output,
    ) as stream:
        stream.set_policy_version(0)
        weights: list[str] = []
        if options.checkpoint.exists():
            saved = json.loads(options.checkpoint.read_text())
            weights = saved["weights"]
            stream.load_state_dict(saved["state"])
            stream.set_policy_version(saved["state"]["policy_version"] or 0)
        else:
            _save(options, stream, weights)
        try:
            for step in stream:
                if options.until is not None and step.number >= options.until:
                    return 0
                _train(options, stream, step, weights)
        except FencedOut as error:
            print(error, file=sys.stderr)
            return EXIT_FENCED
        _save(options, stream, weights)
    return 0


def _train(options: Any, stream: BatchStream, step: Step, weights: list[str]) -> None:
    trained = [sample.sample_id for sample in step.samples]
    _at(options, "handed_out", step.number, trained)
    weights += trained
    _at(options, "trained", step.number)
    stream.ack(step, policy_version=step.number + 1)
    stream.set_policy_version(step.number + 1)
    _at(options, "acked", step.number)
    if (step.number + 1) % options.every == 0:
        _save(options, stream, weights)
        _at(options, "saved", step.number)


def _save(options: Any, stream: BatchStream, weights: list[str]) -> None:
    text = json.dumps({"weights": weights, "state": stream.state_dict()})
    new = Path(f"{options.checkpoint}.new")
    new.write_text(text)
    if options.keep:
        Path(f"{options.checkpoint}.{stream.state_dict()['step']}").write_text(text)
    os.replace(new, options.checkpoint)


def _at(options: Any, point: str, step: int, ids: list[str] | None = None) -> None:
    print(point, step, *(ids or ()), flush=True)
    if options.stop_at == f"{point}:{step}":
        print("stopped", step, flush=True)
        sys.stdin.readline()


def _options() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--reader", default="trainer")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--max-staleness", type=int)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--output")
    parser.add_argument("--until", type=int)
    parser.add_argument("--stop-at", default="")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FencedOut as error:  # while it opened, or loaded its checkpoint
        print(error, file=sys.stderr)
        sys.exit(EXIT_FENCED)
