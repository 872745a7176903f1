"""The expected windows of samplers, from plain integers and fractions.

The loops share no code with the package.

Sources: the rules of gear_data.selection.windows.WindowRule and the documented drawing of each sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tests.support.feed.reference import Window, below, shuffle_positions, word64

DOMAIN_UNIFORM, DOMAIN_EPISODE, DOMAIN_ANCHOR, DOMAIN_PLACE = 1, 4, 5, 6


@dataclass(frozen=True)
class Case:
    """Episodes of a view, a window rule, and a step filter.

    The filter is `flags` (one for each step of the whole dataset) and `mode`.
    """

    lengths: Sequence[int]  # of all episodes of the dataset
    ids: Sequence[int]  # the view's
    context: int
    stride: int = 1
    anchor: str = "start"
    short: bool = True
    flags: Sequence[bool] | None = None
    mode: str = "first"

    def window(self, episode: int, a: int, place: int = 0) -> Window:
        """Returns the window of anchor a of an episode.

        `place` is the anchor's position in its window, if the rule draws one.
        """
        length, context = self.lengths[episode], self.context
        if self.anchor == "start":
            steps = [s for s in range(a, a + context) if s < length]
        elif self.anchor == "end":
            steps = [s for s in range(a - context + 1, a + 1) if s >= 0]
        elif self.short:
            steps = [s for s in range(a - place, a - place + context) if 0 <= s < length]
        else:
            first = a - place
            while first < 0:
                first += 1
            while first + context > length:
                first -= 1
            steps = list(range(first, first + context))
        return episode, steps[0], len(steps)

    def satisfies(self, episode: int, a: int) -> bool:
        if self.flags is None:
            return True
        before = sum(self.lengths[:episode])
        if self.anchor == "random":
            # The samplers take this mask of steps as a mask of anchors.
            return self.flags[before + a]
        _, start, length = self.window(episode, a)
        inside = self.flags[before + start : before + start + length]
        return inside[0] if self.mode == "first" else all(inside)

    def anchors(self, episode: int) -> list[int]:
        length, context = self.lengths[episode], self.context
        steps = list(range(0, length, self.stride))
        if not self.short:
            if length < context:
                steps = []
            elif self.anchor == "start":
                steps = [a for a in steps if a + context <= length]
            elif self.anchor == "end":
                steps = list(range(context - 1, length, self.stride))
        return [a for a in steps if self.satisfies(episode, a)]

    def all_anchors(self) -> list[tuple[int, int]]:
        return [(episode, a) for episode in self.ids for a in self.anchors(episode)]

    def cut(self, seed: int, step: int, slot: int, episode: int, a: int) -> Window:
        place = below(seed, DOMAIN_PLACE, step, slot, self.context) if self.anchor == "random" else 0
        return self.window(episode, a, place)

    def uniform(self, seed: int, step: int, count: int, by: str, ids: Sequence[int] | None = None) -> list[Window]:
        """Draws windows uniformly; `ids` restricts them to these episodes, like TopK."""
        domain = DOMAIN_UNIFORM if ids is None else DOMAIN_EPISODE
        kept = [(e, a) for e, a in self.all_anchors() if ids is None or e in ids]
        episodes = list(dict.fromkeys(e for e, _ in kept))
        windows = []
        for slot in range(count):
            if by == "step":
                episode, a = kept[below(seed, domain, step, slot, len(kept))]
            else:
                episode = episodes[below(seed, domain, step, slot, len(episodes))]
                own = self.anchors(episode)
                a = own[below(seed, DOMAIN_ANCHOR, step, slot, len(own))]
            windows.append(self.cut(seed, step, slot, episode, a))
        return windows

    def topk(self, seed: int, step: int, count: int, by: str, values: Sequence[float], k: int) -> list[Window]:
        """`values` of the view's episodes in order; NaN is no value."""
        usable = [i for i, episode in enumerate(self.ids) if self.anchors(episode) and values[i] == values[i]]
        chosen = sorted(usable, key=lambda i: (-values[i], i))[:k]
        return self.uniform(seed, step, count, by, [self.ids[i] for i in chosen])

    def fifo(self, seed: int, step: int, count: int, position: int) -> list[Window]:
        anchors = self.all_anchors()
        return [self.cut(seed, step, slot, *anchors[(position + slot) % len(anchors)]) for slot in range(count)]

    def shuffle(self, seed: int, step: int, count: int, position: int) -> list[Window]:
        anchors = self.all_anchors()
        places = shuffle_positions(seed, position, position + count, len(anchors))
        return [self.cut(seed, step, slot, *anchors[place]) for slot, place in enumerate(places)]

    def masses(self, weights: Sequence[float], by: str, exponent: int | None = None) -> list[tuple[int, int]]:
        """(episode, int_weights) of the view's episodes that can be drawn."""
        counts = [len(self.anchors(episode)) for episode in self.ids]
        usable = [i for i in range(len(counts)) if counts[i] and weights[i] > 0]
        each = [counts[i] if by == "step" else 1 for i in usable]
        own = [weights[i] for i in usable]
        int_weights = integer_weights(own, each)[0] if exponent is None else int_weights_at(own, exponent)
        return [(self.ids[i], q * c) for i, q, c in zip(usable, int_weights, each, strict=True)]

    def exponent(self, weights: Sequence[float], by: str) -> int:
        """The exponent of the integer weights, which later updates keep."""
        counts = [len(self.anchors(episode)) if by == "step" else 1 for episode in self.ids]
        usable = [i for i in range(len(counts)) if weights[i] > 0]
        return integer_weights([weights[i] for i in usable], [counts[i] for i in usable])[1]

    def weighted(
        self, seed: int, step: int, count: int, by: str, weights: Sequence[float], replacement: bool,
        exponent: int | None = None,
    ) -> list[Window]:  # fmt: skip
        masses = self.masses(weights, by, exponent)
        draw = draws if replacement else distinct_draws
        windows = []
        for slot, (index, rest) in enumerate(draw(seed, step, count, [mass for _, mass in masses])):
            episode, mass = masses[index]
            own = self.anchors(episode)
            number = rest * len(own) // mass if by == "step" else below(seed, DOMAIN_ANCHOR, step, slot, len(own))
            windows.append(self.cut(seed, step, slot, episode, own[number]))
        return windows


