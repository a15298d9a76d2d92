"""The cooperative sticky assignor (KIP-429): balanced, and a partition that has an owner stays with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set

Partition = tuple[str, int]


def assign(
    subscriptions: Mapping[str, Set[str]], owned: Mapping[str, Set[Partition]], partitions: Mapping[str, int]
) -> dict[str, set[Partition]]:
    """Return the partitions of each member.

    A partition that moves is given to nobody in this round: its owner gives it up first, and joins again.

    Args:
        subscriptions: by member, its topics.
        owned: by member, the partitions that it says it has.
        partitions: by topic, how many partitions it has.
    """
    targets = _balanced(subscriptions, owned, partitions)
    owners = {partition: member for member in sorted(owned) for partition in owned[member]}
    return {
        member: {partition for partition in target if owners.get(partition, member) == member}
        for member, target in targets.items()
    }


def _balanced(
    subscriptions: Mapping[str, Set[str]], owned: Mapping[str, Set[Partition]], partitions: Mapping[str, int]
) -> dict[str, set[Partition]]:
    targets: dict[str, set[Partition]] = {member: set() for member in sorted(subscriptions)}
    topics = sorted({topic for wanted in subscriptions.values() for topic in wanted if topic in partitions})
    everything = [(topic, number) for topic in topics for number in range(partitions[topic])]
    most = -(-len(everything) // max(1, len(targets)))
    free: list[Partition] = []
    for partition in everything:
        owner = next((one for one in targets if partition in owned.get(one, ())), None)
        is_kept = owner is not None and partition[0] in subscriptions[owner] and len(targets[owner]) < most
        if is_kept and owner is not None:
            targets[owner].add(partition)
        else:
            free.append(partition)
    for partition in free:
        able = [member for member in targets if partition[0] in subscriptions[member]]
        if able:
            targets[min(able, key=lambda one: (len(targets[one]), one))].add(partition)
    while _move_one(targets, subscriptions):
        pass
    return targets


def _move_one(targets: dict[str, set[Partition]], subscriptions: Mapping[str, Set[str]]) -> bool:
    """Move a partition from the fullest to the emptiest member that may have it; False if they are balanced."""
    by_size = sorted(targets, key=lambda one: (len(targets[one]), one))
    for full in reversed(by_size):
        for empty in by_size:
            if len(targets[full]) - len(targets[empty]) < 2:
                break
            movable = sorted(one for one in targets[full] if one[0] in subscriptions[empty])
            if movable:
                targets[full].discard(movable[-1])
                targets[empty].add(movable[-1])
                return True
    return False
