"""Rules under the lock: an admission judges them once more, on what is committed on its node and in the node's groups.

The caller holds the node's row, and every charge on a node is written under that row: so a plain read is exact, until
the caller commits. A rule `within` a label reads a whole group of nodes; their rows are locked by one write, without
waiting, so two admissions that need each other's rows cannot deadlock. Labels change under the same rows (`nodes.py`),
and who is in the group is read once more after the write: a node that came or went meanwhile makes the try busy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fleet.ledger.database import LOCK_WAIT_TIMEOUT, Sql, SqlOfLists, error_number
from fleet.ledger.neighbours import TERMINATING
from fleet.model.cluster_config import ClusterConfig
from fleet.placement.columns import LEDGER, SAMPLE
from fleet.placement.frame import Frame, Roster, Sample, Traits
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbours import InstanceIndex
from fleet.placement.rules.enforced import Enforced
from fleet.placement.rules.ground import FrameGround

_TERMINATING = ", ".join(f"'{state}'" for state in sorted(TERMINATING))
DECLARED = Sql("SELECT region, arch FROM nodes WHERE id = :node_id")
OWN = SqlOfLists("SELECT label, value FROM node_labels WHERE node_id = :node_id AND label IN ({keys})")
MEMBERS = SqlOfLists(
    """
    {unbounded} SELECT own.label, own.value, GROUP_CONCAT(m.node_id) AS nodes FROM node_labels own
        JOIN node_labels m ON m.label = own.label AND m.value = own.value
        JOIN nodes n ON n.id = m.node_id AND n.state <> 'deleted'
    WHERE own.node_id = :node_id AND own.label IN ({keys})
    GROUP BY own.label, own.value
""",
    mysql_unbounded="SET STATEMENT group_concat_max_len = 16777216 FOR",
)
# The number of writes moves and nothing else: who reads what changed has nothing to read.
LOCK = SqlOfLists(
    "{nowait} UPDATE scheduler_node_capacity SET generation = generation + 1 WHERE node_id IN ({nodes})",
    mysql_nowait="SET STATEMENT innodb_lock_wait_timeout = 0 FOR",
)
NEIGHBOURS = SqlOfLists(f"""
    SELECT c.instance_uuid AS uuid, c.node_id, t.tag, t.value
    FROM charges c JOIN instances i ON i.uuid = c.instance_uuid
        JOIN instance_tags t ON t.instance_uuid = c.instance_uuid
    WHERE c.namespace = :namespace AND c.node_id IN ({{nodes}})
        AND c.instance_uuid <> :instance_uuid AND i.state NOT IN ({_TERMINATING}) AND t.tag IN ({{keys}})
""")

Labels = Mapping[int, Mapping[str, str]]


class GroupLocked(Exception):
    """Another transaction holds a node of the group, or nodes came or went while it was locked."""


def broken(conn: Connection, enforced: Enforced, *, node_id: int, namespace: str, instance_uuid: str) -> str:
    """Return the first rule that does not hold for the instance on the node; empty: all hold, until the caller commits.

    Raises:
        GroupLocked: that cannot be said now; nothing is known about the rules.
    """
    labels = _hold_groups(conn, enforced, node_id)
    names = {each: str(each) for each in sorted(labels)}
    traits = {each: Traits(labels=labels[each]) for each in names}
    if enforced.region or enforced.arch:
        traits[node_id] = _declared(conn, node_id, labels[node_id])
    roster = Roster(list(names.values()), list(names), list(traits.values()))
    index = InstanceIndex(_neighbours(conn, enforced, names, namespace, instance_uuid))
    return enforced.broken(FrameGround(_bare(roster, index), namespace, instance_uuid), roster.by_id[node_id])


def _declared(conn: Connection, node_id: int, labels: Mapping[str, str]) -> Traits:
    row = DECLARED.run(conn, node_id=node_id).one()
    return Traits(labels=labels, region=row.region, arch=row.arch)


def _bare(roster: Roster, index: InstanceIndex) -> Frame:
    """Return a view of who is where, without a figure: rules read none."""
    nodes = len(roster.names)
    sample = Sample(np.zeros((len(SAMPLE), nodes), dtype=np.int64), ClusterConfig())
    return Frame(roster, np.zeros((len(LEDGER), nodes), dtype=np.int64), sample, 0, index)


def _hold_groups(conn: Connection, enforced: Enforced, node_id: int) -> Labels:
    """Hold every node of the groups that rules ask about. Return the labels that count, by node, the asked one too."""
    own = _own_labels(conn, enforced.label_keys, node_id)
    keys = enforced.group_keys
    if not keys:
        return {node_id: own}
    members = _members(conn, keys, node_id)
    others = sorted(members.keys() - {node_id})
    if others:
        _lock(conn, others)
        if _members(conn, keys, node_id) != members:
            raise GroupLocked
    return {**members, node_id: own}


def _own_labels(conn: Connection, keys: Collection[str], node_id: int) -> dict[str, str]:
    if not keys:
        return {}
    rows = OWN.run(conn, {"keys": keys}, node_id=node_id)
    return {row.label: row.value for row in rows}


def _members(conn: Connection, keys: Collection[str], node_id: int) -> dict[int, dict[str, str]]:
    """Return the nodes that share one of these labels with the node, whatever their state, with the labels shared."""
    found: dict[int, dict[str, str]] = {}
    # One row a group, whatever its size: a row for each of thousands of nodes takes longer to read than all the rest.
    for row in MEMBERS.run(conn, {"keys": keys}, node_id=node_id):
        for each in map(int, str(row.nodes).split(",")):
            found.setdefault(each, {})[row.label] = row.value
    return found


def _lock(conn: Connection, node_ids: Collection[int]) -> None:
    try:
        LOCK.run(conn, {"nodes": node_ids})
    except DBAPIError as error:
        if error_number(error) == LOCK_WAIT_TIMEOUT:
            raise GroupLocked from error
        raise


def _neighbours(
    conn: Connection, enforced: Enforced, names: Mapping[int, str], namespace: str, instance_uuid: str
) -> list[InstanceRecord]:
    """Return the instances of the namespace with one of the tags that are asked about, on any of these nodes."""
    keys = enforced.tag_keys
    if not keys:
        return []
    tags: dict[str, dict[str, str]] = {}
    places: dict[str, list[int]] = {}
    lists: dict[str, Collection[int | str]] = {"nodes": names, "keys": keys}
    for row in NEIGHBOURS.run(conn, lists, namespace=namespace, instance_uuid=instance_uuid):
        tags.setdefault(row.uuid, {})[row.tag] = row.value
        where = places.setdefault(row.uuid, [])
        if row.node_id not in where:
            where.append(row.node_id)
    return [
        InstanceRecord(
            uuid,
            namespace,
            node=names[where[0]],
            incoming_node=names[where[1]] if len(where) > 1 else None,
            tags=tags[uuid],
        )
        for uuid, where in places.items()
    ]
