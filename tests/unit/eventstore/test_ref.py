"""References to rollouts: made, written as text, read back."""

import pytest

from rolloutlog.eventstore import InvalidEvent, InvalidSettings, NotOpen, NotStored, RolloutRef
from rolloutlog.eventstore.errors import LogUnavailable, RecordTooLarge
from rolloutlog.eventstore.events import RolloutCompleted, RolloutStarted
from rolloutlog.eventstore.ref import ref_of

REF = RolloutRef("run", "g-1", "r-7", 2, "judge", "a1", "c1")


def test_ref_as_text_gives_the_ref_back():
    assert RolloutRef.parse(str(REF)) == RolloutRef.parse(f"{REF.text()}\n") == REF


def test_ref_goes_into_environment_and_headers():
    assert REF.environment() == {"ROLLOUTLOG_REF": REF.text()}
    assert REF.headers() == {"x-rolloutlog-ref": REF.text()}


def test_ref_that_was_cut_is_refused_saying_what_is_expected():
    with pytest.raises(InvalidSettings, match="RolloutRef not read: expected the whole text, unchanged, as `text"):
        RolloutRef.parse(REF.text()[:-3])


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("run_id", None, "expected text, got None at $.run_id"),
        ("rollout_id", "", "expected text that is not empty, got '' at $.rollout_id"),
        ("attempt", -1, "expected an integer from 0 to 2147483647, got -1 at $.attempt"),
        ("parent_id", 5, "expected text, got 5 at $.parent_id"),
        ("name", "my/judge", "expected a name of 1 to 64 letters, digits and -_., got 'my/judge' at $.name"),
        ("name", "j" * 65, "expected a name of 1 to 64 letters, digits and -_., got 'jjj"),
        ("name", "main", "expected a name other than main, assembler, publisher, fork, got 'main' at $.name"),
    ],
)
def test_ref_with_a_bad_field_is_refused_by_name(field, value, text):
    fields = {"run_id": "run", "group_id": "g", "rollout_id": "r", "attempt": 0, "name": "judge"}
    with pytest.raises(InvalidEvent) as caught:
        RolloutRef(**fields | {field: value})
    assert f"RolloutRef refused: {text}" in str(caught.value)


def test_ref_without_argument_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("ROLLOUTLOG_REF", REF.text())
    assert ref_of(None) == REF


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "no ref: expected a RolloutRef, its text, or one in the environment variable ROLLOUTLOG_REF, got none"),
        ("x", "environment variable ROLLOUTLOG_REF: RolloutRef not read: expected text that begins with 'rolloutlog-r"),
    ],
)
def test_ref_of_a_bad_environment_is_refused_naming_the_variable(monkeypatch, value, text):
    monkeypatch.setenv("ROLLOUTLOG_REF", value)
    with pytest.raises(InvalidSettings) as caught:
        ref_of(None)
    assert text in str(caught.value)


def test_rollouts_ref_names_its_place(published):
    events = published.publisher
    with events.rollout("t", rollout_id="r-7") as rollout:
        outside = rollout.ref("judge")
        with rollout.agent("a", span_id="a1"):
            with rollout.call(span_id="c1") as call:
                call.record(prompt_ids=[1], response_ids=[2])
            inside = rollout.ref("judge")
    assert outside == RolloutRef(events.run_id, "r-7", "r-7", 0, "judge")
    assert inside == RolloutRef(events.run_id, "r-7", "r-7", 0, "judge", "a1", "c1")


def test_ref_of_a_rollout_that_is_not_begun_stores_its_start(published):
    published.publisher.rollout("t").ref("judge")
    assert list(published.log.events), "stored when the ref is returned"
    assert len(published.of(RolloutStarted)) == 1


async def test_aref_waits_for_the_start_without_blocking_the_loop(published):
    published.log.gate.clear()
    rollout = published.publisher.rollout("t", rollout_id="r-7")
    with pytest.raises(NotStored, match=r"within 0\.02 s RolloutStarted of rollout r-7, attempt 0, is not stored"):
        await rollout.aref("judge", timeout_s=0.02)
    published.publisher._client.call_soon(published.log.gate.set)
    assert (await rollout.aref("judge")).name == "judge"


def test_ref_whose_start_is_not_stored_awaits_nobody(published):
    def unavailable(records) -> None:
        raise LogUnavailable("no answer in 5 s")

    published.log.before = unavailable
    rollout = published.publisher.rollout("t")
    with pytest.raises(NotStored, match="the log's last answer was LogUnavailable: no answer in 5 s"):
        rollout.ref("judge", awaited=True, timeout_s=0.05)
    published.log.before = lambda records: None
    rollout.finish()
    assert published.of(RolloutCompleted)[0].awaited_names == ()


def test_ref_of_a_start_that_the_log_refused_says_so(published):
    def refuse(records) -> None:
        raise RecordTooLarge("too large")

    published.log.before = refuse
    with pytest.raises(NotStored, match="RolloutStarted of rollout r-7, attempt 0, was refused and is lost: too large"):
        published.publisher.rollout("t", rollout_id="r-7").ref("judge")


def test_completed_rollout_awaits_the_names_of_its_awaited_refs_once(published):
    with published.publisher.rollout("t") as rollout:
        for name, awaited in (("judge", True), ("tool", False), ("judge", True), ("rater", True)):
            rollout.ref(name, awaited=awaited)
    assert published.of(RolloutCompleted)[0].awaited_names == ("judge", "rater")


def test_failed_rollout_awaits_nobody(published):
    """Whoever it awaits may never have been started."""
    with published.publisher.rollout("t", awaited_rewards=["style"]) as rollout:
        rollout.ref("judge", awaited=True)
        rollout.finish(status="failed", error="lost")
    end = published.of(RolloutCompleted)[0]
    assert (end.awaited_names, end.awaited_rewards) == ((), ())


def test_ref_after_finish_can_no_longer_be_awaited(published):
    rollout = published.publisher.rollout("t", rollout_id="r-7", awaited_rewards=["style"])
    rollout.finish()
    assert rollout.ref("judge").name == "judge"
    with pytest.raises(NotOpen, match="awaited ref 'judge' refused: rollout r-7, attempt 0, is finished"):
        rollout.ref("judge", awaited=True)


@pytest.mark.parametrize(
    ("name", "awaited", "text"),
    [
        ("fork", False, "ref refused: expected a name other than main, assembler, publisher, fork, got 'fork'"),
        (5, False, "ref refused: expected a name of 1 to 64 letters, digits and -_., got 5 at $.name"),
        ("judge", "yes", "ref refused: expected True or False, got 'yes' at $.awaited (rollout r-7, attempt 0)"),
    ],
)
def test_ref_with_a_bad_argument_is_refused_by_name(published, name, awaited, text):
    with pytest.raises(InvalidEvent) as caught:
        published.publisher.rollout("t", rollout_id="r-7").ref(name, awaited=awaited)
    assert text in str(caught.value)


def test_ref_above_the_most_names_a_rollout_can_await_is_refused(published):
    with published.publisher.rollout("t") as rollout:
        for number in range(256):
            rollout.ref(f"judge-{number}", awaited=True)
        with pytest.raises(InvalidEvent, match=r"expected at most 256 names, got 257 of them at \$\.awaited_names"):
            rollout.ref("one-more", awaited=True)
    assert len(published.of(RolloutCompleted)[0].awaited_names) == 256
