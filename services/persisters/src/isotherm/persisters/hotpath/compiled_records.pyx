# cython: language_level=3, boundscheck=False, wraparound=False
"""Kafka's messages as records, in runs of one partition, with one loop in C for all steps of a message (ADR 250)."""

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM

cdef extern from "Python.h":
    object PyObject_CallOneArg(object, object)
    object PyType_GenericAlloc(PyTypeObject*, Py_ssize_t)
    void PyObject_GC_UnTrack(void*)

cdef extern from *:
    """
    static inline int is_direct(PyObject* method) {
        return Py_IS_TYPE(method, &PyMethodDescr_Type) &&
            ((PyMethodDescrObject*) method)->d_method->ml_flags == METH_NOARGS;
    }
    static inline PyObject* call_direct(PyObject* method, PyObject* object) {
        return ((PyMethodDescrObject*) method)->d_method->ml_meth(object, NULL);
    }
    """
    bint is_direct(PyObject* method)
    object call_direct(PyObject* method, PyObject* object)

cdef enum:
    FIELDS = 7
    KEY = 4
    VALUE = 5

# As a tuple, so that one test of the class stands for those of all methods.
_METHODS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "error")


def read_runs(list messages, type message_class, type record_class, headers_of, Py_ssize_t flat_bytes):
    """Return messages as runs of one partition, each as its records and the size of each of these; None if one of the
    messages is an event.

    Args:
        messages: of Kafka's client.
        message_class: what messages are.
        record_class: a named tuple with the seven fields of a record.
        headers_of: makes a record's headers of a message's; it is not called for messages without headers.
        flat_bytes: what a record takes beside its key and its value.
    """
    cdef list methods = [getattr(message_class, name) for name in _METHODS]
    cdef bint are_direct = True
    cdef list runs = [], records = None, sizes = None
    cdef object topic = None, partition = None
    for method in methods:
        # A function of C that takes nothing but its object; any other is called as Python calls it.
        are_direct = are_direct and is_direct(<PyObject*> method)
    for message in messages:
        are_direct = are_direct and type(message) is message_class
        if _field(methods, 7, message, are_direct) is not None:
            return None
        found, number = _field(methods, 0, message, are_direct), _field(methods, 1, message, are_direct)
        if records is None or number != partition or found != topic:
            topic, partition = found, number
            records, sizes = [], []
            runs.append((records, sizes))
        headers = _field(methods, 6, message, are_direct)
        record = _record(
            record_class,
            topic,
            partition,
            _field(methods, 2, message, are_direct),
            _field(methods, 3, message, are_direct)[1],
            _field(methods, 4, message, are_direct),
            _field(methods, 5, message, are_direct),
            headers_of(headers) if headers else (),
        )
        records.append(record)
        sizes.append(flat_bytes + _size(record, KEY) + _size(record, VALUE))
    return runs


cdef inline object _field(list methods, Py_ssize_t number, object message, bint are_direct):
    if are_direct:
        return call_direct(<PyObject*> methods[number], <PyObject*> message)
    return PyObject_CallOneArg(methods[number], message)


cdef inline object _record(
    type record_class, object topic, object partition, object offset, object timestamp_ms, object key, object value,
    object headers
):
    cdef object record = PyType_GenericAlloc(<PyTypeObject*> record_class, FIELDS)
    _put(record, 0, topic)
    _put(record, 1, partition)
    _put(record, 2, offset)
    _put(record, 3, timestamp_ms)
    _put(record, KEY, key)
    _put(record, VALUE, value)
    _put(record, 6, headers)
    # A record holds texts, bytes and numbers, so it is in no cycle, and the collector need not walk a full buffer.
    PyObject_GC_UnTrack(<void*> record)
    return record


cdef inline void _put(object record, Py_ssize_t number, object part) noexcept:
    Py_INCREF(part)
    PyTuple_SET_ITEM(record, number, part)


cdef inline Py_ssize_t _size(object record, Py_ssize_t number) except -1:
    part = <object> PyTuple_GET_ITEM(record, number)
    if part is None:
        return 0
    return PyBytes_GET_SIZE(part) if PyBytes_CheckExact(part) else len(part)
