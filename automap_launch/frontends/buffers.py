"""The buffer protocol of JAX's arrays, by which NumPy takes the memory of an array on a single CPU device.

It passes every method of the array's class, so that the process which has such an array would read it without a word
to the others, while those that have no part of it call `__array__`, which gathers it from all. A type's slots cannot be
set from Python: this module alone knows where CPython keeps them.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable

# PyTypeObject.tp_as_buffer and, at its end, PyBufferProcs.bf_getbuffer (CPython 3.11 to 3.14, 64 bits).
_AS_BUFFER = 20 * ctypes.sizeof(ctypes.c_void_p)
TESTED = ((3, 11), (3, 15))


def hide_buffers(array_type: type) -> Callable[[], None]:
    """Takes the buffer protocol from a type of arrays: NumPy then asks `__array__` for their values.

    Returns:
      A function that gives it back.

    Raises:
      RuntimeError: this Python is not one of those whose types are known, or the type has no buffers.
    """
    known = sys.implementation.name == "cpython" and TESTED[0] <= sys.version_info[:2] < TESTED[1]
    procedures = ctypes.c_void_p.from_address(id(array_type) + _AS_BUFFER).value if known else None
    if not procedures or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise RuntimeError(f"the buffers of {array_type.__name__} are not where CPython 3.11 to 3.14 keeps them")
    slot = ctypes.c_void_p.from_address(procedures)
    before, slot.value = slot.value, None

    def give_back() -> None:
        slot.value = before

    return give_back
