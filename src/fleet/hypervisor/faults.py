"""Faults and delays of the simulated hypervisor, as plain data: by probability for soaks, by script for exact tests.

```json
{"delays": {"create": 0.5},
 "failures": {"create": {"probability": 0.1, "fault": "unreachable", "effect": "none"}},
 "script": [{"call": "create", "nth": 2, "fault": "timed_out", "effect": "done"}]}
```

`nth` counts that node's calls of the verb from 1, over all processes and restarts. `effect` is `none` when nothing
happened before the failure, or `done` when the work was done and only the answer was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.hypervisor.contract import Fault
from fleet.model.config_value import ConfigError, ConfigProblem
from fleet.model.findings import shown

CALLS: Final = ("domains", "create", "start", "stop", "delete")
EFFECTS: Final = ("none", "done")
DELAY_SECONDS_MAX: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a call fails; `effect_done` when the work is done all the same."""

    fault: Fault
    effect_done: bool = False
    transient: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What goes wrong, and how long each call takes. The empty plan is a hypervisor that always works."""

    delays: Mapping[str, float] = field(default_factory=dict)
    probabilities: Mapping[str, tuple[float, Failure]] = field(default_factory=dict)
    script: Mapping[tuple[str, int], Failure] = field(default_factory=dict)

    @property
    def counted_calls(self) -> frozenset[str]:
        """The verbs that may fail, whose calls must therefore be counted."""
        return frozenset(call for call, _ in self.script) | frozenset(self.probabilities)

    def failure(self, call: str, nth: int, draw: float) -> Failure | None:
        """How the `nth` call of a verb fails, if it does; `draw` is a number from 0 up to 1."""
        probability, by_chance = self.probabilities.get(call, (0.0, None))
        return self.script.get((call, nth)) or (by_chance if draw < probability else None)

    @classmethod
    def parse(cls, content: object, *, where: str = "") -> FaultPlan:
        """The plan of a JSON document; ConfigError with every problem in it."""
        reader = _Reader(where)
        document = reader.mapping("faults", content, {"delays", "failures", "script"})
        delays = {
            call: reader.number(f"delays.{call}", seconds, DELAY_SECONDS_MAX)
            for call, seconds in reader.mapping("delays", document.get("delays", {}), set(CALLS)).items()
        }
        probabilities = {}
        for call, entry in reader.mapping("failures", document.get("failures", {}), set(CALLS)).items():
            place = f"failures.{call}"
            parts = reader.mapping(place, entry, {"probability", "fault", "effect", "transient"})
            probability = reader.number(f"{place}.probability", parts.get("probability"), 1)
            probabilities[call] = (probability, reader.failure(place, parts))
        script = {}
        for index, entry in enumerate(reader.listed("script", document.get("script", []))):
            place = f"script[{index}]"
            parts = reader.mapping(place, entry, {"call", "nth", "fault", "effect", "transient"})
            call = reader.word(f"{place}.call", parts.get("call"), CALLS)
            script[call, reader.nth(f"{place}.nth", parts.get("nth"))] = reader.failure(place, parts)
        if reader.problems:
            raise ConfigError(reader.problems)
        return cls(delays=delays, probabilities=probabilities, script=script)


class _Reader:
    """Reads the parts of the document and keeps what is wrong, so that all of it is reported together."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[ConfigProblem] = []

    def mapping(self, place: str, value: object, known: set[str]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            self._refuse(place, value, "a mapping")
            return {}
        for name in value.keys() - known:
            self._refuse(f"{place}.{name}", name, ", ".join(sorted(known)))
        return {name: part for name, part in value.items() if name in known}

    def listed(self, place: str, value: object) -> list[Any]:
        if isinstance(value, list):
            return value
        self._refuse(place, value, "a list")
        return []

    def number(self, place: str, value: object, high: float) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= high:
            return float(value)
        self._refuse(place, value, f"a number from 0 to {high}")
        return 0.0

    def nth(self, place: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self._refuse(place, value, "a whole number from 1")
        return 1

    def word(self, place: str, value: object, known: tuple[str, ...]) -> str:
        if isinstance(value, str) and value in known:
            return value
        self._refuse(place, value, ", ".join(known))
        return known[0]

    def failure(self, place: str, parts: Mapping[str, Any]) -> Failure:
        fault = self.word(f"{place}.fault", parts.get("fault", Fault.UNREACHABLE), tuple(Fault))
        effect = self.word(f"{place}.effect", parts.get("effect", "none"), EFFECTS)
        transient = parts.get("transient")
        if transient is not None and not isinstance(transient, bool):
            self._refuse(f"{place}.transient", transient, "true or false")
        return Failure(fault=Fault(fault), effect_done=effect == "done", transient=transient)

    def _refuse(self, place: str, value: object, accepted: str) -> None:
        reason = f"{shown(value)} is refused; accepted: {accepted}"
        self.problems.append(ConfigProblem(key=place, where=self._where, reason=reason))
