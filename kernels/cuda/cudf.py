"""Filters on a GPU, by Polars' GPU engine: cuDF (package `cudf-polars`).

The GPU evaluates only comparisons and logic over columns and constants. Such expressions round nothing, so both engines
select the same rows. All other expressions run on the CPU. The GPU engine's arithmetic and sums may differ from the
CPU's in the last bit. Its regular expressions differ, and so does its order of NaN: NaN > 1 is false on the GPU, and
true on the CPU.

Why: docs/explanation/decisions/expressions.md
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

#: Fewer rows run on the CPU, which is faster for them. The number has not been measured.
MIN_ROWS = 1 << 20
_OPERATORS = {"Eq", "NotEq", "EqValidity", "NotEqValidity", "Lt", "LtEq", "Gt", "GtEq", "And", "Or", "Xor",
              "LogicalAnd", "LogicalOr"}  # fmt: skip
_PREDICATES = {"Not", "IsNull", "IsNotNull", "IsFinite", "IsInfinite", "IsNan", "IsNotNan", "IsBetween",
               "AllHorizontal", "AnyHorizontal"}  # fmt: skip
_TEXT_PREDICATES = {"StartsWith", "EndsWith"}

#: Expressions that run on the CPU, and lines that were logged. Without these sets, a filter of steps would try the GPU
#: and log a line for every block.
_cpu_expressions: set[str] = set()
_logged: set[str] = set()


def true_values(frame: pl.DataFrame, expression: pl.Expr, columns: list[str]) -> pl.Series | None:
    """Evaluates a Boolean expression over these columns of a frame on a GPU.

    Returns:
        Bool [rows], with nulls; None if the CPU must evaluate the expression. Reasons are: there is no GPU, the frame
        has fewer than `MIN_ROWS` rows, cuDF is not installed, or cuDF cannot evaluate the expression exactly. The last
        two reasons are logged once.
    """
    if not columns or len(frame) < MIN_ROWS or not gpu_count():
        return None
    text = str(expression)
    if find_spec("cudf_polars") is None:
        _warn_once("filters run on the CPU: cudf-polars is not installed (pip install 'gear-data[cudf]')")
        return None
    if text in _cpu_expressions:
        return None
    values = _attempt(frame.select(columns), expression)
    if isinstance(values, str):
        _cpu_expressions.add(text)
        _warn_once(f"{text} runs on the CPU: {values}")
        return None
    return values


def _warn_once(line: str) -> None:
    if line not in _logged:
        _logged.add(line)
        _log.warning(line)


def _attempt(frame: pl.DataFrame, expression: pl.Expr) -> pl.Series | str:
    """Returns the values, or the reason why the CPU must compute them."""
    import polars as pl

    try:
        if not _is_exact(json.loads(expression.meta.serialize(format="json"))):
            return "it is more than comparisons and logic, so a GPU may select other rows"
        values, nan = evaluate(frame, expression)
    except (Exception, pl.exceptions.PanicException) as error:  # cuDF, RMM and CUDA have errors of many kinds
        return f"the GPU engine gave {type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[0]}"
    return "a column holds NaN, which a GPU compares otherwise" if nan else values


def evaluate(frame: pl.DataFrame, expression: pl.Expr) -> tuple[pl.Series, bool]:
    """Evaluates any expression with cuDF.

    Returns:
        (the values, whether a column of floats has NaN).

    Raises:
        MissingExtraError: cuDF is not installed.
        Exception: any error of cuDF, RMM or Polars.
    """
    import polars as pl

    rmm = import_extra("rmm", "cudf")
    # Plain cudaMalloc, because the engine's default is a pool that keeps most of the GPU's memory.
    engine = pl.GPUEngine(raise_on_fail=True, executor="in-memory", memory_resource=rmm.mr.CudaMemoryResource())
    floats = [name for name, dtype in frame.schema.items() if dtype.is_float()]
    outputs = [expression.alias("value"), *(pl.col(name).is_nan().any().alias(f"nan {name}") for name in floats)]
    result = frame.lazy().select(outputs).collect(engine=engine)
    return result["value"], any(result[f"nan {name}"][0] for name in floats)


def _is_exact(node: Any) -> bool:
    """Returns whether an expression has the same values on every engine.

    node: the expression, or a part of it, as Polars writes it in JSON.

    Unknown nodes count as different.
    """
    if not isinstance(node, dict) or len(node) != 1:
        return False
    ((kind, body),) = node.items()
    match kind, body:
        case "Column", str():
            return True
        case "Literal", {"Dyn": dict(value)} | {"Scalar": dict(value)}:
            # Polars writes NaN and infinities as null, and a date or a decimal as a list or a dict.
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
    """Returns the name of a function.

    Polars writes a function as its name or, with options, as {name: options}.
    """
    return next(iter(function)) if isinstance(function, dict) and function else str(function)
