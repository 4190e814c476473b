"""Built-in functions of C, patched for a while under every reference to them.

``from time import monotonic`` and ``def f(now=time.time)`` hold the function itself, which
setting ``time.time`` does not change. The patch therefore replaces the address of the C code in the
function's own definition.

Ground rules
------------
* The interpreter's lock is held while an address is replaced: each replacement is one store.
* The replacement gets the calls of all threads, and has to check which thread calls.
* Exceptions of the replacement can't reach the caller through C: it returns None for arguments that
  it can't handle. A signal's handler may raise at the replacement's first step: see `outer_frame`.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

from purgatory.virtual.errors import WorldError

VARARGS: Final = 0x01
KEYWORDS: Final = 0x02
NOARGS: Final = 0x04
SINGLE_ARGUMENT: Final = 0x08
CLASS: Final = 0x10
FASTCALL: Final = 0x80


class _Definition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


class _Object(ctypes.Structure):
    """The beginning of CPython's PyCFunctionObject."""

    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("definition", ctypes.POINTER(_Definition)),
        ("module", ctypes.c_void_p),
    )


_NO_ARGUMENTS = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
_ONE_OBJECT = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object)
_CLASS_NOARGS_TYPE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_CLASS_FASTCALL_TYPE = ctypes.PYFUNCTYPE(
    ctypes.py_object,
    ctypes.py_object,
    ctypes.POINTER(ctypes.py_object),
    ctypes.c_ssize_t,
    ctypes.c_void_p,
)
_SIGNATURES: Final[dict[int, Any]] = {
    NOARGS: _NO_ARGUMENTS,
    SINGLE_ARGUMENT: _ONE_OBJECT,
    VARARGS: _ONE_OBJECT,  # the one object is the tuple of all arguments
    NOARGS | CLASS: _CLASS_NOARGS_TYPE,
    FASTCALL | KEYWORDS | CLASS: _CLASS_FASTCALL_TYPE,
}
"""The C signature of a function that is defined with these flags."""


def can_patch() -> bool:
    """Whether built-in functions of this Python can be patched."""
    return sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


def outer_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called a patched function, if a frame runs in its replacement; or
    None."""
    found = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename == __file__ and code.co_name in _CALLBACK_NAMES:
            found = frame.f_back
        frame = frame.f_back
    return found


def call_in(frame: FrameType, function: Callable[[], object]) -> None:
    """Call a function, which may raise, as soon as a frame of this thread resumes."""
    before, before_there = sys.gettrace(), frame.f_trace

    def trace(traced: FrameType, event: str, argument: Any) -> Any:
        if traced is not frame:
            return None
        sys.settrace(before)
        frame.f_trace = before_there
        function()
        return before_there

    frame.f_trace = trace
    sys.settrace(trace)


def _raise(error: BaseException) -> None:
    raise error


class BuiltInFunction:
    """A function of C, and the Python function that takes its place between `patch` and
    `restore`.

    Args:
        function: the built-in function, or the bound class method.
        replacement: called with the arguments that C passes (see `_SIGNATURES`), without the
            function's module: with none, the one argument, or the tuple of arguments.
        of_one_object: the function is a bound method, and only this reference to it is patched:
            methods of other objects of its type stay as they are.

    Raises:
        WorldError: this Python defines the function in an unknown way.
    """

    def __init__(
        self, function: Any, replacement: Callable[..., Any], *, of_one_object: bool = False
    ) -> None:
        if not can_patch():
            raise WorldError("a virtual world needs CPython with its global interpreter lock")
        found = _Object.from_address(id(function))
        self._definition = found.definition.contents
        if of_one_object:
            # The type has one definition for all its objects. The function, which gets this copy,
            # may be called when all modules are cleared already: so the copy is never freed.
            self._definition = _Definition.from_buffer_copy(self._definition)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._definition))
            found.definition = ctypes.pointer(self._definition)
        self._module = found.module
        flags = self._definition.flags
        signature = _SIGNATURES.get(flags)
        if signature is None or self._definition.name != function.__name__.encode():
            raise WorldError(f"{function!r} is not defined as expected: flags {flags:#x}")
        self.name = function.__name__
        self._is_class_method = bool(flags & CLASS)
        self._has_no_arguments = bool(flags & NOARGS)
        self._address: int = self._definition.function
        self._original = signature(self._address)
        self._callback = signature(self._catch_errors(replacement))
        self._callback_address = ctypes.cast(self._callback, ctypes.c_void_p).value

    def original(self, *arguments: Any) -> Any:
        """Call the C code itself, with the arguments of `_SIGNATURES` but the module."""
        if not self._is_class_method:
            arguments = (self._module, *arguments)
        if self._has_no_arguments:
            arguments = (*arguments, None)
        return self._original(*arguments)

    def patch(self) -> None:
        """Have every call reach the replacement. Idempotent."""
        self._definition.function = self._callback_address

    def restore(self) -> None:
        """Have every call reach the C code. Idempotent."""
        self._definition.function = self._address

    def _catch_errors(self, replacement: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function for C: it takes all that C passes, and never raises."""
        begin = 0 if self._is_class_method else 1
        end = 1 if self._has_no_arguments else None

        def call(*arguments: Any) -> Any:
            try:
                return replacement(*arguments[begin:end])
            except Exception:
                return None
            except BaseException as error:  # of a signal's handler
                _raise_outside(error)
                return replacement(*arguments[begin:end])

        def call_without_arguments(module: Any, unused: Any) -> Any:
            try:
                return replacement()
            except Exception:
                return None
            except BaseException as error:
                _raise_outside(error)
                return replacement()

        return call_without_arguments if self._has_no_arguments and begin else call


_CALLBACK_NAMES: Final = ("call", "call_without_arguments")


def _raise_outside(error: BaseException) -> None:
    outer = outer_frame(sys._getframe())
    if outer is not None:
        call_in(outer, partial(_raise, error))
