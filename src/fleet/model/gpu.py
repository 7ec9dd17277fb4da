"""GPUs as they are asked for: kinds, MIG profiles, and when a card is of the kind that was asked.

There are two rules for kinds, and they differ on purpose. Where a node tells its cards (or its MIG instances), a kind
is a part of the card's model in any letter case: `a100` is served by `NVIDIA A100-SXM4-40GB`. Where a node only tells
a number of cards and one kind, that word must be the very same, letter case included: `a100` is not served by a node
of kind `A100`. The same request may therefore be placed differently, depending on how a node reports. A part of a
model may also hit a neighbour (`a10` is in `A100`): `ambiguous_kind` finds these, for a warning.

Promise: pure comparisons; which cards are free or bound, and how many are needed, is not judged here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fleet.model.findings import shown

GPU_KIND_CHARACTERS_MAX: Final = 128

KINDS_WITHOUT_MIG: Final = (
    *("v100", "t4", "p100", "p40", "k80", "rtx", "gtx", "titan", "l4", "l40", "l40s"),
)  # fmt: skip
"""Parts of names of cards that cannot be cut into MIG instances. Data: new cards need a new word, not new code."""

KINDS_WITH_MIG: Final = ("rtx pro 6000", "rtx pro 5000", "nvl4")
"""Parts of names of cards that can be cut, although a part of them stands in `KINDS_WITHOUT_MIG`."""

DECLARED_KIND_CHARACTERS_MAX: Final = 63

DECLARED_KIND: Final = r"^[A-Za-z0-9 ._/-]*$"
_PROFILE: Final = re.compile(r"[1-7]g\.[0-9]{1,4}gb(?:\+me)?", re.ASCII)


def parse_profile(text: str) -> str:
    """Return a MIG profile in lower case, for example `1g.10gb`; the empty text (none) stays empty.

    Raises:
        ValueError: it is not one.
    """
    profile = text.strip().lower()
    if profile and not _PROFILE.fullmatch(profile):
        raise ValueError(f"{shown(text)} is not a MIG profile; write slices and memory like '1g.10gb' or '1g.10gb+me'")
    return profile


def parse_kind(text: str) -> str:
    """Return a kind of GPU without white space at its ends; letter case is kept, one of the rules compares it.

    Raises:
        ValueError: no card can have that name.
    """
    kind = text.strip()
    if len(kind) > GPU_KIND_CHARACTERS_MAX or not kind.isprintable():
        raise ValueError(
            f"must be a card's name or a part of it, at most {GPU_KIND_CHARACTERS_MAX} printable characters"
        )
    return kind


def parse_declared_kind(text: str) -> str:
    """Return the kind of GPU that an operator declares of a node: one word of it stands for all its counted cards.

    Raises:
        ValueError: it is not one.
    """
    kind = text.strip()
    if len(kind) > DECLARED_KIND_CHARACTERS_MAX or not re.fullmatch(DECLARED_KIND, kind):
        raise ValueError(
            f"{shown(text)} is no kind of GPU; write at most {DECLARED_KIND_CHARACTERS_MAX} letters, digits, spaces, "
            "'.', '_', '/' or '-'"
        )
    return kind


def supports_mig(kind: str) -> bool:
    """Return whether cards of a kind can be cut into MIG instances; an empty or unknown kind is not ruled out."""
    name = kind.lower()
    if any(part in name for part in KINDS_WITH_MIG):
        return True
    return not any(part in name for part in KINDS_WITHOUT_MIG)


def profile_problem(gpus: int, kind: str, profile: str) -> str | None:
    """Return why a MIG profile cannot be asked for with so many GPUs of a kind; None: it can, or none is asked."""
    if not profile:
        return None
    if gpus < 1:
        return f"{shown(profile)} needs gpus of 1 or more: it says how each of them is cut"
    if not supports_mig(kind):
        return f"{shown(profile)} is a MIG profile, and cards of kind {shown(kind)} have no MIG; leave one of them out"
    return None


def device_kind_matches(asked: str, model: str, node_kind: str) -> bool:
    """Return whether one card is of the asked kind: the rule for nodes that tell their cards.

    The card's own model decides, whatever the node's kind says; only a card without a model is judged by the node's
    kind (the same word in any letter case), and a node without one is not ruled out.
    """
    if not asked:
        return True
    if model:
        return asked.lower() in model.lower()
    return not node_kind or asked.lower() == node_kind.lower()


def scalar_kind_matches(asked: str, node_kind: str) -> bool:
    """Return whether a node that only tells a number of cards is of the asked kind: the very same text.

    Unlike cards that are told one by one: no part of a name, no other letter case, and a node without a kind serves
    no named one.
    """
    return not asked or asked == node_kind


def mig_kind_matches(
    asked: str,
    own_kind: str,
    card_model: str | None,
    card_mig_capable: bool | None,  # noqa: FBT001 - a fact of the card, beside its model
    node_kind: str,
) -> bool:
    """Return whether one MIG instance is of the asked kind.

    Its own kind decides where it has one (a part of it, any letter case); else its card, by the rule for cards; else,
    when the card is not in the inventory (None), the node's kind or none. A card that is known and cannot be cut, or
    whose model is another, serves nothing, whatever the instance says.
    """
    if card_mig_capable is False:
        return False
    if asked and own_kind:
        is_other_card = bool(card_model) and not device_kind_matches(asked, card_model or "", node_kind)
        return asked.lower() in own_kind.lower() and not is_other_card
    return device_kind_matches(asked, card_model or "", node_kind)


def ambiguous_kind(kind: str, models: Iterable[str]) -> tuple[str, ...]:
    """Return the models that hold a kind only as a part of another word, each once and sorted: `a10` in `A100`.

    They are served like any match; whoever asked should know.
    """
    word = kind.strip().lower()
    if not word:
        return ()
    whole = re.compile(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])")
    return tuple(sorted({model for model in models if word in model.lower() and whole.search(model.lower()) is None}))
