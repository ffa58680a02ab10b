"""Values of one kind on two sides, apart by policy version: of a reward, or the totals of samples. Pure."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from rolloutlog.consumers.comparing.spread import Histogram, Spread, difference, floats, histogram, joined, spread_of

Version = int | None


@dataclass(frozen=True, slots=True)
class VersionSpread:
    """What was written by one policy version. `bins`: counts of both sides over the histogram of all versions."""

    policy_version: Version
    before: Spread
    after: Spread
    bins: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Spreads:
    """Both sides' values: all of them, and by policy version in order, an unknown one last."""

    before: Spread
    after: Spread
    histogram: Histogram | None
    versions: tuple[VersionSpread, ...]

    @property
    def difference(self) -> float | None:
        """Of the means."""
        return difference(self.before.mean, self.after.mean)


@dataclass(slots=True)
class Values:
    """Collects values, 8 bytes each, and says how they are spread."""

    _by_version: dict[Version, tuple["array[float]", "array[float]"]] = field(default_factory=dict)

    def add(self, version: Version, before: float | None, after: float | None) -> None:
        """A value of each side, where there is one."""
        of_version = self._by_version.get(version)
        if of_version is None:
            of_version = self._by_version[version] = array("d"), array("d")
        if before is not None:
            of_version[0].append(before)
        if after is not None:
            of_version[1].append(after)

    def spreads(self, before_whole: Mapping[Version, int], after_whole: Mapping[Version, int]) -> Spreads:
        """How they are spread. `..._whole`: by version how many might have had one."""
        sides = tuple(joined(each[side] for each in self._by_version.values()) for side in (0, 1))
        found = histogram(*sides)
        versions = []
        for version in sorted({*before_whole, *after_whole}, key=lambda each: (each is None, each)):
            own = tuple(floats(each) for each in self._by_version.get(version, (array("d"), array("d"))))
            bins = ((), ()) if found is None else (found.counts(own[0]), found.counts(own[1]))
            one = spread_of(own[0], before_whole.get(version, 0))
            other = spread_of(own[1], after_whole.get(version, 0))
            versions.append(VersionSpread(version, one, other, bins))
        return Spreads(
            spread_of(sides[0], sum(before_whole.values())),
            spread_of(sides[1], sum(after_whole.values())),
            found,
            tuple(versions),
        )
