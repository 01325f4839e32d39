"""The errors of predictions as a tree: what one job says of others, with what certainty, and whose word counts.

Errors are shared from the whole to its parts, as a tree of normal distributions (random effects; Gelman et al.,
Bayesian Data Analysis, 5.4): what is off in

    the cluster                 ~ N(0, cluster^2)                drivers, the network, how it is run
    a GPU type in it            ~ N(the cluster's, gpu_type^2)   clocks, memory, links
    a framework on that         ~ N(the type's, framework^2)     releases, kernels, settings
    a model with that           ~ N(the framework's, model^2)
    a class of plans of that    ~ N(the model's, plan^2)
    a locality of that          ~ N(the class's, locality^2)     links and network that are not as the data sheet says
    what one job shows          ~ N(the locality's, noise^2)

so that one job moves a prediction a little, many jobs all the way, and a key that no job has run under takes what is
known of the nearest thing that one has. By how much things of one level differ is believed beforehand and learned like
all else (`Spreads`; empirical Bayes by expectation maximisation, Dempster, Laird and Rubin 1977). Numbers count no more
than `outlier` deviations from the median of their kind, in which "no error" has one vote.

What a job shows, its owner says. So every namespace has a book of its own, and predictions for its jobs go by that.
What others have seen counts where several of them agree: each namespace has a vote about a key and about all that it is
part of, and those near the median of all are believed (`_believed`), nobody for much more than the others. Who shows
something else than all others wherever they can be compared counts for nobody (`_doubted`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from trimtab_policy.perf.lessons import DEPTH, LEVELS, CorrectionRules, Key, Level, Path, State, anonymous
from trimtab_policy.perf.votes import consensus

Z80 = 1.2815515655446004
"""Standard deviations on either side of the mean that four fifths of a normal distribution lie within."""
AGREE = 2.0
"""Deviations from the median within which a vote agrees with it."""
ODD = 2.5
"""Deviations beyond which all that a namespace shows is no chance."""
SMALL = 0.02
"""Differences of 2 % are none."""
MEDIAN_VARIANCE = math.pi / 2
"""Of a median of many numbers, over that of their mean."""
_NOBODY = "-"
"""A namespace that has taught nothing; no state calls one so."""
_ROUNDS = 3
"""Of expectation and maximisation: a fourth one changes spreads by less than 2 %."""


class Estimate(Struct, frozen=True):
    """By how much steps take longer than predicted, as far as is known."""

    mean: float
    """Of ln(observed / predicted)."""
    deviation: float
    """Of what is asked about; what single jobs differ by comes on top of it (`CorrectionEstimates.noise`)."""
    level: Level
    """The nearest level that anything was seen of: `LOCALITY` where jobs of the very key were."""
    jobs: int
    """That were seen of it."""
    largest_factor: float

    @property
    def factor(self) -> float:
        """Observed over predicted, bounded."""
        return self._bounded(self.mean)

    @property
    def low(self) -> float:
        """Lower end of the 80 % interval of the factor."""
        return self._bounded(self.mean - Z80 * self.deviation)

    @property
    def high(self) -> float:
        return self._bounded(self.mean + Z80 * self.deviation)

    def _bounded(self, error: float) -> float:
        return min(self.largest_factor, max(1 / self.largest_factor, math.exp(error)))


class LevelEffect(NamedTuple):
    """What one level adds to a correction: its random effect, as far as is known."""

    level: Level
    factor: float
    """Observed over predicted step time, of this level over the one above; their product is the correction, before its
    bounds."""
    jobs: int
    """That have shown it."""


class CorrectionEstimates(Struct, frozen=True):
    """What a state comes to, for the jobs of one namespace."""

    keys: dict[Key, Estimate] = {}
    groups: dict[Path, Estimate] = {}
    """Of each level above: for keys of it that nothing was seen of."""
    noise: float = CorrectionRules().noise
    """What jobs of one key differ by, as far as is known."""
    measured: float = 0.0
    """How much of the spreads that deviations follow from was seen here, and not believed beforehand: 0 to 1."""

    def of(self, key: Key) -> Estimate | None:
        """Of the nearest level that anything is known of; None where nothing is known even of the cluster."""
        return self.keys.get(key) or self.near(key.path[:-1])

    def effects(self, key: Key) -> tuple[LevelEffect, ...]:
        """What each level that anything is known of adds for a key, from the cluster on."""
        path, found, above = key.path, list[LevelEffect](), 0.0
        for length in range(DEPTH + 1):
            of_level = self.keys.get(key) if length == DEPTH else self.groups.get(path[:length])
            if of_level:
                found.append(LevelEffect(of_level.level, math.exp(of_level.mean - above), of_level.jobs))
                above = of_level.mean
        return tuple(found)

    def next(self, estimate: Estimate) -> tuple[float, float]:
        """The 80 % interval of what the next such job shows: observed over predicted, without any correction."""
        width = self.unsure(estimate)
        return estimate.factor / width, estimate.factor * width

    def unsure(self, estimate: Estimate) -> float:
        """Factor of the 80 % interval of what the next such job shows."""
        return math.exp(Z80 * math.hypot(estimate.deviation, self.noise))

    def near(self, path: Path) -> Estimate | None:
        """The same of a level's path."""
        found = (self.groups.get(path[:length]) for length in range(len(path), -1, -1))
        return next((each for each in found if each), None)


