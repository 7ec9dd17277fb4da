"""Forking: a new instance beside the one it is made from, on the same node, for what it starts from is only there.

No stage chooses and none is asked; the guard has its word, as for anything else that is charged. An operator may force
a fork past the guard, which is recorded: the node is then over its limit until something leaves it.
"""

from __future__ import annotations

from dataclasses import replace

from fleet.ledger import admission, events
from fleet.ledger.admission import Rows
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Batch, Database
from fleet.ledger.idempotency import Keyed
from fleet.model.admission import AdmissionOutcome
from fleet.model.errors import InvalidRequest
from fleet.model.request import InstanceRequest, PlacementRequest, Reason
from fleet.services import replacing
from fleet.services.context import Context
from fleet.services.create import Created, place_new, replayed
from fleet.services.idempotency import RetryKey, once
from fleet.services.place import Admit, Refusal
from fleet.services.replacing import Subject

FORCED = "fork forced past the capacity guard"


def fork(
    ctx: Context, source_uuid: str, request: InstanceRequest, *, force: bool = False, retry_key: RetryKey | None = None
) -> Created | Refusal:
    """Make a new instance from `request` on the node of `source_uuid`, in the source's namespace.

    Where the source was allowed to be is not inherited: what `request` says of labels and rules holds in later moves.

    Raises:
        NotFound: no such source; Conflict: it is being made, moved or deleted, or it failed.
        InvalidRequest: a fork with GPUs is forced: what somebody holds cannot be given twice.
    """
    if force and request.gpus:
        problem = "a fork with GPUs cannot be forced: a GPU that is held cannot be given to another"
        raise InvalidRequest(problem, errors=[{"field": "gpus", "message": problem}])
    return once(
        ctx.database,
        retry_key,
        make=lambda keyed: _fork(ctx, replacing.subject(ctx, source_uuid), request, keyed, force=force),
        replay=replayed,
    )


def _fork(
    ctx: Context, source: Subject, request: InstanceRequest, keyed: Keyed | None, *, force: bool
) -> Created | Refusal:
    namespace = source.instance.namespace
    asked = PlacementRequest.of(request, namespace, reason=Reason.FORK, instance=source.instance.uuid)
    told = {"reason": str(Reason.FORK), "forked_from": source.instance.uuid, "enforce": not force}
    return place_new(
        ctx, namespace, request, keyed, asked, admit=_beside(source, force=force), only_here=True, told=told
    )


def _beside(source: Subject, *, force: bool) -> Admit:
    def admit(db: Database, ask: NodeAsk, rows: Rows) -> AdmissionOutcome:
        # What the fork asks of other nodes and neighbours is for later moves.
        here = replace(ask, enforced=None, enforce=not force)

        def forced(batch: Batch) -> None:
            rows.new(batch)
            payload = {"node_id": ask.node_id, "forked_from": source.instance.uuid, **ask.amounts.as_dict()}
            events.record(batch, "instance", ask.instance_uuid, FORCED, payload, level="warning")

        return admission.admit(db, here, replace(rows, new=forced) if force else rows)

    return admit
