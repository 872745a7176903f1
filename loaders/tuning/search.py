"""The search for the fastest setting: successive halving, with measured bounds.

The search only calls the functions that it is given, so tests run it without a clock.

Choosing settings by short profiles, and leaving out settings that cannot win, is an idea of GMI-DRL (Wang et al., 2022,
arXiv 2206.08482). Halving is Jamieson and Talwalkar's (2016, arXiv 1502.07943).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gear_data.errors import GearError, InvalidArgumentError
from gear_data.loaders.tuning.setting import Setting

#: Settings whose medians differ by less are tied. It is the noise of a median of short runs on a quiet machine.
TIE = 0.02
#: Settings that are compared in the final rounds, and the number of those rounds.
FINALISTS, FINAL_ROUNDS = 5, 5
_SCREENING_ROUNDS = 5
#: Share of the time that screening may take, and the shortest and longest run.
_SCREENING_SHARE, _SHORTEST, _LONGEST = 0.5, 0.05, 0.5
#: The least share of a batch's cost that remains if several batches are built at once.
_AMORTISED = 0.5


@dataclass
class Candidate:
    """A setting, and its measurements.

    Attributes:
        setting: the setting.
        runs: seconds of a step, one number for each run. A finalist has only its final rounds.
        verdict: why the setting was dropped; empty: it was not.
        final: whether it took part in the final rounds.
    """

    setting: Setting
    runs: list[float] = field(default_factory=list)
    verdict: str = ""
    final: bool = False

    @property
    def seconds(self) -> float:
        """Median of the runs; infinite without a run."""
        return statistics.median(self.runs) if self.runs else math.inf


@dataclass(frozen=True)
class Measurements:
    """The functions by which a search measures.

    Attributes:
        step: step(setting, seconds) returns the seconds of a training step, in a run of this length.
        bare: bare(seconds) returns the seconds of a step without loading.
        left: returns the seconds that are left.
    """

    step: Callable[[Setting, float], float]
    bare: Callable[[float], float]
    left: Callable[[], float]


@dataclass(frozen=True)
class Outcome:
    """Result of a search.

    Attributes:
        candidates: all settings, the simplest first.
        chosen: the chosen one.
        bare: median seconds of a step without loading.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    bare: float


def search(settings: Sequence[Setting], measurements: Measurements) -> Outcome:
    """Returns the simplest of the settings that are tied with the fastest.

    Args:
        settings: at least one.
        measurements: measures them.

    Raises:
        GearError: no setting works; the error is of the simplest one.
    """
    state = _Search([Candidate(each) for each in sorted(settings, key=lambda s: s.simplicity)], measurements)
    state.screen()
    state.compare()
    finalists = state.finalists()
    tied = [each for each in finalists if is_tied(each, finalists[0])]
    chosen = min(tied, key=lambda c: c.setting.simplicity)
    return Outcome(tuple(state.candidates), chosen, statistics.median(state.bare))


def is_tied(candidate: Candidate, best: Candidate) -> bool:
    """Returns whether a finalist is tied with the fastest.

    The median of the ratios within the rounds decides. Other load on the machine, which changes from round to round,
    cancels in a ratio.
    """
    ratios = [one / other for one, other in zip(candidate.runs, best.runs, strict=False)]
    return _tied(statistics.median(ratios), 1.0)


def _tied(seconds: float, best: float) -> bool:
    return seconds <= best * (1 + TIE)


