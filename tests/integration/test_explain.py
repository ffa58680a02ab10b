"""`rolloutlog explain` on the embedded log: real trajectories through the command line, and a log full of faults."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.store import Store
from support.workload import make_workload

from rolloutlog.consumers.attribution import AttributionSettings, Outcome
from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.consumers.explaining.account import account_of
from rolloutlog.consumers.explaining.finding import find_rollout
from rolloutlog.consumers.explaining.survey import Which, survey

from .test_import import shared_data


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The 40 trajectories, assembled with default settings."""
    file = shared_data()
    url = f"sqlite:///{tmp_path_factory.mktemp('explain')}/log.db"
    run(url, "import", "messages", str(file))
    run(url, "assemble", "--until-end")
    return url


def run(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(rolloutlog, [*arguments, "--log", url], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_explain_of_a_trajectory_says_what_the_outcome_broadcast_would_change(url: str) -> None:
    rollout = json.loads(run(url, "batches", "rollouts").splitlines()[0])
    found = json.loads(run(url, "explain", rollout["rollout_id"], "--final", "every_call", "--json"))
    calls = found["comparison"]["calls"]
    assert found["settings_exact"]
    assert (found["comparison"]["moved"], found["comparison"]["changed"]) == (1, len(calls) - 1)
    assert [each["before"]["total"] for each in calls[:-1]] == [None] * (len(calls) - 1)
    assert {each["after"]["total"] for each in calls} == {calls[-1]["before"]["total"]}


def test_explain_diff_of_all_trajectories_says_that_the_old_matching_loses_their_rewards(url: str) -> None:
    found = json.loads(run(url, "explain", "--diff", "enclosing", "first_occurrence", "--json"))
    assert (found["rollouts"], found["changed"], found["gone"], found["not_completed"]) == (40, 40, 0, 0)
    assert found["rewards"]["reward"]["ways"] == [{"before": "final", "after": "unattributed", "count": 40}]
    assert found["all"]["before"]["calls"] == found["all"]["after"]["calls"] == 579
    assert (found["all"]["before"]["rewarded"], found["all"]["after"]["rewarded"]) == (40, 0)


def test_explain_diff_of_settings_files_over_the_last_rollouts_has_means_of_both(url: str, tmp_path: Path) -> None:
    file = tmp_path / "broadcast.toml"
    file.write_text('[attribution]\nfinal = "every_call"\n', encoding="utf-8")
    found = json.loads(run(url, "explain", "--diff", "enclosing", str(file), "--last", "8", "--json"))
    assert (found["rollouts"], found["all"]["before"]["rewarded"]) == (8, 8)
    assert found["all"]["after"]["rewarded"] == found["all"]["after"]["calls"]


def test_explain_of_a_log_full_of_faults_makes_every_published_outcome_anew(tmp_path: Path) -> None:
    """What counts is decided by the fold: late, repeated, superseded and bad events are left out here too."""
    with Store(f"sqlite:///{tmp_path}/log.db") as store:
        store.append(make_workload(7, groups=24).records)
        run(store.url, "assemble", "--until-end")
        results = [each for batch in store.batches() for each in batch.rollouts]
        for result in results:
            account = account_of(store.run(find_rollout(store.log, result.rollout_id)))
            assert account.exact
            assert account.attribution is not None
            recorded = {o.reward_id: Outcome(o.outcome, o.calls, o.rule, o.found) for o in result.outcomes}
            assert dict(account.attribution.outcomes) == recorded, result.rollout_id
        same = ("same", AttributionSettings())
        found = store.run(survey(store.log, same, same, Which()))
        completed = [each for each in results if each.status in ("emitted", "group_dropped")]
        assert (found.rollouts, found.changed, found.gone) == (len(completed), 0, 0)
        assert found.not_completed == len(results) - len(completed)


def test_explain_with_a_flag_changes_the_settings_that_the_record_was_made_with(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/log.db") as store:
        store.append(make_workload(7, groups=4).records)
        run(store.url, "assemble", "--until-end", "--final", "every_call", "--min-group", "1")
        rollout_id = store.batches()[0].rollouts[0].rollout_id
        found = json.loads(run(store.url, "explain", rollout_id, "--policy", "nearest", "--json"))
        assert found["settings_exact"]
        assert (found["settings"]["final"], found["settings"]["policy"]) == ("every_call", "enclosing")
        assert found["comparison"]["after"] == "policy nearest, final every_call"
