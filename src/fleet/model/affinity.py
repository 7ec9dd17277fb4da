"""Tag affinity: near which instances of its namespace an instance must, must not, should or should not run.

    {"require_with_tag": ["role=web"], "require_without_tag": […], "prefer_with_tag": […], "prefer_without_tag": […]}

Promise: a specification that exists is valid. An entry `k` matches the tag `k` whatever its value, `k=v` the pair. The
older form, weights by tag (`{"db": 100, "noisy": -1}`), is still read: a positive weight prefers, a negative one
avoids, zero says nothing, and how large it is does not matter. Whoever accepts it records `deprecation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.model.findings import Findings, are_texts, kind_of, shown, step
from fleet.model.rules import tag_problem

REQUIRE_WITH: Final = "require_with_tag"
REQUIRE_WITHOUT: Final = "require_without_tag"
PREFER_WITH: Final = "prefer_with_tag"
PREFER_WITHOUT: Final = "prefer_without_tag"
RESERVED: Final = (REQUIRE_WITH, REQUIRE_WITHOUT, PREFER_WITH, PREFER_WITHOUT)
"""The keys of the binary form. An object that uses none of them is the weighted form."""

ENTRIES_MAX: Final = 64
"""Entries of one list, and weights of one object: as many as an instance can have tags."""

WEIGHT_MAX: Final = 2**63 - 1
"""Far more than any weight ever was, and a number that every reader of JSON can hold."""

DEPRECATED_EVENT: Final = "deprecated weighted affinity specification accepted"
DEPRECATED_NOTE: Final = (
    "weights are deprecated: a positive one now means prefer_with_tag, a negative one prefer_without_tag, "
    "its magnitude is ignored; write the lists instead"
)


@dataclass(frozen=True, slots=True)
class TagMatch:
    """One entry: the tag `key` with any value, or, when `value` is not None, with that value."""

    key: str
    value: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no entry can be: TypeError for a wrong type, ValueError for a wrong value."""
        if not are_texts(self.key, self.value or ""):
            raise TypeError("an affinity entry is a tag's key and a value or None")
        if problem := tag_problem(self.key, self.value or ""):
            raise ValueError(problem)

    @classmethod
    def of(cls, text: str) -> TagMatch:
        """Return the entry written `k` or `k=v`; white space around key and value does not count."""
        key, equals, value = text.partition("=")
        return cls(key.strip(), value.strip() if equals else None)

    def __str__(self) -> str:
        """Return the entry as it is written."""
        return self.key if self.value is None else f"{self.key}={self.value}"

    def matches(self, tags: Mapping[str, str]) -> bool:
        """Return whether an instance with these tags is meant."""
        found = tags.get(self.key)
        return found is not None and (self.value is None or self.value == found)


Entries = tuple[TagMatch, ...]


