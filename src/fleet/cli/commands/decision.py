"""`fleet decision`: what was decided, as sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from fleet.cli.commands.asking import shell_of, tell_remedies, uuid_of
from fleet.cli.outcome import Misused, reason
from fleet.cli.output import Output
from fleet.cli.told_events import tell
from fleet.cli.typed_values import Commands

app = typer.Typer(cls=Commands, help="What was decided, and why.", no_args_is_help=True)
COLUMNS: Final = ("id", "outcome", "code", "node", "namespace", "created_at", "summary")
NAMES_SHOWN: Final = 8


@app.command("list")
def list_decisions(
    ctx: typer.Context,
    instance: Annotated[str | None, typer.Option(help="Only of this instance")] = None,
    outcome: Annotated[str | None, typer.Option(help="placed or refused")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Only the newest so many")] = 50,
) -> None:
    """List decisions, newest first."""
    shell = shell_of(ctx)
    found = shell.pages("/decisions", limit=limit, instance=instance, outcome=outcome)
    shell.output.listing(found, COLUMNS, title="decisions")


@app.command()
def show(
    ctx: typer.Context,
    uuid: Annotated[str, typer.Argument(help="The decision's id")],
    events: Annotated[bool, typer.Option("--events", help="Each stage as an event, with all figures")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write what it was made on there, for `fleet decide` (admin)")
    ] = None,
) -> None:
    """Show a stored decision as sentences; --json for the record, --events for each stage with its figures."""
    shell = shell_of(ctx)
    path = f"/decisions/{uuid_of(uuid, 'decision')}"
    if events:
        tell(shell.output, shell.get(f"{path}/events")["items"])
        return
    if save is not None:
        _save(shell.output, save, shell.get(f"{path}/inputs"))
        return
    found = shell.get(path)
    if shell.output.is_human:
        tell_stored(shell.output, found)
    else:
        shell.output.record(found)


def _save(output: Output, folder: Path, inputs: Mapping[str, Any]) -> None:
    """Write the inputs of a decision, and say how to decide on them."""
    files = {name: folder / f"{name}.json" for name in ("snapshot", "request")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            file.write_text(json.dumps(inputs[name], ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise Misused(f"{folder} cannot be written: {reason(error)}") from None
    seed = inputs["seed"]
    command = f"fleet decide --snapshot {files['snapshot']} --request {files['request']} --seed {seed}"
    if output.is_human:
        output.say(f"Decide again: {command}")
    else:
        output.record({"snapshot": str(files["snapshot"]), "request": str(files["request"]), "seed": seed})


def tell_stored(output: Output, found: Mapping[str, Any]) -> None:
    """Print a decision in the form in which it is stored, as sentences; what is not known of it is left out."""
    record = found["record"]
    output.say(found["summary"], style="bold")
    code = f"({found['code']})" if found["code"] else ""
    known = [("on", found["node"]), ("", code), ("for namespace", found["namespace"]), ("at", found["created_at"])]
    output.say(" ".join([found["outcome"], *(f"{word} {value}".strip() for word, value in known if value)]))
    output.say(f"asked: {', '.join(f'{name} {_written(value)}' for name, value in found['request'].items())}")
    judged = f"{record['nodes']} node{'' if record['nodes'] == 1 else 's'} judged"
    output.say(f"strategy {record['strategy']}, seed {found['seed']}, {judged}")
    for stage, reasons in record["dropped"].items():
        for why, names in reasons.items():
            shown = ", ".join(str(name) for name in names[:NAMES_SHOWN])
            total = record["counts"][stage][why]
            more = f" and {total - NAMES_SHOWN} more" if total > NAMES_SHOWN else ""
            output.say(f"  {stage} dropped {total} for {why}: {shown}{more}")
    if record["ranked"]:
        ranked = ", ".join(str(name) for name in record["ranked"][:NAMES_SHOWN])
        output.say(f"  ranked, best first: {ranked} (of {record['ranked_total']})")
    for attempt in found["walk"]:
        output.say(f"  {_told(attempt)}")
    tell_remedies(output, record)


def _written(value: Any) -> str:
    """Return a value as it may be typed again."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list) else str(value)


def _told(attempt: Mapping[str, Any]) -> str:
    """Return one step of the walk that followed the decision, in words."""
    if attempt.get("outcome") == "skipped":
        return f"left for last, over the load target: {attempt['nodes']} nodes, {attempt['first']} among them"
    if attempt.get("demand_waived") and "node" not in attempt:
        return "admitted with the demand clause waived: nobody was under the load target"
    if attempt.get("outcome") == "rulebroken":
        return f"tried {attempt['node']}: another placement broke a rule there meanwhile"
    words = [f"tried {attempt.get('node', '')}: {attempt.get('outcome', '')}"]
    if attempt.get("ineligible"):
        words.append(f"it takes none any more ({attempt['ineligible']})")
    words += [
        f"{figure['dimension']} limit {figure['limit']}, used {figure['used']}, asked {figure['requested']}"
        for figure in attempt.get("dimensions", [])
    ]
    return "; ".join(words)
