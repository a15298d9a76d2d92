"""librdkafka as mqtt-proxy's compiled module calls it, over a producer that a test has: records go to its `produce`.

The module is told of each producer as librdkafka tells its plugins, and its acknowledgement interceptor hears of each
record when the producer's delivery callback is called. `drain` of the direct producer passes that on.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.hotpath.compiled import DirectProducer

_TOPIC, _VALUE, _KEY, _HEADERS = 1, 4, 5, 10
"""Of rd_kafka_vtype_t."""
_NO_OFFSET = -1001
"""RD_KAFKA_OFFSET_INVALID; confluent-kafka's message has None then."""


class ProducesRecords(Protocol):
    """A producer of a test."""

    def produce(self, topic: str, *, value: Any, key: Any, headers: Any, on_delivery: Any) -> None:
        """Take a record, or raise BufferError or KafkaException."""


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Value(ctypes.Union):
    _fields_ = (("text", ctypes.c_char_p), ("bytes", _Bytes), ("pointer", ctypes.c_void_p), ("pad", ctypes.c_char * 64))


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = (("type", ctypes.c_int), ("value", _Value))


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


_PTR, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_OnNew = ctypes.CFUNCTYPE(_INT, _PTR, _PTR, _PTR, _PTR, _SIZE)
_OnAcknowledgement = ctypes.CFUNCTYPE(_INT, _PTR, _PTR, _PTR)
_OnDestroy = ctypes.CFUNCTYPE(_INT, _PTR, _PTR)


class _Library:
    """The functions that the module calls, for all producers of a process."""

    def __init__(self) -> None:
        from isotherm.mqtt_proxy.hotpath import compiled

        self._producers: weakref.WeakValueDictionary[int, ProducesRecords] = weakref.WeakValueDictionary()
        self._interceptors: dict[int, tuple[Any, int]] = {}
        self._destroyed: dict[int, tuple[Any, int]] = {}
        self._headers: dict[int, list[tuple[str, str]]] = {}
        self._errors: dict[int, tuple[int, bool]] = {}
        self._last = 0x1000
        self._on_new: Any = None
        self._conf_init = ctypes.CDLL(compiled.__file__).conf_init
        self._bind = compiled.bind
        made = {
            "rd_kafka_produceva": ctypes.CFUNCTYPE(_PTR, _PTR, ctypes.POINTER(_Argument), _SIZE)(self._produce),
            "rd_kafka_error_code": ctypes.CFUNCTYPE(_INT, _PTR)(lambda error: self._errors[error][0]),
            "rd_kafka_error_is_fatal": ctypes.CFUNCTYPE(_INT, _PTR)(lambda error: self._errors[error][1]),
            "rd_kafka_error_destroy": ctypes.CFUNCTYPE(None, _PTR)(self._errors.pop),
            "rd_kafka_headers_new": ctypes.CFUNCTYPE(_PTR, _SIZE)(self._new_headers),
            "rd_kafka_header_add": ctypes.CFUNCTYPE(_INT, _PTR, _PTR, ctypes.c_ssize_t, _PTR, ctypes.c_ssize_t)(
                self._add_header
            ),
            "rd_kafka_headers_destroy": ctypes.CFUNCTYPE(None, _PTR)(self._headers.pop),
            "rd_kafka_conf_interceptor_add_on_new": ctypes.CFUNCTYPE(_INT, _PTR, _TEXT, _PTR, _PTR)(self._add_on_new),
            "rd_kafka_interceptor_add_on_acknowledgement": ctypes.CFUNCTYPE(_INT, _PTR, _TEXT, _PTR, _PTR)(
                self._add_on_acknowledgement
            ),
            "rd_kafka_interceptor_add_on_destroy": ctypes.CFUNCTYPE(_INT, _PTR, _TEXT, _PTR, _PTR)(
                self._add_on_destroy
            ),
        }
        self._functions = [made[name] for name in compiled.FUNCTIONS]
        """The module calls them by address: they live as long as the process."""

    def add(self, producer: ProducesRecords) -> int:
        """Make an rd_kafka_t over a producer, and tell the module of it; return its address."""
        self._bind([ctypes.cast(function, _PTR).value or 0 for function in self._functions])
        if self._conf_init(None, None, None, 0):
            raise RuntimeError("the plugin refuses to be used")
        handle = self._next()
        self._producers[handle] = producer
        weakref.finalize(producer, self._forget, handle)
        self._on_new(handle, None, None, None, 0)
        return handle

    def _forget(self, handle: int) -> None:
        """Tell the module that the producer is being destroyed."""
        call, opaque = self._destroyed.pop(handle)
        call(handle, opaque)
        del self._interceptors[handle]

    def _next(self) -> int:
        self._last += 16
        return self._last

    def _add_on_new(self, _conf: int, _name: bytes, call: int, _opaque: int) -> int:
        self._on_new = _OnNew(call)
        return 0

    def _add_on_acknowledgement(self, handle: int, _name: bytes, call: int, opaque: int) -> int:
        self._interceptors[handle] = _OnAcknowledgement(call), opaque
        return 0

    def _add_on_destroy(self, handle: int, _name: bytes, call: int, opaque: int) -> int:
        self._destroyed[handle] = _OnDestroy(call), opaque
        return 0

    def _new_headers(self, _count: int) -> int:
        made = self._next()
        self._headers[made] = []
        return made

    def _add_header(self, headers: int, name: int, name_size: int, value: int, size: int) -> int:
        self._headers[headers].append(
            (ctypes.string_at(name, name_size).decode(), ctypes.string_at(value, size).decode())
        )
        return 0

    def _produce(self, handle: int, arguments: Any, count: int) -> int | None:
        given = {arguments[index].type: arguments[index].value for index in range(count)}
        value, key = given[_VALUE].bytes, given[_KEY].bytes
        payload, size = int(value.data), int(value.size)
        headers = self._headers[given[_HEADERS].pointer] if _HEADERS in given else []

        def report(error: KafkaError | None, message: Any) -> None:
            partition, offset = 0, None
            if message is not None:
                partition, offset = message.partition(), message.offset()
            code, place = 0 if error is None else error.code(), _NO_OFFSET if offset is None else offset
            reported = _Message(code, None, partition, payload, size, key.data, key.size, place, None)
            call, opaque = self._interceptors[handle]
            call(handle, ctypes.addressof(reported), opaque)

        try:
            self._producers[handle].produce(
                given[_TOPIC].text.decode(),
                value=ctypes.string_at(payload, size),
                key=ctypes.string_at(key.data, key.size).decode(),
                headers=headers,
                on_delivery=report,
            )
        except BufferError:
            code, is_fatal = KafkaError._QUEUE_FULL, False
        except KafkaException as failure:
            code, is_fatal = failure.args[0].code(), failure.args[0].fatal()
        else:
            if _HEADERS in given:
                # librdkafka owns them now.
                del self._headers[given[_HEADERS].pointer]
            return None
        error = self._next()
        self._errors[error] = code, is_fatal
        return error


@cache
def _library() -> _Library:
    return _Library()


def direct_producer(producer: ProducesRecords) -> DirectProducer:
    """Return the compiled way into a producer, as `isotherm.mqtt_proxy.hotpath.librdkafka` does for a real one."""
    from isotherm.mqtt_proxy.hotpath.compiled import DirectProducer

    return DirectProducer(producer, _library().add(producer))
