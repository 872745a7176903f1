"""EpisodeBoundaries: where episodes begin and end in a source with a row per step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from numbers import Integral
from typing import Any, get_args

from gear_data.common.keywords import check_range, suggest_fields
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.words import ResetSteps


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class EpisodeBoundaries:
    """Where episodes begin and end in a source with a row per step.

    `convert(episodes=...)` and `lint(episodes=...)` take it. A source may need none of the values: see its format.

    Attributes:
        episode_column: the column that numbers or names the episodes. Several columns, such as `("seed", "episode")`,
            name an episode together.
        step_column: the column that numbers the steps of an episode.
        end_column: the column that is true at the last step of an episode.
        max_episode_steps: the length of an episode, if the source does not mark the ends of episodes.
        file_is_episode: whether each file of a table is one episode.
        reset_steps: what becomes of first steps that only reset the environment, as Gymnasium's vector environments
            and the time steps of dm_env have them: `drop` leaves them out, `keep` keeps them. None leaves them out if
            they are clear.
        only_episodes: the numbers of the episodes to read, of a source whose metadata lists them (LeRobot). Files that
            have none of these episodes are not read. None reads all.

    Raises:
        InvalidArgumentError: a column is no text, the length is below 1, files and a column say what an episode is,
            `reset_steps` is another word, or `only_episodes` has no numbers, or others than 0, 1, ...
    """

    episode_column: str | tuple[str, ...] | None = None
    step_column: str | None = None
    end_column: str | None = None
    max_episode_steps: int | None = None
    file_is_episode: bool = False
    reset_steps: ResetSteps | None = None
    only_episodes: tuple[int, ...] | None = field(default=None, metadata={"only_if_given": True})

    def __post_init__(self) -> None:
        if isinstance(self.episode_column, list | tuple):
            names = tuple(self.episode_column)
            object.__setattr__(self, "episode_column", names[0] if len(names) == 1 else names)
        for name in ("episode_column", "step_column", "end_column"):
            column = getattr(self, name)
            several = isinstance(column, tuple) and name == "episode_column" and column != ()
            if not all(isinstance(each, str | None) for each in (column if several else (column,))):
                raise InvalidArgumentError(f"{name} must be the name of a column, not {column!r}")
        if self.max_episode_steps is not None:
            check_range("max_episode_steps", self.max_episode_steps, 1)
        if not isinstance(self.file_is_episode, bool):
            raise InvalidArgumentError(f"file_is_episode must be True or False, not {self.file_is_episode!r}")
        if self.file_is_episode and self.episode_column is not None:
            raise InvalidArgumentError(
                "episode_column and file_is_episode both say what an episode is", hint="leave one of them out"
            )
        if self.reset_steps not in (None, *get_args(ResetSteps)):
            raise InvalidArgumentError(f"reset_steps must be 'drop', 'keep' or None, not {self.reset_steps!r}")

        if self.only_episodes is not None:
            object.__setattr__(self, "only_episodes", _episode_numbers(self.only_episodes))

    @property
    def episode_columns(self) -> tuple[str, ...]:
        """The columns that name an episode together; empty if none is named."""
        if self.episode_column is None:
            return ()
        return (self.episode_column,) if isinstance(self.episode_column, str) else self.episode_column

    @property
    def columns(self) -> dict[str, str]:
        """Name of a column -> the option that names it."""
        named = dict.fromkeys(self.episode_columns, "--episode-column")
        others = {"--step-column": self.step_column, "--end-column": self.end_column}
        return named | {name: option for option, name in others.items() if name is not None}

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The names of the values that are given and that a format must support."""
        names = (each.name for each in fields(self) if each.name != "reset_steps")
        return tuple(name for name in names if getattr(self, name) not in (None, False))

    def one_episode_column(self) -> str | None:
        """Returns the column of the episodes, for formats that read one; None if none is named.

        Raises:
            InvalidArgumentError: several columns are named.
        """
        if len(self.episode_columns) > 1:
            raise InvalidArgumentError(
                f"the format reads one episode column, not {', '.join(self.episode_columns)}", hint="name one of them"
            )
        return next(iter(self.episode_columns), None)


def _episode_numbers(given: Any) -> tuple[int, ...]:
    """Returns the numbers in rising order, each once. Raises InvalidArgumentError for other values."""
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    numbers = [int(each) for each in found if isinstance(each, Integral) and not isinstance(each, bool)]
    if len(numbers) < len(found) or not 0 <= min(numbers, default=-1) <= max(numbers) < 1 << 63:
        raise InvalidArgumentError(f"only_episodes must be numbers of episodes, such as [0, 1], not {shown(given)}")
    return tuple(sorted({*numbers}))
