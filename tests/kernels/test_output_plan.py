"""The plan's records are the same in NumPy and in CUDA."""

from __future__ import annotations

import re

from gear_data.kernels.output_plan import OUTPUT_PLAN
from tests.support.cuda.runner import KERNELS


def test_the_cuda_struct_has_the_fields_of_a_record() -> None:
    source = (KERNELS / "collect.cu").read_text()
    match = re.search(r"struct OutputPlan \{(.*?)\};", source, re.DOTALL)
    assert match is not None
    declarations = re.findall(r"(?:i64|const \w+) ([^;]+);", match[1])
    names = [name.strip(" *") for declaration in declarations for name in declaration.split(",")]
    assert names == list(OUTPUT_PLAN.names or ())