class _Vote(NamedTuple):
    """What one namespace has seen of one thing."""

    mean: float
    """Of ln(observed / predicted)."""
    weight: float
    """One over the variance of that."""
    jobs: float
    """That have shown it."""


class Spreads(NamedTuple):
    """By how much things of one kind differ: variances of ln(observed / predicted)."""

    levels: tuple[float, ...]
    """Of each level, from the cluster on, around the one above."""
    noise: float
    """Of the jobs of one key."""
    scale: float = 1.0
    """Over what is believed: of keys, from what others of their kind make expect of them."""


_Leaves = dict[Path, _Vote]
"""Of one namespace: what it has seen of each key."""


class Learned:
    """What a state comes to, for each namespace; found when it is asked for, and remembered."""

    def __init__(self, state: State | None = None, rules: CorrectionRules | None = None) -> None:
        self._rules = rules or CorrectionRules()
        self._belief = Spreads(tuple(getattr(self._rules, level.value) ** 2 for level in LEVELS), self._rules.noise**2)
        self._errors: dict[str, dict[Path, list[float]]] = {}
        """Namespace -> key -> what its jobs show."""
        self._keys: dict[Path, Key] = {}
        # Sorted, so that sums are the same to the last bit whichever key was seen last.
        for known in sorted((state or State()).known, key=lambda known: (known.namespace, known.key)):
            path = known.key.path
            self._keys[path] = known.key
            self._errors.setdefault(known.namespace, {})[path] = [seen.error for seen in known.seen]
        self._leaves = {name: self._seen_of(errors, self._belief) for name, errors in self._errors.items()}
        self._votes: dict[str, _Leaves] = {}
        self._shown = {name: self._differences(errors) for name, errors in self._errors.items()}
        """What each namespace has seen of the spreads: of keys over their belief, of the noise, and of each level from
        the GPU type on."""
        self._doubted = _doubted(self._leaves.keys(), _by_path(self._leaves))
        self._found: dict[str, CorrectionEstimates] = {}

    def __bool__(self) -> bool:
        """Whether anything was learned at all."""
        return bool(self._leaves)

    def of(self, namespace: str) -> CorrectionEstimates:
        """For jobs of this namespace, by its own name."""
        return self.by(anonymous(namespace))

    def by(self, namespace: str) -> CorrectionEstimates:
        """The same by the name that it has in the state. All that have taught nothing are told the same."""
        name = namespace if namespace in self._leaves else _NOBODY
        if name not in self._found:
            self._found[name] = self._for(name)
        return self._found[name]

    def spreads(self, namespace: str) -> Spreads:
        """By how much things differ as a namespace is told, by its name in the state: what it has seen itself, and what
        others have, where several agree."""
        shown, others = self._shown.get(namespace), self._others(namespace)

        def seen(place: int) -> list[_Vote]:
            theirs = [vote for name in others if (vote := self._shown[name][place])]
            return _believed(shown[place] if shown else None, theirs)

        spreads = Spreads(self._belief.levels, self._learned(self._belief.noise, seen(1)), self._learned(1.0, seen(0)))
        return self._with_levels(spreads, [seen(place) for place in range(2, 2 + DEPTH)])

    def factors(self) -> dict[Key, float]:
        """Key without locality -> the factor that is used for it: of the namespaces that have seen it, the median."""
        seen: dict[Path, list[float]] = {}
        for namespace, leaves in self._leaves.items():
            groups = self.by(namespace).groups
            for path in {leaf[:-1] for leaf in leaves}:
                seen.setdefault(path, []).append(groups[path].factor)
        return {Key(path[2], path[0], path[3]): median(said) for path, said in seen.items()}

    def _others(self, namespace: str) -> list[str]:
        """Who counts for others than themselves."""
        return [name for name in self._leaves if name not in (namespace, *self._doubted)]

    def _for(self, namespace: str) -> CorrectionEstimates:
        spreads, others = self.spreads(namespace), self._others(namespace)
        votes, seen = {name: self._for_others(name) for name in others}, dict[Path, list[_Vote]]()
        own = self._upwards(self._seen_of(self._errors.get(namespace, {}), spreads), spreads)
        for path, said in _by_path(votes).items():
            seen[path] = _believed(own.get(path), list(said.values()), alone=len(path) >= DEPTH - 1)
        seen |= {path: [vote] for path, vote in own.items() if path not in seen}
        keys: dict[Key, Estimate] = {}
        groups: dict[Path, Estimate] = {}
        for path, (mean, variance) in _downwards(seen, spreads, spreads.noise / self._belief.noise).items():
            if not seen[path]:
                continue
            below, jobs = math.fsum(spreads.levels[len(path) + 1 :]), round(math.fsum(vote.jobs for vote in seen[path]))
            found = Estimate(mean, math.sqrt(variance + below), LEVELS[len(path)], jobs, self._rules.largest_factor)
            if len(path) == DEPTH:
                keys[self._keys[path]] = found
            else:
                groups[path] = found
        jobs = groups[()].jobs if () in groups else 0
        return CorrectionEstimates(keys, groups, math.sqrt(spreads.noise), jobs / (jobs + self._rules.believed))

    def _for_others(self, namespace: str) -> _Leaves:
        """What one namespace has seen of its keys and of all that they are part of, as others may believe it."""
        if namespace not in self._votes:
            self._votes[namespace] = self._upwards(self._leaves[namespace], self._belief)
        return self._votes[namespace]

    def _seen_of(self, errors: Mapping[Path, list[float]], spreads: Spreads) -> _Leaves:
        """What one namespace has seen of each key; where keys are far apart, single jobs may be, too."""
        reach = self._rules.outlier * self._rules.noise * max(1.0, math.sqrt(spreads.scale))
        found = {}
        for path, shown in errors.items():
            near = _robust(shown, reach)
            found[path] = _Vote(math.fsum(near) / len(near), len(near) / self._belief.noise, len(near))
        return found

    def _differences(self, errors: Mapping[Path, list[float]]) -> tuple[_Vote | None, ...]:
        """What one namespace has seen of each spread: the logarithm of a mean square, from so many differences.

        The scale is that of keys, each held against what the others make expect of it. Then expectation and
        maximisation: what is learned of the levels tells how far apart things are, and the other way.
        """
        most = 2 * self._rules.outlier * self._rules.noise
        counted = [_squares(shown, most) for shown in errors.values()]
        noise = _spread_vote(sum(n for n, _ in counted), math.fsum(s for _, s in counted), self._belief.noise)
        believed = self._belief._replace(noise=self._learned(self._belief.noise, [noise] if noise else []))
        leaves = self._seen_of(errors, believed)
        expected = _expected(self._upwards(leaves, believed), believed)
        squares = sorted(
            (math.fsum(shown) / len(shown) - mean) ** 2 / (variance + believed.noise / len(shown))
            for path, shown in errors.items()
            for mean, variance in (expected[path],)
        )[:-1]  # one odd key, or one broken job, is no reason to expect it of all
        capped = math.fsum(min(self._rules.outlier**2, square) for square in squares)
        scale = _spread_vote(len(squares), capped, 1.0)
        spreads = believed._replace(scale=self._learned(1.0, [scale] if scale else []))
        spreads, found = self._with_levels(spreads, [[]] * DEPTH), list[_Vote | None]()
        leaves = self._seen_of(errors, spreads)
        for _ in range(_ROUNDS):
            apart = _apart_by_level(self._upwards(leaves, spreads), spreads, self._rules.outlier)
            found = [
                _spread_vote(count, total, belief)
                for (count, total), belief in zip(apart, self._belief.levels[1:], strict=True)
            ]
            spreads = self._with_levels(spreads, [[vote] if vote else [] for vote in found])
        return scale, noise, *found

    def _with_levels(self, spreads: Spreads, seen: Sequence[Sequence[_Vote]]) -> Spreads:
        """The spreads with levels as they are believed to be at this scale, and as they were seen."""
        levels = (
            self._learned(belief * spreads.scale, votes)
            for belief, votes in zip(self._belief.levels, ((), *seen), strict=True)
        )
        return spreads._replace(levels=tuple(levels))

    def _upwards(self, leaves: _Leaves, spreads: Spreads) -> dict[Path, _Vote]:
        """What one namespace has seen of its keys and of all that they are part of, by what they show alone.

        Parts are brought to within reach of their median first: by as much as things so far apart are believed to
        differ.
        """
        level, found = leaves, dict(leaves)
        for depth in range(DEPTH, 0, -1):
            parts: dict[Path, list[_Vote]] = {}
            for path, vote in level.items():
                parts.setdefault(path[:-1], []).append(vote)
            apart = math.fsum(self._belief.levels[1 : depth + 1]) * max(1.0, spreads.scale)
            reach = self._rules.outlier * math.sqrt(apart)
            level = {path: _whole(votes, spreads.levels[depth], reach) for path, votes in parts.items()}
            found |= level
        return found

    def _learned(self, belief: float, seen: Sequence[_Vote]) -> float:
        """A variance: that which was believed, and what was seen, by their numbers; bounded."""
        count, rules = math.fsum(vote.jobs for vote in seen), self._rules
        total = math.fsum(vote.jobs * math.exp(vote.mean) for vote in seen)
        found = (rules.believed * belief + total) / (rules.believed + count)
        return min(belief * rules.wider**2, max(belief / rules.wider**2, found))


