"""Pack: rows of a fixed number of steps or tokens, filled with several windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gear_data.common.keywords import check_range, suggest_fields
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.checks import check_bool

#: The most steps or tokens of a batch: `cu_seqlens` is int32.
_MOST_TOKENS = (1 << 31) - 1


@suggest_fields
@dataclass(frozen=True)
class Pack:
    """How windows are packed into the rows of a batch.

    Attributes:
        length: steps of a row; with the preset `gato`, tokens.
        cut: what happens if whole episodes are packed, and one is longer than a row. False: an error. True: it is cut
            into windows of a row's length, and a shorter last one.
        split: False: windows are whole. True: they lie one after another, and a window that does not fit in a row goes
            on in the next one, where its positions go on. All rows are full.

    Raises:
        InvalidArgumentError: a field out of its range.
    """

    length: int
    cut: bool = False
    split: bool = False

    def __post_init__(self) -> None:
        check_range("pack", self.length, 1)
        check_bool("cut", self.cut)
        check_bool("split", self.split)
        if self.cut and self.split:
            raise InvalidArgumentError(
                "cut=True cuts episodes into windows of a row, and with split=True windows go on in the next row",
                hint="give one of them",
            )
        object.__setattr__(self, "length", int(self.length))  # NumPy integers are not JSON


def check_pack(pack: Any, batch_size: int) -> Pack | None:
    """Returns the argument `pack`.

    Args:
        pack: the steps of a row; a `Pack`, or its fields.
        batch_size: rows of a batch.

    Raises:
        InvalidArgumentError: `pack` is of another form, or a batch has more steps than int32 counts.
    """
    if pack is None or isinstance(pack, Pack):
        found = pack
    elif isinstance(pack, Mapping):
        found = Pack(**{str(name): value for name, value in pack.items()})
    elif isinstance(pack, int | np.integer) and not isinstance(pack, bool):
        found = Pack(int(pack))
    else:
        raise InvalidArgumentError(f"pack is {pack!r}", hint="give the steps of a row, such as pack=4096, or a Pack")
    if found is not None and found.length * batch_size > _MOST_TOKENS:
        raise InvalidArgumentError(
            f"pack={found.length} and batch_size={batch_size} are {found.length * batch_size:,} steps in a batch, and "
            f"cu_seqlens counts to {_MOST_TOKENS:,}",
            hint="give a smaller batch_size: with pack=, it is the number of rows",
        )
    return found
