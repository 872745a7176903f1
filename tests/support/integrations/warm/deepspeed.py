"""Imports DeepSpeed, which shall not compile its operator for shared memory.

It compiles the operator when a process group starts, for a minute. Without the operator, gloo does its work.
"""

from __future__ import annotations

import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