@dataclass(frozen=True, slots=True)
class AffinitySpec:
    """What an instance asks of its neighbours; every list holds an entry once, in the order given.

    `given` is the form it was read from and is not compared; `deprecated` says that this was the weighted form.
    """

    require_with: Entries = ()
    require_without: Entries = ()
    prefer_with: Entries = ()
    prefer_without: Entries = ()
    deprecated: bool = False
    given: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what no specification can be."""
        for entries in (self.require_with, self.require_without, self.prefer_with, self.prefer_without):
            if not _is_entries(entries):
                raise TypeError("the entries of an affinity must be a tuple of TagMatch")

    def __bool__(self) -> bool:
        """Return whether anything is asked at all."""
        return self.constrains or self.scores

    @property
    def constrains(self) -> bool:
        """Whether there is an entry that drops nodes."""
        return bool(self.require_with or self.require_without)

    @property
    def scores(self) -> bool:
        """Whether there is an entry that ranks nodes."""
        return bool(self.prefer_with or self.prefer_without)

    @property
    def entries(self) -> Entries:
        """Every entry of every list, each once."""
        lists = (*self.require_with, *self.require_without, *self.prefer_with, *self.prefer_without)
        return tuple(dict.fromkeys(lists))

    def form(self) -> dict[str, list[str]]:
        """Return the binary form, only the lists that have entries; it reads back to the same entries."""
        lists = (self.require_with, self.require_without, self.prefer_with, self.prefer_without)
        return {
            name: [str(entry) for entry in entries] for name, entries in zip(RESERVED, lists, strict=True) if entries
        }

    def deprecation(self) -> dict[str, Any]:
        """Return the payload of `DEPRECATED_EVENT`: what was given, what it was taken for, what to do."""
        return {"affinity": dict(self.given), "mapped_to": self.form(), "note": DEPRECATED_NOTE}


def parse_affinity(value: object, path: str = "affinity") -> AffinitySpec:
    """Return the specification of a request; `path` is the field it stands in. A specification is returned as it is.

    Raises:
        InvalidRequest: with every problem and its path.
    """
    if isinstance(value, AffinitySpec):
        return value
    findings = Findings()
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        findings.add(path, f"must be an object of lists or of weights, not {kind_of(value)}")
        findings.finish()
        return AffinitySpec()
    if not any(name in value for name in RESERVED):
        with_tags, without_tags = _weighted(value, path, findings)
        findings.finish()
        return AffinitySpec(prefer_with=with_tags, prefer_without=without_tags, deprecated=bool(value), given=value)
    for name in (key for key in value if key not in RESERVED):
        findings.add(f"{path}.{step(name)}", f"{shown(name)} cannot stand beside {', '.join(RESERVED)}; put it in one")
    lists = {name: _entries(value[name], f"{path}.{name}", findings) for name in RESERVED if name in value}
    findings.finish()
    return AffinitySpec(
        require_with=lists.get(REQUIRE_WITH, ()),
        require_without=lists.get(REQUIRE_WITHOUT, ()),
        prefer_with=lists.get(PREFER_WITH, ()),
        prefer_without=lists.get(PREFER_WITHOUT, ()),
        given=value,
    )


def _is_entries(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(entry, TagMatch) for entry in value)


def _entries(value: Any, path: str, findings: Findings) -> Entries:
    if not isinstance(value, list):
        findings.add(path, f"must be a list of tags, each 'key' or 'key=value', not {kind_of(value)}")
        return ()
    if len(value) > ENTRIES_MAX:
        findings.add(path, f"takes at most {ENTRIES_MAX} tags, not {len(value)}")
        return ()
    read = []
    for at, text in enumerate(value):
        if not isinstance(text, str):
            findings.add(f"{path}[{at}]", f"must be a tag, 'key' or 'key=value', not {kind_of(text)}")
        elif (entry := _entry(text, f"{path}[{at}]", findings)) is not None:
            read.append(entry)
    return tuple(dict.fromkeys(read))


def _weighted(value: Mapping[str, Any], path: str, findings: Findings) -> tuple[Entries, Entries]:
    """Read weights: the tags that are preferred and those that are avoided."""
    if len(value) > ENTRIES_MAX:
        findings.add(path, f"takes at most {ENTRIES_MAX} weights, not {len(value)}")
        return (), ()
    weights: dict[TagMatch, bool] = {}
    for name, weight in value.items():
        place = f"{path}.{step(name)}"
        if not isinstance(weight, int) or isinstance(weight, bool):
            problem = f"the weight of {shown(name)} must be a whole number, not {kind_of(weight)}"
            hint = f"; lists are called {', '.join(RESERVED)}" if isinstance(weight, list | tuple) else ""
            findings.add(place, problem + hint)
            continue
        if abs(weight) > WEIGHT_MAX:
            findings.add(place, f"the weight of {shown(name)} is too large; only its sign counts, write 1 or -1")
            continue
        entry = _entry(name, place, findings)
        if entry is not None and weight:
            weights.setdefault(entry, weight > 0)
    return (
        tuple(entry for entry, wanted in weights.items() if wanted),
        tuple(entry for entry, wanted in weights.items() if not wanted),
    )


def _entry(text: str, place: str, findings: Findings) -> TagMatch | None:
    if not text.strip():
        findings.add(place, "must be a tag, 'key' or 'key=value', not an empty text")
        return None
    try:
        return TagMatch.of(text)
    except ValueError as problem:
        findings.add(place, str(problem))
        return None
