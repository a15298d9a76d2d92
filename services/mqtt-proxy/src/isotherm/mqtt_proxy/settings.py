"""Settings of the MQTT proxy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from isotherm.connector.attestation.settings import AttestationSettings
from isotherm.connector.distributed.hosting import HostSettings
from isotherm.mqtt_proxy.balancers import BalancerNetworks
from isotherm.mqtt_proxy.sections.bridge import BridgeSettings
from isotherm.mqtt_proxy.sections.commands import CommandSettings
from isotherm.mqtt_proxy.sections.pods import PodSettings
from isotherm.mqtt_proxy.sections.websocket import WebSocketSettings
from isotherm.servicekit.settings import Settings
from isotherm.servicekit.throttling.rates import RateText
from isotherm.servicekit.tracing.settings import IngestTracingSettings

SERVICE = "mqtt-proxy"


class ListenerSettings(Settings):
    """The socket on which devices connect."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(1883, ge=0, le=65535, description="Port to listen on; 0 picks a free one and logs it.")
    backlog: int = Field(1024, ge=1, description="Connections that may wait to be accepted.")
    reuse_port: bool = Field(False, description="Let several processes listen on the port (SO_REUSEPORT).")
    allow_control_characters: bool = Field(
        False,
        description="Accept control characters (U+0001 to U+001F, U+007F to U+009F) and Unicode non-characters in "
        "client ids, user names, topics and filters; otherwise they end the connection.",
    )
    tcp_keep_alive_s: int = Field(
        60,
        ge=0,
        le=7_200,
        description="TCP probes a peer that is silent for this time and closes the connection after as long again "
        "without an answer; 0 for never.",
    )
    proxy_protocol: bool = Field(
        False,
        description="Every connection begins with a header of the PROXY protocol, version 2, by which a balancer names "
        "the client's address. Needs `trusted_balancers`.",
    )
    trusted_balancers: BalancerNetworks = Field(
        default_factory=list,
        validate_default=True,
        description="Networks of the balancers, such as `10.0.0.0/8`; with `proxy_protocol` others may not connect.",
    )


class TlsSettings(Settings):
    """TLS on the listeners, when `certfile` is set."""

    certfile: str | None = Field(None, description="PEM file of the server's certificate chain.")
    keyfile: str | None = Field(None, description="PEM file of its key.")
    cafile: str | None = Field(
        None, description="PEM file of the authorities of client certificates; when set, a certificate is required."
    )
    use_identity_as_username: bool = Field(
        False, description="The common name of the client's certificate is its user name; no password is required."
    )