class _Search:
    def __init__(self, candidates: list[Candidate], measurements: Measurements) -> None:
        self.candidates = candidates
        self.bare: list[float] = []
        self._measure = measurements
        self._total = measurements.left()
        self._error: GearError | None = None

    def _alive(self) -> list[Candidate]:
        return [each for each in self.candidates if not each.verdict]

    def _measured(self) -> list[Candidate]:
        return [each for each in self._alive() if each.runs]

    def finalists(self) -> list[Candidate]:
        """Returns the candidates that are still in, the fastest first.

        Raises:
            GearError: none is.
        """
        if not (measured := self._measured()):
            raise self._error or InvalidArgumentError("there are no settings to try")
        return sorted(measured, key=lambda c: c.seconds)

    def _run(self, candidate: Candidate, seconds: float) -> None:
        try:
            candidate.runs.append(self._measure.step(candidate.setting, seconds))
        except GearError as error:
            self._error = self._error or error
            candidate.verdict, candidate.runs = f"failed: {error.message}", []

    def screen(self) -> None:
        """Measures all settings that can win, and keeps the better half of each round."""
        reserve = self._total * (1 - _SCREENING_SHARE)
        for number in range(_SCREENING_ROUNDS):
            before = [len(each.runs) == 0 for each in self._alive()]
            share = max(0.0, self._measure.left() - reserve) / (_SCREENING_ROUNDS - number)
            length = min(_LONGEST, max(_SHORTEST, 2 * share / (len(before) + 1)))
            self.bare.append(self._measure.bare(length))
            for candidate in self._alive():
                if self._measured() and self._measure.left() < reserve:
                    break
                if candidate.runs or self._can_win(candidate):
                    self._run(candidate, length)
            self._halve(number)
            # With few left, a round that changed nothing is the last one.
            unchanged = number > 0 and before == [len(each.runs) == 0 for each in self._alive()]
            if (len(self._measured()) <= FINALISTS and unchanged) or self._measure.left() < reserve:
                break
        for candidate in self._alive():
            if not candidate.runs:
                out = self._can_win(candidate)
                candidate.verdict = "not measured: no time left" if out else f"cannot win: {self._limit(candidate)}"

    def _halve(self, number: int) -> None:
        """Drops the slower half.

        Of settings that are tied with the fastest, the simpler ones stay.
        """
        measured = self._measured()
        if not measured:
            return
        best = min(each.seconds for each in measured)

        def rank(candidate: Candidate) -> tuple[float, ...]:
            tied = _tied(candidate.seconds, best)
            return (0.0, *candidate.setting.simplicity) if tied else (1.0, candidate.seconds)

        for candidate in sorted(measured, key=rank)[max(FINALISTS, -(-len(measured) // 2)) :]:
            tied = _tied(candidate.seconds, best)
            candidate.verdict = f"{'tied, not simpler' if tied else 'slower'} in round {number + 1}"

    def _can_win(self, candidate: Candidate) -> bool:
        """Returns whether the candidate can be chosen, by its bound."""
        measured = self._measured()
        if not measured:
            return True
        best = min(measured, key=lambda c: c.seconds)
        bound = self._bound(candidate)
        if candidate.setting.simplicity < best.setting.simplicity:
            return _tied(bound, best.seconds)
        return not _tied(best.seconds, bound)

    def _bound(self, candidate: Candidate) -> float:
        """Returns the least seconds of a step that a setting can have.

        A step is never shorter than the step without loading. The cost of building a batch is measured without a thread
        and workers. At most the thread and the consumer share it, or all workers.
        """
        bare, setting = min(self.bare), candidate.setting
        inline = [
            min(each.runs)
            for each in self.candidates
            if each.runs and each.setting.source == setting.source and not each.setting.batches_ahead
        ]
        if not inline or not setting.batches_ahead:
            return bare
        cost = max(0.0, min(inline) - statistics.median(self.bare))
        if (setting.batches_at_once or 1) > 1:
            cost *= _AMORTISED
        shared = cost / setting.num_workers if setting.num_workers else (bare + cost) / 2
        return max(bare, shared)

    def _limit(self, candidate: Candidate) -> str:
        bound = self._bound(candidate)
        if bound <= min(self.bare):
            return "the choice takes no longer than the step without loading"
        return f"at least {bound * 1e3:.3g} ms, by the cost of a batch"

    def compare(self) -> None:
        """Measures the finalists in alternating rounds. Only whole rounds count."""
        finalists = self.finalists()
        screened = [each.runs for each in finalists]
        for each in finalists:
            each.final, each.runs = True, []
        share = self._measure.left() / FINAL_ROUNDS
        length = min(_LONGEST, max(_SHORTEST, 0.8 * share / (len(finalists) + 1)))
        longest = 0.0
        for number in range(FINAL_ROUNDS):
            began = self._measure.left()
            if number and began < longest:
                break
            self.bare.append(self._measure.bare(length))
            for candidate in finalists if number % 2 == 0 else finalists[::-1]:
                self._run(candidate, length)
            longest = max(longest, began - self._measure.left())
        for candidate, runs in zip(finalists, screened, strict=True):
            if not candidate.runs and not candidate.verdict:
                candidate.runs = runs
