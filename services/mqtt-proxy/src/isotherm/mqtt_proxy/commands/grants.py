"""Which commands a client may get and has subscribed to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from isotherm.mqtt_proxy.access.acl import Acl
from isotherm.mqtt_proxy.access.authentication import AccessControl, PublishPermissions
from isotherm.mqtt_proxy.codec.packets import SHARE, Subscribe
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.commands.command_topics import CommandTopics, Scope
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.sessions.store import Subscription

_MOST_QOS = 1


class Grantee(NamedTuple):
    """A client: its id, the user name that the rules know it by, and its verified name, perhaps of its certificate."""

    client_id: str
    acl_username: str | None
    username: str | None

    @classmethod
    def of(cls, context: IngestContext, permissions: PublishPermissions | None) -> Grantee:
        """Return who a connection is."""
        return cls(context.client_id, None if permissions is None else permissions.username, context.username)


class Grants:
    """The subscriptions of one client, at most `maximum`, as far as the rules of now allow them."""

    __slots__ = ("_access", "_acl", "_granted", "_grantee", "_maximum", "_subscriptions", "_topics")

    def __init__(self, topics: CommandTopics, access: AccessControl, grantee: Grantee, maximum: int) -> None:
        self._topics, self._access, self._grantee, self._maximum = topics, access, grantee, maximum
        self._subscriptions: tuple[Subscription, ...] = ()
        self._granted: list[tuple[Scope, Subscription]] = []
        self._acl: Acl | None = None

    @property
    def devices(self) -> set[str]:
        """The devices whose commands the client gets."""
        return {scope.device_id for scope, _ in self._granted}

    def grant(self, held: Iterable[Subscription], event: Subscribe) -> tuple[tuple[Subscription, ...], list[int]]:
        """Return the subscriptions after a SUBSCRIBE of a client that has `held`, and the reason for each filter.

        A subscription to the same filter replaces the earlier one (MQTT-3.8.4-3).
        """
        after = {subscription.topic_filter: subscription for subscription in held}
        reasons: list[int] = []
        for topic_filter, asked in event.filters:
            refusal = self._refusal(topic_filter)
            if refusal is None and topic_filter not in after and len(after) >= self._maximum:
                refusal = Reason.QUOTA_EXCEEDED
            if refusal is None:
                qos = min(asked, _MOST_QOS)
                after[topic_filter] = Subscription(topic_filter, qos, event.subscription_id)
                reasons.append(qos)
            else:
                reasons.append(refusal)
        return tuple(after.values()), reasons

    def _refusal(self, topic_filter: str) -> Reason | None:
        if topic_filter.startswith(SHARE):
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        scope = self._topics.scope(topic_filter)
        return None if scope is not None and self._is_allowed(topic_filter, scope) else Reason.NOT_AUTHORIZED

    def _is_allowed(self, topic_filter: str, scope: Scope) -> bool:
        acl, (client_id, acl_username, username) = self._access.acl, self._grantee
        if acl is not None:
            return acl.may_subscribe(topic_filter, client_id=client_id, username=acl_username)
        return self._access.may_act_for(scope.device_id, client_id=client_id, username=username)

    def set(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Replace the subscriptions. Those that the rules or the topics of now do not allow have no effect."""
        self._subscriptions = subscriptions
        self._acl = self._access.acl
        self._granted = []
        for subscription in subscriptions:
            scope = self._topics.scope(subscription.topic_filter)
            if scope is not None and self._is_allowed(subscription.topic_filter, scope):
                self._granted.append((scope, subscription))

    def qos_of(self, device_id: str, name: str) -> int | None:
        """Return the highest QoS of the subscriptions to a command; None without one."""
        return max((one.qos for one in self._matching(device_id, name)), default=None)

    def subscription_ids(self, device_id: str, name: str) -> list[int]:
        """Return the identifiers of all subscriptions to a command that have one."""
        return [one.subscription_id for one in self._matching(device_id, name) if one.subscription_id is not None]

    def _matching(self, device_id: str, name: str) -> list[Subscription]:
        if self._access.acl is not self._acl:
            self.set(self._subscriptions)
        return [subscription for scope, subscription in self._granted if scope.covers(device_id, name)]
