"""The reference page of stages and strategies, rendered from their own docstrings, reasons and examples.

`python -m fleet.placement.reference > docs/reference/stages.md` writes it; a test refuses a stale page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from fleet.placement.stage import Filter, NamedStage, NamedStrategy, all_stages, own_strategies

HEAD = """# Stages and strategies

Generated from the stages themselves: `python -m fleet.placement.reference > docs/reference/stages.md`.

A decision walks these stages in order. The first that drops a node is the node's reason; the one that drops the last
node decides the code of the refusal. The strategy orders what is left and never drops anything.
"""


STRATEGIES = """# Strategies

`PLACEMENT_STRATEGY` names the one of the cluster, `strategy` in a request another. All but `load-aware` draw nothing:
the seed does not change their order. A package may bring more: see [strategies](../operator/strategies.md).
"""


def render() -> str:
    """Return the page."""
    blocks = [HEAD]
    blocks += [block for item in all_stages() for block in _stage(item)]
    blocks.append(STRATEGIES)
    blocks += [block for _, item in sorted(own_strategies().items()) for block in _strategy(item)]
    return "\n".join(blocks).rstrip() + "\n"


def _stage(item: NamedStage) -> Iterator[str]:
    stage = item.stage
    yield f"## {stage.order}. `{item.name}`\n"
    yield f"{_told(item.text, item.name)}\n"
    yield f"{_kind(item)}\n"
    yield "| reason | the node is dropped because |"
    yield "|---|---|"
    yield from (f"| `{reason.code}` | {reason.meaning} |" for reason in stage.reasons)
    yield "\nExamples:\n"
    for example in stage.examples:
        answer = "kept" if example.reason is None else f"`{example.reason.code}`"
        yield f"- {example.text}: {answer}"
    yield ""


def _kind(item: NamedStage) -> str:
    stage = item.stage
    if not isinstance(stage, Filter):
        return "A scorer: the nodes with the highest score go on."
    kind = "Load shedding" if stage.sheds_load else "A filter"
    transient = "; transient unless the request exceeds every node's limit" if stage.capacity else ""
    spared = " The node a resize starts from is exempt." if stage.spares_resize_home else ""
    return f"{kind}. When it leaves no node, the answer is `{stage.refusal}`{transient}.{spared}"


def _strategy(item: NamedStrategy) -> Iterator[str]:
    yield f"## `{item.name}`\n"
    yield f"{_told(item.text, item.name)}\n"
    first = "highest" if item.strategy.highest_first else "lowest"
    yield f"Figure: `{item.strategy.axis}`, {first} first.\n"


def _told(text: str, name: str) -> str:
    told = text.removeprefix(f"{name}:").strip()
    return told[:1].upper() + told[1:]


if __name__ == "__main__":
    sys.stdout.write(render())
