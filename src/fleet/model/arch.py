"""CPU architectures: two words, however they are spelled."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from fleet.model.findings import shown

AMD64: Final = "amd64"
ARM64: Final = "arm64"
ARCHES: Final = (AMD64, ARM64)
_SPELLINGS: Final = MappingProxyType({AMD64: AMD64, "x86_64": AMD64, ARM64: ARM64, "aarch64": ARM64})


def parse_arch(text: str) -> str:
    """Return the product's word for an architecture in any known spelling; the empty text (none) stays empty.

    Raises:
        ValueError: the spelling is not known.
    """
    word = text.strip().lower()
    if not word:
        return ""
    if word not in _SPELLINGS:
        raise ValueError(f"{shown(text)} is not known; must be one of {', '.join(ARCHES)} (or x86_64, aarch64)")
    return _SPELLINGS[word]


def effective_arch(declared: str) -> str:
    """Return the architecture a node counts as: one that declares none is amd64."""
    word = declared.strip().lower()
    return _SPELLINGS.get(word, word) or AMD64
