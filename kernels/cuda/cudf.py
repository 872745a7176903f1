"""Filters on a GPU: Polars' GPU engine, which is cuDF (package `cudf-polars`).

The same rows as on the CPU, by what is asked of it: comparisons and logic over columns and constants, in which there
is nothing to round. The engine's arithmetic and sums may differ from the CPU's in the last bit, its regular expressions
and its order of NaN do differ (it has NaN > 1 false, Polars has it true): such go to the CPU.
"""

from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gear_data.common.extras import import_extra
from gear_data.kernels.cuda.nvml import gpu_count

if TYPE_CHECKING:
    import polars as pl

_log = logging.getLogger(__name__)

#: Fewer rows are done on the CPU before they would be on the GPU. Not measured yet.
MIN_ROWS = 1 << 20
_OPERATORS = {"Eq", "NotEq", "EqValidity", "NotEqValidity", "Lt", "LtEq", "Gt", "GtEq", "And", "Or", "Xor",
              "LogicalAnd", "LogicalOr"}  # fmt: skip
_PREDICATES = {"Not", "IsNull", "IsNotNull", "IsFinite", "IsInfinite", "IsNan", "IsNotNan", "IsBetween",
               "AllHorizontal", "AnyHorizontal"}  # fmt: skip
_TEXT_PREDICATES = {"StartsWith", "EndsWith"}

#: Expressions that are the CPU's, and what the log has been told: a filter of steps comes here block by block.
_left: set[str] = set()
_told: set[str] = set()


def true_values(frame: pl.DataFrame, expression: pl.Expr, columns: list[str]) -> pl.Series | None:
    """Bool [rows], with nulls: a Boolean expression over these columns of a frame, worked out on a GPU. None where that
    is the CPU's work: there is no GPU, there are few rows, or, as one line of the log then says, cuDF is not there or
    not up to it."""
    if not columns or len(frame) < MIN_ROWS or not gpu_count():
        return None
    text = str(expression)
    if find_spec("cudf_polars") is None:
        _tell("filters run on the CPU: cudf-polars is not installed (pip install 'gear-data[cudf]')")
        return None
    if text in _left:
        return None
    found = _attempt(frame.select(columns), expression)
    if isinstance(found, str):
        _left.add(text)
        _tell(f"{text} runs on the CPU: {found}")
        return None
    return found


def _tell(line: str) -> None:
    if line not in _told:
        _told.add(line)
        _log.warning(line)


def _attempt(frame: pl.DataFrame, expression: pl.Expr) -> pl.Series | str:
    """The values, or why the GPU is not to give them."""
    import polars as pl

    try:
        if not _is_exact(json.loads(expression.meta.serialize(format="json"))):
            return "more than comparisons and logic, of which a GPU may give other rows"
        values, nan = evaluate(frame, expression)
    except (Exception, pl.exceptions.PanicException) as error:  # cuDF, RMM and CUDA have errors of many kinds
        return f"the GPU engine gave {type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[0]}"
    return "a column holds NaN, which a GPU compares otherwise" if nan else values


def evaluate(frame: pl.DataFrame, expression: pl.Expr) -> tuple[pl.Series, bool]:
    """An expression's values, whatever it is, by cuDF; and whether a column of floats has NaN.

    Raises:
        MissingExtraError: cuDF is not installed.
        Exception: whatever cuDF, RMM and Polars raise.
    """
    import polars as pl

    rmm = import_extra("rmm", "cudf")
    # Plain cudaMalloc: the engine's own choice is a pool of most of the GPU's memory, which it would keep.
    engine = pl.GPUEngine(raise_on_fail=True, executor="in-memory", memory_resource=rmm.mr.CudaMemoryResource())
    floats = [name for name, dtype in frame.schema.items() if dtype.is_float()]
    wanted = [expression.alias("found"), *(pl.col(name).is_nan().any().alias(f"nan {name}") for name in floats)]
    result = frame.lazy().select(wanted).collect(engine=engine)
    return result["found"], any(result[f"nan {name}"][0] for name in floats)


def _is_exact(node: Any) -> bool:
    """Whether a node of an expression, as Polars writes it in JSON, and all below it are of those whose values are the
    same on every engine. What is not known is not."""
    if not isinstance(node, dict) or len(node) != 1:
        return False
    ((kind, body),) = node.items()
    match kind, body:
        case "Column", str():
            return True
        case "Literal", {"Dyn": dict(value)} | {"Scalar": dict(value)}:
            # NaN and infinities are written as null; a date or a decimal as a list or a dict.
            return all(isinstance(number, bool | int | float | str) for number in value.values())
        case "Alias", [inner, str()]:
            return _is_exact(inner)
        case "BinaryExpr", {"left": left, "op": str(operator), "right": right}:
            return operator in _OPERATORS and _is_exact(left) and _is_exact(right)
        case "Function", {"input": list(inputs), "function": {"Boolean": name}}:
            return _name(name) in _PREDICATES and all(map(_is_exact, inputs))
        case "Function", {"input": list(inputs), "function": {"StringExpr": name}}:
            return _name(name) in _TEXT_PREDICATES and all(map(_is_exact, inputs))
        case _:
            return False


def _name(function: Any) -> str:
    """Of a function, written by its name or, with options, as {name: options}."""
    return next(iter(function)) if isinstance(function, dict) and function else str(function)
