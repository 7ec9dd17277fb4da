"""The flags that describe an instance: the same for `instance create` and `explain`; and a decision told to people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from fleet.cli.durations import duration
from fleet.cli.outcome import Misused, reason
from fleet.cli.output import Form, Output
from fleet.cli.request_file import read_request, size_gib, size_mib
from fleet.cli.rule_words import is_rule, rule_words
from fleet.cli.session import Shell
from fleet.config.plain_file import read_plain

RANKED_SHOWN: Final = 10
DROPPED_SHOWN: Final = 10
LATER: Final = " (not supported yet)"  # a test holds it against what the service refuses
DIGITS_MAX: Final = 100  # of a plain number that the service may judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was typed of an instance. A field's annotation is its flag."""

    name: Annotated[str | None, typer.Argument(help="Its name")] = None
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="YAML: resources, placement, …; flags beat the file")
    ] = None
    cpus: Annotated[int | None, typer.Option(help="vCPUs")] = None
    memory: Annotated[str | None, typer.Option(help="MiB, or a size such as '4 GB'")] = None
    disk: Annotated[str | None, typer.Option(help="GiB, or a size such as '20 GB'")] = None
    image: Annotated[str | None, typer.Option(help="What it boots")] = None
    namespace: Annotated[str | None, typer.Option(help="For another namespace (admin only)")] = None
    node: Annotated[str | None, typer.Option(help="Only on this node")] = None
    label: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Only on nodes with this label; may be repeated")
    ] = None
    tag: Annotated[list[str] | None, typer.Option(metavar="K[=V]", help="A tag it carries; may be repeated")] = None
    region: Annotated[str | None, typer.Option(help="Only in this region")] = None
    arch: Annotated[str | None, typer.Option(help="amd64 or arm64")] = None
    gpus: Annotated[int | None, typer.Option(help="GPUs, or MIG slices, of that kind")] = None
    gpu_kind: Annotated[str | None, typer.Option(help="Kind of GPU, such as A100")] = None
    gpu_profile: Annotated[str | None, typer.Option(help="MIG profile, such as 1g.10gb")] = None
    affinity: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Tags that neighbours must or should have")
    ] = None
    rules: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Rules over labels of nodes and tags of neighbours")
    ] = None
    strategy: Annotated[str | None, typer.Option(help="How the nodes that fit are ordered")] = None
    sleep_after: Annotated[
        int | None, typer.Option(parser=duration, metavar="DURATION", help="Sleep when idle for so long: 30min, 2h")
    ] = None
    wait_for_capacity: Annotated[
        int | None, typer.Option(parser=duration, metavar="DURATION", help="Wait for room so long" + LATER)
    ] = None


def shell_of(ctx: typer.Context) -> Shell:
    """What the callback of the application left for every command."""
    found = ctx.find_object(Shell)
    assert found is not None, "the application's callback runs first"
    return found


def uuid_of(text: str, what: str) -> str:
    """The uuid that was typed; a name in its place is wrong usage.

    Raises:
        Misused: it cannot be one.
    """
    if not all(character in "0123456789abcdefABCDEF-" for character in text) or not text:
        raise Misused(f"{text!r} is not a uuid", f"`fleet {what} list` shows them")
    return text


def body_of(asked: Asked) -> dict[str, Any]:
    """The body of `POST /instances`: the file's, with what was typed on top. The service judges it."""
    body = read_request(asked.file) if asked.file else {}
    typed: dict[str, Any] = {
        "name": asked.name,
        "namespace": asked.namespace,
        **amounts_of(asked),
        "image": asked.image,
        "region": asked.region,
        "arch": asked.arch,
        "gpus": asked.gpus,
        "gpu_kind": asked.gpu_kind,
        "gpu_profile": asked.gpu_profile,
        "affinity": _document(asked.affinity, "--affinity"),
        "placement_rules": _document(asked.rules, "--rules"),
        "strategy": asked.strategy,
        "sleep_after_idle_seconds": asked.sleep_after,
        "wait_for_capacity_seconds": asked.wait_for_capacity,
    }
    body |= {name: value for name, value in typed.items() if value is not None}
    if asked.tag:
        body["tags"] = pairs(asked.tag, "--tag", bare=True)
    placement = dict(body.get("placement", {}))
    if asked.node is not None:
        placement["node"] = asked.node
    if asked.label:
        placement["labels"] = pairs(asked.label, "--label", bare=False)
    if placement:
        body["placement"] = placement
    _require(body, from_file=asked.file is not None)
    return body


def amounts_of(asked: Asked) -> dict[str, Any]:
    """The amounts that were typed, under the names of a body; None: not given."""
    return {
        "cpus": asked.cpus,
        "memory_mb": _amount(asked.memory, "--memory", size_mib),
        "disk_gb": _amount(asked.disk, "--disk", size_gib),
    }


