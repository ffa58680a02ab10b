"""A fold version always makes the same of the same events."""

from unit.consumers.fold_golden import events, file_of, outputs

from rolloutlog.consumers.settings import FOLD_VERSION
from rolloutlog.eventstore.events import KINDS


def test_fold_of_the_kept_log_gives_what_this_fold_version_gave_before():
    assert file_of(FOLD_VERSION).exists(), "run tests/unit/consumers/fold_golden.py"
    assert outputs() == file_of(FOLD_VERSION).read_text(encoding="utf-8"), (
        "the same events give other outputs: raise FOLD_VERSION, then run tests/unit/consumers/fold_golden.py"
    )


def test_kept_log_holds_every_kind_of_event_and_bad_ones():
    headers = b" ".join(value or b"" for record in events() for _, value in record.headers).decode(errors="replace")
    assert {kind for kind in KINDS if f"{kind}/" in headers} == KINDS.keys()
    text = file_of(FOLD_VERSION).read_text(encoding="utf-8")
    for each in (
        "dead letter",
        "batch",
        "closing",
        "end of the run",
        "emitted",
        "failed",
        "expired",
        "surplus",
        "incomplete",
    ):
        assert each in text, each
