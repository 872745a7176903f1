"""Every finding has advice."""

from __future__ import annotations

import re
from pathlib import Path

import gear_data
from gear_data.reports.advice import ADVICE, advice_for

FINDINGS = Path(gear_data.__file__).resolve().parent.parent / "docs" / "reference" / "findings.md"


def test_every_documented_finding_has_advice() -> None:
    tables = FINDINGS.read_text().split("## Observation jumps")[0]
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", tables, re.MULTILINE)
    codes = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}
    assert len(codes) > 50
    assert codes == ADVICE.keys()


def test_codes_of_other_versions_have_none() -> None:
    assert advice_for({"code": "no-such-code"}) == ""
    assert advice_for({"code": "non-finite"}) == ADVICE["non-finite"]
