"""The publishes of one connection: authorized, counted, and passed to the receiver of their QoS."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from isotherm.mqtt_proxy.access.authentication import AccessControl, PublishPermissions
from isotherm.mqtt_proxy.codec.packets import V5, PacketType, Publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.qos1 import Qos1Receiver
from isotherm.mqtt_proxy.delivery.qos2 import Qos2Receiver
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.protocol.ack_queue import AckQueue
from isotherm.mqtt_proxy.protocol.client_port import ClientPort
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.server.publish_rates import PublishRates

if TYPE_CHECKING:
    # Perhaps not built: `hotpath.plain_ingest` says so.
    from isotherm.mqtt_proxy.hotpath.compiled import PlainPublishes
    from isotherm.mqtt_proxy.hotpath.plain_ingest import PlainIngest


class PublishHandler:
    """Composes the receivers of a connection.

    `receive_maximum` bounds the unfinished publishes of QoS 1 and 2. `permissions` is set before the first publish.
    `on_sent` is called after acknowledgements were passed to the protocol.
    """

    __slots__ = (
        "_access",
        "_context",
        "_metrics",
        "_port",
        "_protocol",
        "_qos1",
        "_qos2",
        "_rates",
        "_receive_maximum",
        "attach",
        "permissions",
        "plain",
        "pubacks",
        "release",
    )

    def __init__(
        self,
        pipeline: IngestPipeline,
        protocol: ServerProtocol,
        port: ClientPort,
        *,
        context: IngestContext,
        access: AccessControl,
        rates: PublishRates | None,
        receive_maximum: int,
        on_sent: Callable[[], None],
        plain_ingest: PlainIngest | None,
    ) -> None:
        self.permissions: PublishPermissions | None = None
        self._protocol = protocol
        self._port = port
        self._context = context
        self._access = access
        self._rates = rates
        self._receive_maximum = receive_maximum
        self._metrics = pipeline.metrics
        self.pubacks = AckQueue(
            protocol, PacketType.PUBACK, acknowledged=pipeline.metrics.acknowledged, on_sent=on_sent
        )
        self._qos1 = Qos1Receiver(pipeline, protocol, port, context=context, acks=self.pubacks)
        self._qos2 = Qos2Receiver(
            pipeline, protocol, port, context=context, receive_maximum=receive_maximum, on_sent=on_sent
        )
        self.plain: PlainPublishes | None = None
        """Takes plain publishes before `publish` sees them; None without a compiled way (`hotpath`)."""
        if plain_ingest is not None:
            self.plain = plain_ingest.publishes_of(
                self._qos1,
                self._qos2,
                protocol=protocol,
                access=access,
                rates=rates,
                receive_maximum=receive_maximum,
                may_publish=self._may_publish,
            )
        self.attach = self._qos2.attach
        self.release = self._qos2.release

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has a verified user name."""
        return self.permissions is not None and self.permissions.username is not None

    def close(self) -> None:
        """Send no acknowledgement any more: the connection has ended."""
        self.pubacks.close()
        self._qos2.close()
        if self.plain is not None:
            self.plain.close()

    def publish(self, publish: Publish) -> None:
        """Handle a PUBLISH."""
        metrics, qos = self._metrics, publish.qos
        metrics.messages_received[qos] += 1
        metrics.payload_bytes += len(publish.payload)
        if self._rates is not None:
            self._rates.count(len(publish.payload))
        if not self._may_publish(publish.topic):
            self._deny(publish)
        elif qos == 2:
            self._qos2.publish(publish)
        elif qos and self._protocol.version == V5 and len(self.pubacks) + self._qos2.undecided >= self._receive_maximum:
            detail = f"more than {self._receive_maximum} publishes at a time"
            self._port.close(Reason.RECEIVE_MAXIMUM_EXCEEDED, detail)
        else:
            self._qos1.publish(publish)

    def _may_publish(self, topic: str) -> bool:
        acl = self._access.acl
        return acl is None or cast(PublishPermissions, self.permissions).may_publish(acl, topic)

    def _deny(self, publish: Publish) -> None:
        """Refuse a publish that the client is not authorized for.

        A client that cannot be told receives an acknowledgement, or the end of the connection (MQTT 3.1.1 section
        3.3.5; MQTT 5.0 section 3.3.4).
        """
        permissions, access, qos = cast(PublishPermissions, self.permissions), self._access, publish.qos
        access.count_denied(
            client_id=self._context.client_id, username=permissions.username, topic=publish.topic, qos=qos
        )
        can_be_told = self._protocol.version == V5 and qos
        if not can_be_told and access.closes_on_denial:
            self._port.close(Reason.NOT_AUTHORIZED, "a publish to a topic that acl_file does not allow")
        elif qos == 1:
            self.pubacks.refuse(publish.packet_id, Reason.NOT_AUTHORIZED)
        elif qos == 2:
            self._qos2.refuse(publish.packet_id, Reason.NOT_AUTHORIZED)