def _by_path(votes: Mapping[str, _Leaves]) -> dict[Path, dict[str, _Vote]]:
    """Votes of namespaces by what they are about."""
    found: dict[Path, dict[str, _Vote]] = {}
    for name, of_name in votes.items():
        for path, vote in of_name.items():
            found.setdefault(path, {})[name] = vote
    return found


def _squares(errors: list[float], reach: float) -> tuple[int, float]:
    """Degrees of freedom, and the sum of squares of differences between jobs of one key."""
    errors = _robust(errors, reach)
    mean = math.fsum(errors) / len(errors)
    return len(errors) - 1, math.fsum((error - mean) ** 2 for error in errors)


def _spread_vote(count: float, total: float, belief: float) -> _Vote | None:
    """What so many squared differences of this sum say of a variance. The logarithm of their mean has a variance of
    about 2 / count; that none differ at all is not believed of so few."""
    return _Vote(math.log(max(total / count, belief / 64)), count / 2, count) if count else None


def _whole(parts: Sequence[_Vote], variance: float, reach: float) -> _Vote:
    """What parts that differ by this variance say of the whole."""
    weights = [1 / (variance + 1 / part.weight) for part in parts]
    means = _robust([part.mean for part in parts], reach)
    weight = math.fsum(weights)
    mean = math.fsum(w * m for w, m in zip(weights, means, strict=True)) / weight
    return _Vote(mean, weight, math.fsum(part.jobs for part in parts))


