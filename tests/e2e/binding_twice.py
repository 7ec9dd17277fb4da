"""An `sf-api` whose ledger gives every card to whoever asks, held or not: what a check of GPUs must find out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from daemons import api
from fleet.ledger import gpus
from fleet.ledger.database import SqlOfLists
from fleet.model.gpu_inventory import GpuDevice

FREE: Any = gpus._device
BIND_ANYWAY = SqlOfLists("""
    UPDATE node_gpus SET bound_to = :instance_uuid, updated_at = {now} WHERE node_id = :node_id AND uuid IN ({uuids})
""")


def as_if_free(one: gpus.HeldUnit) -> GpuDevice:
    device: GpuDevice = FREE(one)
    return replace(device, bound_to=None)


if __name__ == "__main__":
    gpus._device = as_if_free
    gpus.BIND = BIND_ANYWAY
    api.main()