class LimitSettings(Settings):
    """Bounds on what devices can cause."""

    connections: int = Field(10_000, ge=1, description="Open connections; further ones are closed at once.")
    tls_handshakes: int = Field(
        500, ge=1, description="Concurrent TLS handshakes; further ones wait, at most `limits.connect_timeout_ms`."
    )
    connections_per_address: int | None = Field(
        None,
        ge=1,
        description="Open connections of one client address; devices behind a NAT share one, as do those behind a "
        "balancer without `proxy_protocol`.",
    )
    messages_per_client: RateText = Field(
        "", description="Publishes of one connection, `n:seconds`; beyond the rate the connection is not read."
    )
    bytes_per_client: RateText = Field("", description="Payload bytes of one connection, `n:seconds`.")
    messages_total: RateText = Field("", description="Publishes of all connections, `n:seconds`.")
    bytes_total: RateText = Field("", description="Payload bytes of all connections, `n:seconds`.")
    failed_logins: RateText = Field(
        "10:60", description="Wrong passwords for one user from one address, `n:seconds`; further logins are refused."
    )
    failed_logins_per_address: RateText = Field(
        "1000:60",
        description="Wrong passwords from one address, whatever the user, `n:seconds`; devices behind a NAT share one.",
    )
    keep_alive_s: int | None = Field(
        None,
        ge=1,
        le=65_535,
        description="Longest keep-alive, for clients that ask for a longer one or none; MQTT 5 clients are told.",
    )
    connect_bytes: int = Field(
        16_384, ge=64, le=900_000, description="Largest CONNECT, which is buffered before its sender is known."
    )
    packet_bytes: int = Field(65_536, ge=64, le=900_000, description="Largest packet; larger ones end the connection.")
    topic_bytes: int = Field(1_024, ge=1, le=65_535, description="Longest topic; longer ones are dead letters.")
    will_bytes: int = Field(
        8_192,
        ge=512,
        le=900_000,
        description="Largest will with its properties, which is stored with the session. A CONNECT with a larger will "
        "is refused.",
    )
    wills_bytes: int = Field(
        67_108_864, ge=65_536, description="Memory of all wills; a CONNECT whose will exceeds it is refused."
    )
    buffered_bytes: int = Field(
        33_554_432,
        ge=65_536,
        description="Bytes of all connections that are received and not handled: incomplete packets, unanswered "
        "CONNECTs, waiting publishes. Beyond it waiting connections are not read, and a connection that buffers an "
        "incomplete packet above 2 KB is closed.",
    )
    topic_cache_bytes: int = Field(
        67_108_864,
        ge=0,
        description="Memory of the topics that all connections remember for their next publishes, about 2.5 KB each. "
        "Beyond it other topics are resolved for each publish.",
    )
    receive_maximum: int = Field(
        1_000,
        ge=1,
        le=65_535,
        description="Unfinished publishes of QoS 1 and 2 per client. Beyond it a 3.1.1 client is not read (QoS 1) or "
        "closed (QoS 2). An MQTT 5 client is told the bound and closed beyond it.",
    )
    outstanding_records: int = Field(
        50_000, ge=1, description="Records between PUBLISH and Kafka's report; at the bound sockets are not read."
    )
    outstanding_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1_000_000,
        description="Memory of these records: payload, key, value, headers, overhead; the same bound in bytes.",
    )
    readings_per_publish: int = Field(
        1_000, ge=1, le=10_000, description="Readings in one payload; a payload with more becomes a dead letter."
    )
    user_properties: int = Field(
        32,
        ge=0,
        le=1_000,
        description="User properties of one publish (MQTT 5), which become headers of each of its records; a publish "
        "with more becomes a dead letter.",
    )
    property_bytes: int = Field(
        4_096,
        ge=0,
        le=65_535,
        description="Bytes of a publish's properties that become headers; a publish with more becomes a dead letter.",
    )
    connect_timeout_ms: int = Field(
        10_000, ge=100, description="A connection without a CONNECT is closed after this time."
    )
    topic_aliases: int = Field(32, ge=0, le=65_535, description="Topic aliases per connection (MQTT 5).")
    topic_alias_bytes: int = Field(
        67_108_864,
        ge=65_536,
        description="Memory of the topic aliases of all connections, about 200 bytes each; a client that sets one "
        "beyond it is closed with 0x97.",
    )


