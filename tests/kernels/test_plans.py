"""The records of a plan have the same fields in NumPy and in CUDA."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gear_data.kernels.output_plan import OUTPUT_PLAN
from gear_data.kernels.window_plan import WINDOW_PLAN
from tests.support.cuda.runner import KERNELS


@pytest.mark.parametrize(
    ("source", "name", "record"),
    [("collect.cu", "OutputPlan", OUTPUT_PLAN), ("select.cu", "WindowPlan", WINDOW_PLAN)],
)
def test_the_cuda_struct_has_the_fields_of_the_record(source: str, name: str, record: np.dtype[np.void]) -> None:
    match = re.search(rf"struct {name} \{{(.*?)\}};", (KERNELS / source).read_text(), re.DOTALL)
    assert match is not None
    declarations = re.findall(r"^    (?:const )?\w+ ([^;]+);", match[1], re.MULTILINE)
    fields = [field.strip(" *") for declaration in declarations for field in declaration.split(",")]
    assert fields == list(record.names or ())
