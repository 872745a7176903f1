"""Interrupts at chosen moments of a call."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

#: Instructions after which the interpreter calls the handlers of signals.
_CHECKED = frozenset({"RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX"})


def interrupted(call: Callable[[], Any], moment: int) -> bool:
    """Calls a function, and interrupts it at one of the moments at which the interpreter raises KeyboardInterrupt.

    Returns:
        Whether the function has this many moments in this thread. Otherwise it has returned.

    Raises:
        AssertionError: the interrupt was lost.
    """
    left = moment
    checked: dict[CodeType, set[int]] = {}
    #: For each frame the instruction that runs.
    running: dict[int, int] = {}

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        code = frame.f_code
        if event == "call":
            running.pop(id(frame), None)
        elif event == "opcode":
            if code not in checked:
                found = dis.get_instructions(code)
                checked[code] = {each.offset for each in found if each.opname in _CHECKED}
            before, running[id(frame)] = running.get(id(frame)), frame.f_lasti
            if before is None or before in checked[code]:
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    assert left >= 0, "the interrupt was lost"
    return False