class SessionSettings(Settings):
    """Sessions between the connections of a client."""

    expiry_s: int = Field(
        86_400, ge=1, description="How long a session outlives its connection; the maximum for MQTT 5 clients."
    )
    maximum: int = Field(100_000, ge=1, description="Number of sessions; a CONNECT beyond it is refused.")
    maximum_per_sender: int | None = Field(
        None,
        ge=1,
        description="Sessions without a connection that one verified user, or one address of clients without one, may "
        "leave; beyond it a CONNECT that would begin another is refused. Default: half of `session.maximum`.",
    )
    topic: str = Field("isotherm.mqtt.sessions", description="The compacted topic that holds the sessions.")

    @property
    def most_per_sender(self) -> int:
        """The value of `maximum_per_sender`, or its default."""
        return max(1, self.maximum // 2) if self.maximum_per_sender is None else self.maximum_per_sender


class TransactionSettings(Settings):
    """How QoS 2 publishes of all clients are grouped into transactions."""

    linger_ms: float = Field(
        5.0,
        ge=0,
        le=1_000,
        description="A transaction waits at least this long for more publishes; while the wait brings more, up to "
        "eight times as long, at most 40 ms.",
    )
    max_records: int = Field(5_000, ge=1, description="Records in one transaction.")
    timeout_ms: int = Field(
        120_000, ge=10_000, le=900_000, description="Kafka aborts a transaction that is open for this time."
    )


class IdentitySettings(Settings):
    """Which device a client may publish for."""

    device_id: Literal["payload", "topic", "user"] | None = Field(
        None,
        description="Source of a reading's device id. `user`: the verified user, or the certificate's common name. "
        "`topic`: the topic level that the route names as the device, else the user. `payload`: the payload, else the "
        "topic, else the client id. With `user` and `topic` a reading that names another device is a dead letter. "
        "Default: without authentication `payload`; with it `topic` where an acl_file is set, else `user`.",
    )


class DeadLetterSettings(Settings):
    """Bounds on the dead letters that devices can cause."""

    rate: RateText = Field(
        "10000:100",
        description="Dead letters of one process, `n:seconds`; beyond the rate invalid publishes are only counted, and "
        "refused where the client can be told. Empty for no limit.",
    )
    retention_ms: int = Field(
        1_209_600_000, ge=-1, description="How long the topic keeps a dead letter (two weeks); -1 for no limit."
    )
    retention_bytes: int = Field(
        4 * 1024**3,
        ge=-1,
        description="Bytes of dead letters that a partition keeps; the oldest are deleted first. -1 for no limit.",
    )


class HeaderSettings(Settings):
    """What the headers of records tell beside topic, QoS and client."""

    packet_id: bool = Field(
        False,
        description="The packet identifier of publishes of QoS 1 and 2 (`mqtt.packet_id`), some 20 bytes a record: "
        "`isotherm trace --client ID --packet N --at TIME` finds what a device's log names.",
    )


class ProxySettings(HostSettings):
    """All settings of the MQTT proxy."""

    role: Literal["server", "bridge", "worker"] = Field(
        "server",
        description="`server`: devices connect to the proxy. `bridge`: the proxy subscribes to an existing broker "
        "(`bridge.*`). `worker`: the proxy runs bridges as the connectors of `worker_group`.",
    )
    name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,60}$",
        description="Name of this server among those on the same Kafka. Servers share neither sessions nor "
        "transactions. At most one server has no name.",
    )
    processes: int = Field(
        1, ge=1, le=64, description="Processes on the port. Each has bounds of its own and uses one ordinal."
    )
    listener: ListenerSettings = ListenerSettings()
    websocket: WebSocketSettings = WebSocketSettings()
    tls: TlsSettings = TlsSettings()
    limits: LimitSettings = LimitSettings()
    session: SessionSettings = SessionSettings()
    transactions: TransactionSettings = TransactionSettings()
    pods: PodSettings = PodSettings()
    bridge: BridgeSettings = BridgeSettings()
    commands: CommandSettings = CommandSettings()
    identity: IdentitySettings = IdentitySettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    attestations: AttestationSettings = AttestationSettings()
    tracing: IngestTracingSettings = IngestTracingSettings()
    headers: HeaderSettings = HeaderSettings()
    allow_anonymous: bool = Field(
        False,
        description="Accept clients without credentials; otherwise `password_file` or client certificates are needed.",
    )
    password_file: str | None = Field(
        None, description="Users and password hashes as `mosquitto_passwd` writes them; read again after a change."
    )
    acl_file: str | None = Field(
        None,
        description="Permissions to publish, and to subscribe to commands, in mosquitto's format; read again after a "
        "change.",
    )
    unauthorized: Literal["acknowledge", "close"] = Field(
        "acknowledge",
        description="What happens to a publish that acl_file does not allow when the client cannot be told (3.1.1, "
        "QoS 0): it is acknowledged, dropped and counted, or the connection is closed.",
    )
    ordinal: int = Field(
        0,
        ge=0,
        description="Number of this process, or of the first of several. The `transactional.id` is "
        "isotherm-mqtt-proxy-N, with a `name` isotherm-mqtt-proxy-NAME-N.",
    )
    routes: str = Field("", description="KCQL statements, `INSERT INTO topic SELECT fields FROM mqtt/filter; ...`.")
    topic_regex_list: str = Field(
        "", description="Routes in the old form: `kafka-topic:regular expression of MQTT topics`, separated by commas."
    )
    topic_regex_format: Literal["reading", "raw"] = Field(
        "reading",
        description="What the routes of `topic_regex_list` store: readings in Avro, or the payloads as they come. In "
        "`routes` a raw route says WITHFORMAT RAW.",
    )
    match: Literal["all", "first"] = Field(
        "all", description="Whether every matching route stores a publish, or only the first one."
    )
    device_level: int | None = Field(
        None,
        ge=0,
        description="Topic level (from 0) that names the device; default: the filter's only `+`, else the client id.",
    )
    units: dict[str, str] = Field(
        default={"temperature": "Cel", "brightness": "lx"},
        description="SenML unit by metric, for payloads without a unit.",
    )
    no_route: Literal["dead-letter", "drop"] = Field(
        "dead-letter", description="What happens to a publish that no route matches; it is counted and acknowledged."
    )
    invalid_publish: Literal["dead-letter", "refuse"] = Field(
        "dead-letter",
        description="What happens to an invalid publish. `dead-letter`: it is acknowledged and becomes one. `refuse`: "
        "MQTT 5 clients at QoS 1 and 2 are refused with 0x99 (0x90 for the topic), and nothing is stored.",
    )
    dead_letter_topic: str = Field(f"{SERVICE}.dead-letters", description="Topic of invalid publishes.")
    delivery_timeout_ms: int = Field(
        30_000, ge=1_000, description="Kafka must store a record within this time, or its publish is not acknowledged."
    )

    @model_validator(mode="after")
    def _consistent(self) -> ProxySettings:
        if self.name in ("bridge", "worker"):
            raise ValueError(f"name: {self.name!r} is taken: the bridge is called {SERVICE}-{self.name}")
        self.pods.check(self.role, self.shutdown_timeout_ms)
        self.commands.check(self.role)
        if self.identity.device_id == "user" and not self._authenticates:
            raise ValueError(
                "identity.device_id=user needs password_file or tls.cafile"
                if self.role == "server"
                else "identity.device_id=user: a broker does not tell who published; allowed here: payload, topic"
            )
        if self.topic_regex_format == "raw" and not self.topic_regex_list.strip():
            raise ValueError("topic_regex_format=raw without topic_regex_list; in `routes` a route says WITHFORMAT RAW")
        if self.role == "worker":
            return self  # its connectors have routes of their own
        if not self.routes.strip() and not self.topic_regex_list.strip():
            raise ValueError("routes and topic_regex_list are empty; one of them must route publishes to Kafka topics")
        if self.role == "server" and not any((self.allow_anonymous, self.tls.cafile, self.password_file)):
            raise ValueError(
                "allow_anonymous is false, and neither password_file nor tls.cafile is set, so no client could ever "
                "connect; set allow_anonymous=true, password_file, or tls.cafile for client certificates"
            )
        if self.role == "server" and self.websocket.port and self.websocket.port == self.listener.port:
            # With several processes (SO_REUSEPORT) both listen there, and the system spreads connections over them.
            raise ValueError(f"websocket.port and listener.port are both {self.listener.port}; each needs its own")
        if self.tls.use_identity_as_username and self.tls.cafile is None:
            raise ValueError("tls.use_identity_as_username needs tls.cafile: without it no client shows a certificate")
        if self.tls.use_identity_as_username and self.password_file is not None:
            raise ValueError("tls.use_identity_as_username and password_file exclude each other")
        if (self.tls.cafile or self.tls.keyfile) and self.tls.certfile is None:
            raise ValueError("tls.certfile is needed as soon as tls.keyfile or tls.cafile is set")
        if self.delivery_timeout_ms > self.transactions.timeout_ms:
            raise ValueError("delivery_timeout_ms must not exceed transactions.timeout_ms")
        return self

    @property
    def _authenticates(self) -> bool:
        return self.role == "server" and (self.password_file is not None or self.tls.cafile is not None)

    @property
    def device_policy(self) -> Literal["payload", "topic", "user"]:
        """The value of `identity.device_id`, or its default."""
        if self.identity.device_id is not None:
            return self.identity.device_id
        of_identity: Literal["user", "topic"] = "user" if self.acl_file is None else "topic"
        return of_identity if self._authenticates else "payload"