def vars_of(asked: Asked) -> dict[str, Any]:
    """What was typed, by flag."""
    return {item.name: getattr(asked, item.name) for item in fields(asked)}


def show_decision(shell: Shell, decision: Mapping[str, Any]) -> None:
    """Print an explained decision: its sentence, the first of the ranked nodes, and why the others are out."""
    output = shell.output
    if output.form is Form.JSON:
        output.json(decision)
        return
    if output.form is Form.SIMPLE:
        output.lines(_simple_lines(decision))
        return
    output.say(decision["summary"], style="bold")
    refuses = (decision.get("charged_to") or {}).get("refuses")
    if refuses:
        output.say(f"But {refuses['detail']} ({refuses['code']}).")
    tell_remedies(output, decision)
    ranked = decision["ranked"][:RANKED_SHOWN]
    if ranked:
        output.say("")
        rows = [{"place": at + 1, "node": name, "weight": decision["weights"][name]} for at, name in enumerate(ranked)]
        output.listing(rows, ("place", "node", "weight"))
        if len(decision["ranked"]) > RANKED_SHOWN:
            output.say(f"… and {len(decision['ranked']) - RANKED_SHOWN} more; --json has them all")
    dropped = _dropped(decision)
    if dropped:
        output.say("\nNot on:")
        output.listing(dropped[:DROPPED_SHOWN], ("node", "stage", "reason", "figures", "also"))
        if len(dropped) > DROPPED_SHOWN:
            output.say(f"… and {len(dropped) - DROPPED_SHOWN} more; --json has them all")


def _simple_lines(decision: Mapping[str, Any]) -> list[str]:
    """Return the ranked nodes; a refusal as its code and what goes with it, a line each."""
    if decision["outcome"] == "refused":
        told = ("outcome", "code", "stage", "transient", "summary")
        return [f"{name},{'' if decision[name] is None else decision[name]}" for name in told]
    return ["node,weight", *(f"{name},{decision['weights'][name]}" for name in decision["ranked"])]


def tell_remedies(output: Output, decision: Mapping[str, Any]) -> None:
    """Print what would help, the smallest change first; where nobody looked for it, the nearest thing that is known."""
    lines = remedy_lines(decision)
    if lines:
        output.say("What would help:")
    elif decision.get("remedy"):
        output.say(f"What would help: {decision['remedy']}")
    for line in lines:
        output.say(f"  {line}")


def remedy_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the remedies of a refusal as sentences; an answer of another version may have none."""
    found = document.get("remedies") or []
    told = [one for one in found if isinstance(one, Mapping) and "text" in one]
    return [f"{one['text']}{' (an operator can)' if one.get('by') == 'operator' else ''}" for one in told]


def _dropped(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each dropped node: the first stage that drops it, why, and which others would too."""
    rows: dict[str, dict[str, Any]] = {}
    for stage in decision["stages"]:
        for name, why in stage["dropped"].items():
            if name in rows:
                rows[name]["also"].append(stage["name"])
                continue
            figures = {key: _short(value) for key, value in why.items() if key != "reason"}
            why_not = why.get("reason", "")
            rows[name] = {"node": name, "stage": stage["name"], "reason": why_not, "figures": figures, "also": []}
    return list(rows.values())


def _short(value: Any) -> Any:
    return rule_words(value) if is_rule(value) else value


def _require(body: Mapping[str, Any], *, from_file: bool) -> None:
    flags = {"cpus": "--cpus", "memory_mb": "--memory"}
    missing = [flag for name, flag in flags.items() if name not in body]
    if missing and not from_file:
        raise Misused(f"missing: {' and '.join(missing)}", "for example --cpus 2 --memory 4096 --disk 20")


def _amount(text: str | None, flag: str, read: Callable[[str], int]) -> int | None:
    if text is None:
        return None
    if text.lstrip("-").isdecimal() and len(text) <= DIGITS_MAX:
        return int(text)
    try:
        return read(text)
    except ValueError as fault:
        raise Misused(f"{flag}: {fault}") from None


def pairs(given: list[str], flag: str, *, bare: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not (equals or bare):
            raise Misused(f"{flag} {text!r}: write {flag} key=value")
        if found.get(key, value) != value:
            raise Misused(f"{flag} gives {key} two values: {found[key]!r} and {value!r}")
        found[key] = value
    return found


def _document(given: str | None, flag: str) -> Any:
    if given is None:
        return None
    text, source = given, "it"
    if not given.lstrip().startswith(("{", "[")):
        source = given
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeError, ValueError) as error:
            raise Misused(f"{flag}: {given!r} is neither JSON nor a file that can be read: {reason(error)}") from None
    try:
        return read_plain(text, json_form=True)
    except ValueError as error:
        raise Misused(f"{flag}: {source} is not JSON, or not plain: {error}") from None
