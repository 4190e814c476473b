"""The slots of a type that Cython would fill in otherwise: for the garbage collector."""

from cpython.object cimport PyObject

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject* told, void* arg) noexcept
    ctypedef int (*traverseproc)(PyObject* self, visitproc visit, void* arg) noexcept
    ctypedef int (*inquiry)(PyObject* self) noexcept
    ctypedef struct PyTypeObject
    ctypedef object (*newfunc)(PyTypeObject* type, object args, PyObject* kwargs)
    ctypedef struct PyTypeObject:
        newfunc tp_new
        traverseproc tp_traverse
        inquiry tp_clear
    PyTypeObject PyBaseObject_Type
