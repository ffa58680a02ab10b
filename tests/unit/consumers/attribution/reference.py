"""The rules of attribution written down as directly as they read: slow, with sets and walks, for comparison only."""

import re
from collections.abc import Sequence
from typing import Any

from rolloutlog.consumers.attribution import AttributionSettings, Entry, RewardEntry, SpanEntry


class Reference:
    def __init__(self, entries: Sequence[Entry], settings: AttributionSettings) -> None:
        self.settings = settings
        self.spans: dict[str, SpanEntry] = {}
        self.rewards: dict[str, RewardEntry] = {}
        self.at: dict[tuple[str, str], int] = {}  # ("span" or "reward", id) → position
        for position, entry in enumerate(entries):
            if isinstance(entry, SpanEntry):
                if self.spans.setdefault(entry.span_id, entry) is entry:
                    self.at.setdefault(("span", entry.span_id), position)
            elif self.rewards.setdefault(entry.reward_id, entry) is entry:
                self.at.setdefault(("reward", entry.reward_id), position)
        self.groups = self._groups()
        self.call_of = {s: names[0] for names in self.groups.values() for s in names[1]}

    # -- terms

    def way_up(self, span_id: str | None) -> list[str]:
        way: list[str] = []
        while span_id is not None and span_id not in way:
            way.append(span_id)
            span_id = self.spans[span_id].parent_id if span_id in self.spans else None
        return way

    def kind(self, span_id: str) -> str:
        return self.spans[span_id].kind if span_id in self.spans else ""

    def _groups(self) -> dict[Any, tuple[str, list[str]]]:
        """key → (span it is named after, its spans)"""
        groups: dict[Any, list[str]] = {}
        for s in self.spans.values():
            if s.kind == "call":
                groups.setdefault((s.response_id, s.choice_index) if s.response_id else s.span_id, []).append(s.span_id)
        with_tokens = {key: [s for s in ids if self.spans[s].token_count] for key, ids in groups.items()}
        return {key: (with_tokens[key][0], ids) for key, ids in groups.items() if with_tokens[key]}

    def members(self, call: str) -> list[str]:
        return [s for s in self.spans if self.call_of.get(s) == call]

    def above(self, call: str) -> set[str]:
        return {up for s in self.members(call) for up in self.way_up(s)}

    def recorded(self, call: str) -> int:
        return min(self.at["span", s] for s in self.members(call))

    def judge(self, call: str) -> bool:
        return any(self.kind(up) == "evaluator" for up in self.above(call))

    def calls(self) -> list[str]:
        calls = [c for c, _ in self.groups.values() if not self.judge(c)]
        return sorted(calls, key=lambda c: (self.spans[c].start_ns, self.recorded(c)))

    def agent(self, call: str) -> str | None:
        for s in self.members(call):
            for up in self.way_up(s):
                if self.kind(up) == "agent":
                    return self.spans[up].name
        return None

    def selected(self, call: str) -> bool:
        st, members = self.settings, self.members(call)
        operations = [self.spans[up].name for up in self.above(call) if self.kind(up) == "operation"]
        agents = [a for a in [self.agent(call)] if a is not None]
        models = [self.spans[s].model for s in [call, *members] if self.spans[s].model][:1]

        def hit(pattern: str, names: Sequence[str | None]) -> bool:
            return any(re.search(pattern, name or "") for name in names)

        wanted = [(st.agent, agents), (st.operation, operations), (st.model, models)]
        unwanted = [(st.exclude_agent, agents), (st.exclude_operation, operations)]
        return (
            all(p is None or hit(p, names) for p, names in wanted)
            and not any(p is not None and hit(p, names) for p, names in unwanted)
            and all(self.spans[s].trainable for s in members)
        )

    def by_response(self, response_id: str) -> str | None:
        calls = [c for c, _ in self.groups.values() if response_id and self.spans[c].response_id == response_id]
        return min(calls, key=self.recorded, default=None)

    def after(self, r: RewardEntry) -> str | None:
        if r.after_call is None:
            return None
        return self.call_of.get(r.after_call) or self.by_response(r.after_call)

    def is_before(self, position: int, r: RewardEntry) -> bool:
        after = self.after(r)
        return position < self.at["reward", r.reward_id] or (after is not None and position <= self.recorded(after))

    def earlier(self, r: RewardEntry, beneath: str | None = None, extra: str | None = None) -> list[str]:
        """In log order. extra: a call that counts as beneath too."""
        found = [c for c in self.calls() if self.is_before(self.recorded(c), r)]
        found = [c for c in found if beneath is None or beneath in self.above(c) or c == extra]
        return sorted(found, key=self.recorded)

    # -- rules

    def set_aside(self, r: RewardEntry, by_name: bool) -> str | None:
        later = [o for o in self.rewards.values() if self.at["reward", o.reward_id] > self.at["reward", r.reward_id]]
        if any(o.supersedes == r.reward_id for o in later):
            return "revised"
        rollout = [o for o in later if o.scope == "rollout" and o.value is not None and o.name == r.name]
        if by_name and r.scope == "rollout" and rollout:
            return "revised"
        return "no_verdict" if r.value is None else None

    def linked(self, r: RewardEntry) -> list[str]:
        assert r.target is not None
        key, value = r.target
        if key == "response_id":
            call = self.by_response(value)
            return [] if call is None or self.judge(call) else [call]
        if key == "operation":
            begun = [
                (s.start_ns, self.at["span", s.span_id], s.span_id)
                for s in self.spans.values()
                if s.kind == "operation" and s.name == value
                if self.is_before(self.at["span", s.span_id], r) or s.start_ns <= r.time_ns
            ]
            if not begun:
                return []
            value = max(begun)[2]
        if value in self.call_of:
            return [] if self.judge(self.call_of[value]) else [self.call_of[value]]
        found = self.earlier(r, beneath=value)
        return found[-1:] if self.settings.link_subtree == "last" else found

    def enclosing(self, r: RewardEntry) -> list[str] | str:
        if r.parent_id is None:
            if len({self.agent(c) for c in self.calls()}) > 1:
                return "ambiguous"
            return self.earlier(r)[-1:] or "unattributed"
        climb = self.way_up(r.parent_id)
        for place in range(len(climb) - 1, -1, -1):
            if self.kind(climb[place]) == "evaluator":
                climb = climb[place + 1 :]
                break
        for s in climb:
            if s in self.call_of and not self.judge(self.call_of[s]):
                return [self.call_of[s]]
            found = self.earlier(r, beneath=s, extra=self.after(r))
            if found:
                return found[-1:]
            if self.kind(s) == "agent":
                break
        return "unattributed"

    def found(self, r: RewardEntry) -> list[str] | str:
        if r.target is not None:
            return self.linked(r) or "unresolved"
        if self.settings.policy == "enclosing":
            return self.enclosing(r)
        return (self.settings.policy == "nearest" and self.earlier(r)[-1:]) or "unattributed"

    # -- Agent Lightning 0.3

    def taken(self) -> dict[str, str]:
        """reward id → call"""
        part = [r for r in self.rewards.values() if self.set_aside(r, by_name=False) is None]
        items: list[tuple[int, int, str | None, Any]] = [
            (self.spans[c].start_ns, self.recorded(c), self.spans[c].parent_id, c)
            for c in self.calls()
            if self.selected(c)
        ] + [(r.time_ns, self.at["reward", r.reward_id], r.parent_id, r) for r in part]
        if self.settings.policy == "first_occurrence":
            return self._walk([i[3] for i in sorted(items, key=lambda i: i[:2])])
        items.sort(key=lambda i: i[1])
        taken: dict[str, str] = {}
        for parent in {i[2] for i in items}:
            taken |= self._walk([i[3] for i in items if i[2] == parent])
        return taken

    def _walk(self, items: list[Any]) -> dict[str, str]:
        met: list[str] = []
        taken: dict[str, str] = {}
        for item in items:
            if isinstance(item, str):
                met.append(item)
                continue
            for call in reversed(met):
                if self.spans[call].end_ns <= item.time_ns and call not in taken.values():
                    taken[item.reward_id] = call
                    break
        return taken

    # -- result

    def result(self) -> dict[str, Any]:
        """calls: call → (step values per name, final values); outcomes: reward id → (outcome, calls, rule, found)"""
        turns, st = self.calls(), self.settings
        selected = [c for c in turns if self.selected(c)]
        values: dict[str, dict[str, list[float]]] = {c: {} for c in selected}
        outcomes: dict[str, Any] = {}
        final: dict[str, float] = {}
        old = st.policy in ("first_occurrence", "first_sibling")
        taken = self.taken() if old else {}
        for i, r in self.rewards.items():
            aside = self.set_aside(r, by_name=not old)
            hit: list[str] | str = aside or ([taken[i]] if i in taken else "unattributed")
            if not old and aside is None:
                hit = "final" if r.scope == "rollout" else self.found(r)
            if hit == "final":
                final[r.name] = r.value or 0.0
            if isinstance(hit, str):
                outcomes[i] = (hit, [], "final" if hit == "final" else None, [])
                continue
            rule = "linked" if r.target and not old else st.policy
            kept = [c for c in selected if c in hit]
            outcomes[i] = (
                ("attributed", kept, rule, []) if kept else ("filtered", [], rule, [c for c in turns if c in hit])
            )
            for c in kept:
                share = (r.value or 0.0) / (len(kept) if st.link_subtree == "split" and not old else 1)
                values[c].setdefault(r.name, []).append(share)
        if old:
            last = [c for c in selected if c in taken.values()][-1:]
            final = {"reward": self.rewards[i].value or 0.0 for i, c in taken.items() if [c] == last}  # noqa: B035
        reduce = {"sum": sum, "last": lambda v: v[-1], "mean": lambda v: sum(v) / len(v), "max": max}[st.reduce]
        reached = {"last_call": selected[-1:], "every_call": selected, "none": []}[st.final]
        calls = {}
        for c in selected:
            step = {name: reduce(v) for name, v in values[c].items()}
            own = final if c in reached and not old else {}
            weights = {} if old else st.weights
            parts = [weights.get(n, 1) * v for n, v in [*step.items(), *own.items()]]
            calls[c] = (step, own, sum(parts) if parts else None)
        return {"calls": calls, "final": final, "outcomes": outcomes, "turns": turns}