def _downwards(
    seen: Mapping[Path, Sequence[_Vote]], spreads: Spreads, noisier: float = 1.0
) -> dict[Path, tuple[float, float]]:
    """Posterior mean and variance of every error: given that of the whole a part is normal, and over the posterior of
    the whole it is again. Every path's beginnings are there, too.

    `noisier` is the variance of the noise over that which was believed. Means go by the latter, so that a job that
    shows more never makes a factor smaller by making all jobs less sure; variances are those of these means.
    """
    found: dict[Path, tuple[float, float]] = {}
    for path in sorted(seen, key=len):
        whole, of_whole = found[path[:-1]] if path else (0.0, 0.0)
        apart, own = spreads.levels[len(path)], math.fsum(vote.weight for vote in seen[path])
        shown = math.fsum(vote.weight * vote.mean for vote in seen[path])
        share = 1 / (1 + apart * own)
        of_shown = share * (1 - share) * apart * (noisier if len(path) == DEPTH else 1.0)
        found[path] = share * (whole + apart * shown), share**2 * (apart + of_whole) + of_shown
    return found


def _expected(votes: Mapping[Path, _Vote], spreads: Spreads) -> dict[Path, tuple[float, float]]:
    """Mean and variance of every error as all else makes expect it, what was seen of it itself left out."""
    found: dict[Path, tuple[float, float]] = {(): (0.0, spreads.levels[0])}
    parts: dict[Path, list[tuple[Path, float, float]]] = {}
    for path, vote in votes.items():
        if path:
            parts.setdefault(path[:-1], []).append((path, 1 / (spreads.levels[len(path)] + 1 / vote.weight), vote.mean))
    for whole in sorted(parts, key=len):
        mean, variance = found[whole]
        weight = 1 / variance + math.fsum(w for _, w, _ in parts[whole])
        total = mean / variance + math.fsum(w * m for _, w, m in parts[whole])
        for path, w, m in parts[whole]:
            left = max(weight - w, 1 / variance)
            found[path] = (total - w * m) / left, 1 / left + spreads.levels[len(path)]
    return found


