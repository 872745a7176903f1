"""EpisodeBoundaries: where episodes begin and end in a source with a row per step."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gear_data.common.keywords import check_count, suggest_fields
from gear_data.errors import InvalidArgumentError


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class EpisodeBoundaries:
    """Where episodes begin and end in a source with a row per step.

    `convert(episodes=...)` and `lint(episodes=...)` take it. A source may need none of the values: see its format.

    Attributes:
        episode_column: the column that numbers or names the episodes.
        step_column: the column that numbers the steps of an episode.
        end_column: the column that is true at the last step of an episode.
        max_episode_steps: the length of an episode, if the source does not mark the ends of episodes.

    Raises:
        InvalidArgumentError: a column is no text, or the length is below 1.
    """

    episode_column: str | None = None
    step_column: str | None = None
    end_column: str | None = None
    max_episode_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("episode_column", "step_column", "end_column"):
            if not isinstance(column := getattr(self, name), str | None):
                raise InvalidArgumentError(f"{name} must be the name of a column, not {column!r}")
        if self.max_episode_steps is not None:
            check_count("max_episode_steps", self.max_episode_steps, 1)

    @property
    def columns(self) -> tuple[str | None, str | None, str | None]:
        """The columns of episodes, steps and ends; None where none is named."""
        return self.episode_column, self.step_column, self.end_column

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the values that are given."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) is not None)
