"""The simulated hypervisor: real states, a memory that survives restarts, faults and delays on request.

It makes no machines, and everything else about it is real: several processes may use one node's file at once, a
killed process leaves whole states, a lost answer leaves the work done. It states the most vCPUs of a domain because
nobody else can. `occupies_disk` says whether its domains' disks are thought to lie on the measured file system: yes on
a simulated node, no on a real machine whose disks are measured for real.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fleet.hypervisor.contract import DomainSpec, Fault, HypervisorError, domain_set_of
from fleet.hypervisor.domain_file import DomainFile, Remembered
from fleet.hypervisor.faults import Failure, FaultPlan
from fleet.model.domain import Domain, DomainState

MAX_VCPUS: Final = 255
"""What the simulated hypervisor states unless told otherwise: as many as a common emulator without extensions."""


class SimulatedHypervisor:
    """A node's hypervisor whose domains live in a file."""

    def __init__(
        self,
        path: Path,
        *,
        max_vcpus: int | None = MAX_VCPUS,
        plan: FaultPlan | None = None,
        occupies_disk: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._file = DomainFile(path)
        self._max_vcpus = max_vcpus
        self._plan = plan or FaultPlan()
        self._occupies_disk = occupies_disk
        self._sleep = sleep
        self._name = path.stem

    def domains(self) -> Sequence[Domain]:
        self._wait("domains")
        if "domains" not in self._plan.counted_calls:
            return list(self._file.read().domains.values())
        with self._file.changing() as remembered:
            failure = self._due("domains", remembered)
            known = list(remembered.domains.values())
        self._fail(failure, "domains")
        return known

    def domain_set(self) -> frozenset[str]:
        return domain_set_of(self.domains())

    def max_vcpus(self) -> int | None:
        return self._max_vcpus

    def create(self, spec: DomainSpec) -> None:
        if self._max_vcpus is not None and spec.cpus > self._max_vcpus:
            detail = f"{spec.name} asks for {spec.cpus} vCPUs, one domain may have {self._max_vcpus}"
            raise HypervisorError(Fault.REFUSED, detail)
        self._change("create", lambda remembered: self._create(remembered, spec))

    def start(self, uuid: str) -> None:
        self._change("start", lambda remembered: _set_state(remembered, uuid, DomainState.RUNNING))

    def stop(self, uuid: str) -> None:
        self._change("stop", lambda remembered: _set_state(remembered, uuid, DomainState.SHUT_OFF))

    def delete(self, uuid: str) -> None:
        self._change("delete", lambda remembered: remembered.domains.pop(uuid, None))

    def put(self, domain: Domain) -> None:
        """Place a domain as it is, behind the product's back: a foreign one, a crashed one, one moving in."""
        with self._file.changing() as remembered:
            remembered.domains[domain.uuid] = domain

    def _create(self, remembered: Remembered, spec: DomainSpec) -> None:
        wanted = Domain(
            uuid=spec.uuid,
            name=spec.name,
            state=DomainState.RUNNING,
            vcpus=spec.cpus,
            memory_mb=spec.memory_mb,
            disk_gb=spec.disk_gb,
            owned=True,
            disk_occupied_mb=spec.disk_gb * 1024 if self._occupies_disk else 0,
            gpu_uuids=spec.gpu_uuids,
        )
        standing = remembered.domains.setdefault(spec.uuid, wanted)
        if replace(standing, state=wanted.state, disk_occupied_mb=wanted.disk_occupied_mb) != wanted:
            detail = (
                f"a domain {spec.uuid} exists with {standing.vcpus} vCPUs, {standing.memory_mb} MiB, "
                f"{standing.disk_gb} GiB, GPUs {list(standing.gpu_uuids)} as {standing.name!r}; asked for "
                f"{spec.cpus}, {spec.memory_mb}, {spec.disk_gb}, {list(spec.gpu_uuids)} as {spec.name!r}"
            )
            raise HypervisorError(Fault.DOMAIN_DIFFERS, detail)

    def _change(self, call: str, act: Callable[[Remembered], object]) -> None:
        """Run one verb: its delay, its scripted or random failure, its effect, in one locked step."""
        self._wait(call)
        refused: HypervisorError | None = None
        with self._file.changing() as remembered:
            failure = self._due(call, remembered)
            if failure is None or failure.effect_done:
                try:
                    act(remembered)
                except HypervisorError as error:
                    refused = error  # raised below, so that the call is still counted
        if refused is not None:
            raise refused
        self._fail(failure, call)

    def _due(self, call: str, remembered: Remembered) -> Failure | None:
        if call not in self._plan.counted_calls:
            return None
        nth = remembered.calls[call] = remembered.calls.get(call, 0) + 1
        # The draw follows from the remembered count, so it differs from call to call also in forked processes,
        # which share their parent's generator, and the same story can be told again.
        draw = random.Random(f"{self._name}:{call}:{nth}").random()
        return self._plan.failure(call, nth, draw)

    def _wait(self, call: str) -> None:
        delay = self._plan.delays.get(call, 0.0)
        if delay:
            self._sleep(delay)

    @staticmethod
    def _fail(failure: Failure | None, call: str) -> None:
        if failure is not None:
            done = "its answer was lost" if failure.effect_done else "nothing was done"
            raise HypervisorError(failure.fault, f"simulated failure of {call}: {done}", transient=failure.transient)


def simulated_hypervisor(
    state_folder: Path,
    node: str,
    *,
    max_vcpus: int | None = MAX_VCPUS,
    faults: Any = None,
    occupies_disk: bool = True,
) -> SimulatedHypervisor:
    """The hypervisor of a simulated node, remembered in `state_folder`, which is made when it does not exist.

    Every process that is given the same folder and node name sees the same domains.
    """
    state_folder.mkdir(parents=True, exist_ok=True)
    return SimulatedHypervisor(
        state_folder / f"{quote(node, safe='')}.json",
        max_vcpus=max_vcpus,
        plan=FaultPlan.parse(faults or {}, where=f"faults of {node}"),
        occupies_disk=occupies_disk,
    )


def _set_state(remembered: Remembered, uuid: str, state: DomainState) -> None:
    if uuid not in remembered.domains:
        raise HypervisorError(Fault.NO_SUCH_DOMAIN, f"there is no domain {uuid}")
    remembered.domains[uuid] = replace(remembered.domains[uuid], state=state)