def _apart_by_level(votes: Mapping[Path, _Vote], spreads: Spreads, outlier: float) -> list[tuple[int, float]]:
    """Of each level from the GPU type on: how many things there are, and the expected sum of squares of what they
    differ from their whole by. A single one counts no more than an outlier does."""
    posterior, found = _downwards({path: [vote] for path, vote in votes.items()}, spreads), [(0, 0.0)] * DEPTH
    for path, (mean, _) in posterior.items():
        if not path:
            continue
        depth, (whole, of_whole) = len(path), posterior[path[:-1]]
        apart, own = spreads.levels[depth], votes[path].weight
        share = 1 / (1 + apart * own)
        most = (2 * outlier) ** 2 * apart
        square = min(most, (mean - whole) ** 2) + share * apart + (1 - share) ** 2 * of_whole
        count, total = found[depth - 1]
        found[depth - 1] = count + 1, total + square
    return found


def estimates(state: State, rules: CorrectionRules | None = None, namespace: str = "") -> CorrectionEstimates:
    """What is known of every key and every GPU type, for the jobs of a namespace as the state calls it."""
    return Learned(state, rules).by(namespace)


def _robust(errors: list[float], reach: float) -> list[float]:
    """Each of them, brought to within reach of the median."""
    middle = consensus(errors) if len(errors) > 1 else 0.0
    return [max(middle - reach, min(middle + reach, error)) for error in errors]


def _believed(own: _Vote | None, others: list[_Vote], *, alone: bool = False) -> list[_Vote]:
    """What counts of what others have seen, beside a namespace's own: votes that agree, for what they have seen, with
    the median of all; none for more than twice the median of them. Two of them at least; or one, where it may stand
    `alone` beside the namespace's own.
    """
    mine = [own] if own else []
    least = 1 if own and alone else 2
    if len(others) < least:
        return mine
    middle, usual = median(vote.mean for vote in (*others, *mine)), median(vote.weight for vote in others)
    agree = [
        vote if vote.weight <= 2 * usual else _Vote(vote.mean, 2 * usual, vote.jobs * 2 * usual / vote.weight)
        for vote in others
        if abs(vote.mean - middle) <= AGREE / math.sqrt(vote.weight) + SMALL
    ]
    return [*mine, *agree] if len(agree) >= least else mine


def _doubted(namespaces: Iterable[str], votes: Mapping[Path, Mapping[str, _Vote]]) -> frozenset[str]:
    """Namespaces that count for nobody else, because their jobs show something else than those of all others wherever
    both can be compared. Found one after the other, the oddest first: what a liar says makes the honest look odd, too.
    """
    here, out = set(namespaces), set[str]()
    while len(here) > 2:  # of two nobody can tell which one it is
        odd = {name: apart for name in here if (apart := _apart(name, here - {name}, votes)) > 1}
        if not odd:
            break
        if len(here) == 3:  # the median of two others, of which one may lie, is half a lie: who agree best stay
            odd = {name: min(_apart(name, {other}, votes) for other in here - {name}) for name in here}
        worst = max(sorted(odd), key=lambda name: odd[name])
        here.discard(worst)
        out.add(worst)
    return frozenset(out)


def _apart(name: str, beside: Set[str], votes: Mapping[Path, Mapping[str, _Vote]]) -> float:
    """How far what a namespace shows lies from the median of these, over all keys that two of them have seen, too (or
    the one that is asked about): on average, or in its spread; over what chance would do. 0 where nothing can be
    compared."""
    least = min(2, len(beside))
    compared = 0
    weights = total = squares = 0.0
    for of_key in votes.values():
        others = [vote for other, vote in of_key.items() if other in beside]
        if name not in of_key or len(others) < least:
            continue
        vote, compared = of_key[name], compared + 1
        doubt = (MEDIAN_VARIANCE if len(others) > 1 else 1) / math.fsum(each.weight for each in others)
        variance = 1 / vote.weight + doubt
        apart = vote.mean - median(each.mean for each in others)
        weights, total, squares = weights + 1 / variance, total + apart / variance, squares + apart**2 / variance
    if not compared:
        return 0.0
    bias = abs(total / weights) / max(SMALL, ODD / math.sqrt(weights))
    spread = squares / compared / max(ODD, 1 + 3 * math.sqrt(2 / compared))
    return max(bias, spread)
