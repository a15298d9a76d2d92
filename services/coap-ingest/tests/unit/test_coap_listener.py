"""The listener: block-wise payloads, duplicates, rate limits, identities, discovery."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from aiocoap import CON, POST, Message  # type: ignore[import-untyped]  # no types there
from coap_listening import Device, block, request, served

FAST = "connect.coap.listen.rate.limit = 1000000:1"
BIG = b'{"temperature": 1, "a": "' + b"x" * 32 + b'"}'


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
def device(port: int) -> Iterator[Device]:
    made = Device(port)
    yield made
    made.close()


async def test_finished_transfers_do_not_count(port: int, device: Device) -> None:
    async with served(port, FAST) as made:
        codes: Counter[str] = Counter()
        for number in range(100):
            for part in (0, 1):
                body = BIG[:32] if part == 0 else BIG[32:]
                datagram = request(number * 2 + part, f"devices/{number}", body, block1=block(part, 32, more=part == 0))
                codes[await device.code(datagram)] += 1
        assert codes == {"2.31": 100, "2.04": 100}
        assert len(made.kafka.stored) == 100
        made.listener.maintain()
        assert made.metric("transfers") == 0


async def test_a_device_that_ends_no_transfer_does_not_block_others(port: int, device: Device) -> None:
    noisy = Device(port, "127.0.0.2")
    async with served(port, FAST) as made:
        first = block(0, 32, more=True)
        codes = Counter([await noisy.code(request(n, f"devices/{n}", BIG[:32], block1=first)) for n in range(100)])
        assert codes == {"2.31": 16, "5.03": 84}
        assert await device.code(request(1, body=BIG[:32], block1=first)) == "2.31"
        assert await device.code(request(2, body=BIG[32:], block1=block(1, 32, more=False))) == "2.04"
        assert len(made.kafka.stored) == 1
    noisy.close()


async def test_blocks_out_of_order_get_an_error_code(port: int, device: Device) -> None:
    async with served(port, FAST) as made:
        assert await device.code(request(1, body=BIG[:32], block1=block(1, 32, more=True))) == "4.08"
        assert await device.code(request(2, body=BIG[:31], block1=block(0, 32, more=True))) == "4.00"
        assert await device.code(request(3, body=BIG[:32], block1=block(0, 32, more=True))) == "2.31"
        assert await device.code(request(4, body=BIG[:32], block1=block(2, 32, more=True))) == "4.08"
        assert await device.code(request(5, body=BIG[32:], block1=block(1, 32, more=False))) == "2.04"
        assert await device.code(request(6, body=BIG[32:], block1=block(1, 32, more=False))) == "4.08"
        assert len(made.kafka.stored) == 1


@pytest.mark.parametrize(
    ("identity", "payload", "code"),
    [
        ("payload", b'{"value": 1}', "4.00"),
        ("payload", b'{"value": 1, "metric": "value", "unit": "Cel"}', "2.04"),
        ("topic", b'{"value": 1, "metric": "value", "unit": "Cel"}', "4.04"),
    ],
)
async def test_the_root_names_neither_metric_nor_device(
    port: int, device: Device, identity: str, payload: bytes, code: str
) -> None:
    every = ";INSERT INTO thermostat.data SELECT value, metric, unit FROM `*`"
    async with served(port, f"connect.coap.listen.identity = {identity}", statements=every) as made:
        assert await device.code(request(1, "", payload)) == code
        assert len(made.kafka.stored) == (code == "2.04")


async def _codes_of_transfer(device: Device, first_id: int, blocks: int) -> list[str]:
    """Send a payload in blocks of 16 bytes and return the codes of their answers."""
    body = b'{"temperature": 1, "a": "' + b"x" * (16 * blocks - 27) + b'"}'
    parts = [body[at : at + 16] for at in range(0, len(body), 16)]
    return [
        await device.code(request(first_id + at, body=part, block1=block(at, 16, more=at + 1 < blocks)))
        for at, part in enumerate(parts)
    ]


async def test_later_blocks_count_for_the_rate_and_do_not_break_their_transfer(port: int, device: Device) -> None:
    async with served(port, "connect.coap.listen.rate.limit = 3:600"):
        assert await _codes_of_transfer(device, 1, 6) == ["2.31"] * 5 + ["2.04"]
        # The transfer has used up the rate of the next requests, which a single request would not have.
        assert await device.code(request(100)) == "4.29"


async def test_a_transfer_far_beyond_the_rate_waits_and_goes_on(port: int, device: Device) -> None:
    async with served(port, "connect.coap.listen.rate.limit = 2:600") as made:
        codes = await _codes_of_transfer(device, 1, 12)
        # Two requests and a debt of eight.
        assert codes == ["2.31"] * 10 + ["4.29"] * 2
        assert made.metric("requests_total", code="4.29") == 2
        made.listener.maintain()
        assert made.metric("transfers") == 1, "the transfer waits for its next block"


async def test_a_block_that_continues_no_transfer_counts_as_a_request(port: int, device: Device) -> None:
    async with served(port, "connect.coap.listen.rate.limit = 1:600"):
        part = b"x" * 16
        assert await device.code(request(1_000, body=part, block1=block(9, 16, more=True))) == "4.08"
        assert await device.code(request(1_001, body=part, block1=block(9, 16, more=True))) == "4.29"


async def test_the_text_of_an_error_is_not_kept_for_duplicates(port: int, device: Device) -> None:
    async with served(port, FAST) as made:
        for datagram in (request(1, body=b"x" * 200), request(2, body=b"y" * 16, block1=block(9, 16, more=True))):
            first = await device.ask(datagram)
            again = await device.ask(datagram)
            assert again == first.partition(b"\xff")[0], "the same code, message id and token"
        assert made.metric("duplicate_requests_total", outcome="answered") == 2


async def test_a_duplicate_is_answered_again_within_the_rate_and_stored_once(port: int, device: Device) -> None:
    async with served(port, "connect.coap.listen.rate.limit = 5:600") as made:
        assert await device.code(request(77)) == "2.04"
        for _ in range(5):
            device.send(request(77))
        # Over its rate a duplicate has no answer, and a new request has an answer that is not stored.
        assert await device.code(request(78)) == "4.29"
        assert await device.code(request(78)) == "4.29"
        assert len(made.kafka.stored) == 1
        made.listener.maintain()
        assert made.metric("message_id_cache_entries") == 1
        assert made.metric("duplicate_requests_total", outcome="answered") == 4
        assert made.metric("duplicate_requests_total", outcome="ignored") == 1


async def test_the_message_id_cache_is_bounded_and_needs_no_timers(port: int) -> None:
    async with served(port, FAST, cache_size=1_024) as made:
        before = len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]  # asyncio's heap of timers
        for number in range(5_000):
            message = Message.decode(request(number), _Remote())
            assert made.messages._deduplicate_message(message) is False
            assert made.messages._deduplicate_message(message) is True
        made.listener.maintain()
        assert made.metric("message_id_cache_entries") <= 1_024
        assert made.metric("message_id_cache_evictions_total") >= 5_000 - 1_024
        assert len(asyncio.get_running_loop()._scheduled) == before  # type: ignore[attr-defined]  # as above


async def test_a_rejected_request_is_not_in_the_message_id_cache(port: int) -> None:
    async with served(port, "connect.coap.listen.rate.limit = 1:600") as made:
        for number in range(1_000):
            message = Message.decode(request(number), _Remote())
            assert message.code == POST
            assert message.mtype is CON
            made.messages._deduplicate_message(message)
        made.listener.maintain()
        assert made.metric("message_id_cache_entries") == 1
        assert made.metric("requests_total", code="4.29") == 999


class _Remote:
    """A remote address that drops everything."""

    sockaddr = ("::ffff:127.0.0.3", 1, 0, 0)
    is_multicast_locally = True
    maximum_block_size_exp = 6


@pytest.mark.parametrize(
    ("identity", "path", "body", "code", "keys"),
    [
        ("payload", "devices/7", b'{"temperature": 1, "device_id": "other"}', "2.04", ["other"]),
        ("payload", "devices/7", b'{"temperature": 1}', "2.04", ["127.0.0.1"]),
        ("topic", "devices/7", b'{"temperature": 1}', "2.04", ["7"]),
        ("topic", "devices/7", b'{"temperature": 1, "device_id": 7}', "2.04", ["7"]),
        ("topic", "devices/7", b'[{"temperature": 1}, {"temperature": 1, "device_id": "victim"}]', "4.03", []),
    ],
)
async def test_without_dtls_the_payload_or_the_path_names_the_device(
    port: int, device: Device, identity: str, path: str, body: bytes, code: str, keys: list[str]
) -> None:
    async with served(port, f"connect.coap.listen.identity = {identity}") as made:
        assert await device.code(request(1, path, body)) == code
        assert [key for key, _ in made.kafka.stored] == keys


async def test_maintenance_runs_from_the_first_moment_of_a_listener(port: int) -> None:
    async with served(port, "connect.coap.listen.psk = device-1:secret", scheme="coaps") as made:
        made.listener.maintain()
        assert made.metric("dtls_peers", state="session") == 0


async def test_the_list_of_links_comes_in_blocks_and_nothing_is_stored_between_them(port: int, device: Device) -> None:
    more = "".join(f"; INSERT INTO thermostat.data SELECT v AS value FROM r{number}" for number in range(60))
    async with served(port, FAST, statements=more) as made:
        text = b""
        for number in range(10):
            options = b"\xbb.well-known\x04core" + bytes([12 << 4 | 1, number << 4 | 6])
            answer = await device.ask(b"\x42\x01" + 2 * number.to_bytes(2, "big") + options)
            head, _, body = answer.partition(b"\xff")
            assert head[1] == 0x45
            text += body
            if len(body) < 1024:
                break
        assert text.count(b"isotherm.readings") == 61
        assert not made.kafka.stored
