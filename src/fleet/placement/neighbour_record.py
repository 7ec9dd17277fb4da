"""How the neighbours that a decision saw are stored with it: columns, beside the snapshot that they stand on.

Promise: `read_neighbours(neighbour_bytes(...))` gives back instances on which `decide` answers, for the same request,
snapshot and seed, exactly what it answered before. What every one repeats is written once: each pair of tags, each set
of pairs, nodes by their place in the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import numpy as np

from fleet.placement.columns import UNKNOWN
from fleet.placement.document import instance_form, read_instance
from fleet.placement.frame import Roster
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbours import InstanceIndex
from fleet.placement.record import Source, Writer

NEIGHBOURS: Final = b"fleet-neighbours-1\n"
UUID_BYTES: Final = 16


def neighbour_bytes(roster: Roster, instances: Iterable[InstanceRecord]) -> bytes:
    """Return neighbours in a few bytes each. Of those with amounts of their own, such as who is placed again, all."""
    plain: list[InstanceRecord] = []
    whole: list[dict[str, Any]] = []
    for one in instances:
        if _is_plain(one, roster):
            plain.append(one)
        else:
            whole.append(instance_form(one))
    namespaces: dict[str, int] = {}
    pairs: dict[tuple[str, str], int] = {}
    tag_sets: dict[tuple[int, ...], int] = {}
    rows = [
        (
            namespaces.setdefault(one.namespace, len(namespaces)),
            tag_sets.setdefault(tuple(pairs.setdefault(pair, len(pairs)) for pair in one.tags.items()), len(tag_sets)),
            _place(one.node, roster),
            _place(one.incoming_node, roster),
        )
        for one in plain
    ]
    writer = Writer()
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 4).T
    header: dict[str, Any] = {
        "whole": whole,
        "namespaces": list(namespaces),
        "pairs": list(pairs),
        "tags": list(tag_sets),
        "columns": [writer.column(column) for column in columns],
    }
    writer.blobs.append(b"".join(UUID(one.uuid).bytes for one in plain))
    return writer.finish(NEIGHBOURS, header)


def read_neighbours(data: bytes, roster: Roster) -> InstanceIndex:
    """Return the instances of `neighbour_bytes`; `roster` is that of the snapshot that they were seen on.

    Raises:
        ValueError: bytes of another kind.
    """
    source = Source(NEIGHBOURS, data)
    header = source.header
    tag_sets = _tag_sets(header)
    columns = [source.column(described).tolist() for described in header["columns"]]
    uuids = source.blob(UUID_BYTES * len(columns[0]))
    found = [
        InstanceRecord(
            uuid=str(UUID(bytes=uuids[at * UUID_BYTES : (at + 1) * UUID_BYTES])),
            namespace=header["namespaces"][namespace],
            node=None if node == UNKNOWN else roster.names[node],
            incoming_node=None if incoming == UNKNOWN else roster.names[incoming],
            tags=tag_sets[tags],
        )
        for at, (namespace, tags, node, incoming) in enumerate(zip(*columns, strict=True))
    ]
    return InstanceIndex([*found, *(read_instance(form) for form in header["whole"])])


def _tag_sets(header: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the sets of tags. Records without pairs are older: they hold every set as it is."""
    if "pairs" not in header:
        return list(header["tags"])
    return [dict(header["pairs"][at] for at in places) for places in header["tags"]]


def _is_plain(one: InstanceRecord, roster: Roster) -> bool:
    """Whether the columns say all of it."""
    named = all(node in roster.index for node in one.nodes())
    bare = InstanceRecord(one.uuid, one.namespace, one.node, one.incoming_node, one.tags)
    return named and one == bare and _is_uuid(one.uuid)


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _place(node: str | None, roster: Roster) -> int:
    return UNKNOWN if node is None else roster.index[node]