def int_weights_at(weights: Sequence[float], exponent: int) -> list[int]:
    """max(1, the nearest integer, ties to even) of weight * 2^exponent; 0 for 0."""
    return [max(1, round(Fraction(weight) * Fraction(2) ** exponent)) if weight else 0 for weight in weights]


def integer_weights(weights: Sequence[float], units: Sequence[int]) -> tuple[list[int], int]:
    """Returns integer weights and their exponent, for positive weights.

    The exponent makes the total 2^60 or more.
    """

    def total(exponent: int) -> tuple[int, list[int]]:
        int_weights = int_weights_at(weights, exponent)
        return sum(q * c for q, c in zip(int_weights, units, strict=True)), int_weights

    largest, count = Fraction(max(weights)), sum(units)
    exponent = 60 - count.bit_length()
    # The power of two above the largest weight.
    above = 0
    while Fraction(2) ** above <= largest:
        above += 1
    while Fraction(2) ** (above - 1) > largest:
        above -= 1
    exponent -= above
    summed, int_weights = total(exponent)
    while summed < 1 << 60:
        exponent += 61 - summed.bit_length()
        summed, int_weights = total(exponent)
    return int_weights, exponent


def find(point: int, masses: Sequence[int]) -> tuple[int, int]:
    """Returns the index of a point, and the rest of the point there."""
    for index, mass in enumerate(masses):
        if point < mass:
            return index, point
        point -= mass
    raise IndexError(point)


def draws(seed: int, step: int, count: int, masses: Sequence[int]) -> list[tuple[int, int]]:
    return [find(below(seed, DOMAIN_EPISODE, step, slot, sum(masses)), masses) for slot in range(count)]


def distinct_draws(seed: int, step: int, count: int, masses: Sequence[int]) -> list[tuple[int, int]]:
    """Draws without replacement, slot by slot.

    A slot uses its own random words until one gives a free position; the 33rd draw takes the rest.
    """
    taken: list[tuple[int, int]] = []
    for slot in range(count):
        attempt, repeats = 0, 0
        while True:
            left = list(masses)
            if repeats == 32:
                for index, _ in taken:
                    left[index] = 0
            bound = sum(left)
            while True:
                high, low = divmod(word64(seed, DOMAIN_EPISODE, step, slot, attempt) * bound, 1 << 64)
                attempt += 1
                if low >= (1 << 64) % bound:
                    break
            found = find(high, left)
            if found[0] not in [index for index, _ in taken]:
                break
            repeats += 1
        taken.append(found)
    return taken
