"""Native helpers of the Numba kernels.

Pointers from addresses, libc's memcpy and memset, and a folder for the compile cache.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numba.extending import intrinsic

from gear_data.common.private_folder import process_folder, user_folder


def _ensure_cache_folder() -> None:
    """Sets a cache folder if neither the package nor the home folder is writable.

    Without a writable folder, Numba refuses `cache=True`.
    """
    if numba.config.CACHE_DIR:
        return
    here = Path(__file__).resolve().parent
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    while not home.exists() and home != home.parent:
        home = home.parent
    if not (os.access(here, os.W_OK) or os.access(home, os.W_OK)):
        numba.config.CACHE_DIR = str(_cache_folder())


def _cache_folder() -> Path:
    """Returns a folder that only this user can write.

    Numba runs the code that it finds in its cache.
    """
    try:
        return user_folder("gear-data-numba")
    except OSError:
        return process_folder()


_ensure_cache_folder()

#: Functions of libc, which LLVM finds in the running process. They take addresses as integers.
memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
memset = types.ExternalFunction("memset", types.intp(types.intp, types.int32, types.uintp))


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetches the cache line at an address. Any address is allowed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] + [ir.IntType(32)] * 3)
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Arguments of llvm.prefetch: 0 is a read, 3 keeps the line in all cache levels, 1 is the data cache.
        builder.call(hint, [line, cgutils.int32_t(0), cgutils.int32_t(3), cgutils.int32_t(1)])
        return context.get_dummy_value()

    return types.void(address), generate


def _mover(bytes_: int) -> Any:
    """Returns an intrinsic that copies some bytes from an address to another.

    The addresses may have any alignment.
    """

    def move(typing_context: Any, target: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.VectorType(ir.IntType(32), bytes_ // 4).as_pointer()
            value = builder.load(builder.inttoptr(arguments[1], word), align=1)
            builder.store(value, builder.inttoptr(arguments[0], word), align=1)
            return context.get_dummy_value()

        return types.void(target, source), generate

    return intrinsic(move)


#: `move_4(target, source)` copies 4 bytes: one instruction, where `memcpy` of so few costs a call.
move_4, move_8, move_16 = _mover(4), _mover(8), _mover(16)


def _blender(adds: bool) -> Any:
    """Returns an intrinsic that blends two runs of four float32.

    The runs are at `source` and `step` bytes behind it, and have a weight each. The result is added to the run at
    `target`, or replaces it. The addresses may have any alignment.
    """

    def blend(typing_context: Any, target: Any, source: Any, step: Any, weight: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, source, step, *weights = arguments
            four = ir.VectorType(ir.FloatType(), 4)
            place = builder.inttoptr(target, four.as_pointer())
            total = builder.load(place, align=1) if adds else None
            for address, weight in zip((source, builder.add(source, step)), weights, strict=True):
                each = ir.Constant(four, ir.Undefined)
                for lane in range(4):
                    each = builder.insert_element(each, weight, cgutils.int32_t(lane))
                run = builder.load(builder.inttoptr(address, four.as_pointer()), align=1)
                product = builder.fmul(each, run)
                total = product if total is None else builder.fadd(total, product)
            builder.store(total, place, align=1)
            return context.get_dummy_value()

        return types.void(target, source, step, weight, other), generate

    return intrinsic(blend)


#: `blend_4(target, source, step, weight, other)` writes four float32; `add_blended_4` adds to them. Numba itself makes
#: no vectors of fewer numbers than a loop has.
blend_4, add_blended_4 = _blender(False), _blender(True)


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """Turns an integer address into a void pointer, for `numba.carray`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic
def element(typing_context: Any, first: Any, number: Any) -> Any:
    """Returns a pointer to element `number` of the elements that begin at the pointer `first`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return first(first, number), generate


@intrinsic
def call(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Calls the kernel at an address of `address_of`, with a tuple of int64 and records, whose addresses it gets."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        of_kernel = [
            builder.ptrtoint(each, word) if isinstance(each.type, ir.PointerType) else each
            for each in cgutils.unpack_tuple(builder, values[1])
        ]
        # By Numba's convention, a function begins with places for its result and its exception, and returns a status.
        place = cgutils.alloca_once(builder, cgutils.voidptr_t)
        kernel = ir.FunctionType(ir.IntType(32), [place.type] * 2 + [word] * len(of_kernel)).as_pointer()
        builder.call(builder.inttoptr(values[0], kernel), [place, place, *of_kernel])
        return context.get_dummy_value()

    return types.void(address, arguments), generate


@numba.njit(nogil=True, cache=True, inline="always")  # type: ignore[untyped-decorator]
def int64s(address, size):  # type: ignore[no-untyped-def]
    """Returns an array of int64 at an address."""
    return numba.carray(pointer(address), (size,), numba.int64)


@intrinsic
def read_only(typing_context: Any, array: Any) -> Any:
    """Turns an array into one that cannot be written: a kernel is compiled separately for each of the two."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        context.nrt.incref(builder, signature.return_type, arguments[0])
        return arguments[0]

    return array.copy(readonly=True)(array), generate


class _KernelCache(FunctionCache):
    """Numba's cache, from which a kernel is loaded without what only compiling needs.

    Numba's own method first imports all types and functions that it can compile, and SciPy with them: half a second.
    The compiler does so itself.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns the compiled kernel for a signature, or None if the cache does not have it."""
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)


def cached_njit(function: Any) -> Any:
    """Compiles a kernel that Python calls, without the GIL, or loads it from the cache."""
    dispatcher = numba.njit(nogil=True)(function)
    dispatcher._cache = _KernelCache(function)
    return dispatcher


def address_of(kernel: Any, arguments: tuple[Any, ...]) -> int:
    """Compiles a kernel of `cached_njit` for arguments of these types, or loads it; returns its address for `call`.

    The kernel returns nothing and raises nothing.
    """
    result = kernel.get_compile_result(types.void(*arguments))
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def njit_named(name: str) -> Any:
    """Returns an `njit` that gives the function a unique qualified name.

    Use it for several functions with the same source.

    Numba names machine code by the qualified name and a number that every process counts from 1. Two closures with one
    qualified name, compiled by two processes and loaded from the cache, would be mistaken for each other.
    """

    def decorate(function: Any) -> Any:
        function.__name__ = function.__qualname__ = name
        return numba.njit(nogil=True)(function)

    return decorate
