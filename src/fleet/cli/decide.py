"""`fleet decide`: a decision from file to file. Pure: no service is asked, and the same files give the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fleet.config.plain_file import read_json
from fleet.model.decision import Decision
from fleet.model.errors import InvalidRequest, StrategyUnavailable
from fleet.model.request import PlacementRequest, parse_stored_request
from fleet.placement.counterfactuals import remedies
from fleet.placement.pipeline import decide
from fleet.placement.record import decode_decision, encode_decision
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import strategy_problems


class Wrong(Exception):
    """The files cannot be decided on; `document` has the code, and every problem with its file."""

    def __init__(self, code: str, problems: list[dict[str, str]]) -> None:
        """Keep the problems; the sentence has a line for each."""
        lines = (": ".join(part for part in problem.values() if part) for problem in problems)
        super().__init__("\n".join(lines))
        self.document = {"code": code, "errors": problems}


def decide_files(
    snapshot_path: str, request_path: str, seed: int = 0, strategy: str = ""
) -> tuple[dict[str, Any], int]:
    """Return the decision as JSON with the exit code: 0 ranked, 1 refused or invalid.

    `strategy` (when not empty) beats the request's, which beats the configuration's. Whatever a stored decision was
    asked can be asked here, a fork too. Problems of both files are told together, each with its path.
    """
    try:
        _, request, snapshot, decision = _decided(snapshot_path, request_path, seed, strategy)
    except Wrong as wrong:
        return wrong.document, 1
    form = decision.as_dict()
    return {**form, **_remedies(decision, request, snapshot)}, int(decision.refused)


def stored_form(snapshot_path: str, request_path: str, seed: int = 0, strategy: str = "") -> tuple[dict[str, Any], int]:
    """Return the same decision in the form in which one is stored and shown, with the exit code.

    Raises:
        Wrong: the files cannot be decided on.
    """
    body, request, snapshot, decision = _decided(snapshot_path, request_path, seed, strategy)
    record = decode_decision(encode_decision(decision)).as_dict(decision.evidence.names)
    told: dict[str, Any] = {
        "outcome": str(decision.outcome),
        "code": decision.code,
        "node": None,
        "namespace": request.namespace,
        "created_at": None,
        "summary": decision.summary,
        "seed": decision.seed,
        "request": {**body, "strategy": strategy} if strategy else body,
        "record": {**record, **_remedies(decision, request, snapshot)},
        "walk": [],
    }
    return told, int(decision.refused)


def _decided(
    snapshot_path: str, request_path: str, seed: int, strategy: str
) -> tuple[dict[str, Any], PlacementRequest, Snapshot, Decision]:
    """Return the request as it was written and as it was read, the snapshot, and the decision."""
    problems: list[dict[str, str]] = []
    try:
        snapshot = Snapshot.from_json(_read(snapshot_path))
    except InvalidRequest as refused:
        problems += _in_file(snapshot_path, refused)
    body: Any = None
    try:
        body = _read(request_path)
        request = parse_stored_request(body)
    except InvalidRequest as refused:
        problems += _in_file(request_path, refused)
    if problems:
        problems += [{"file": request_path, **problem} for problem in strategy_problems(body, problems)]
        raise Wrong(InvalidRequest.code, problems)
    request = request.model_copy(update={"strategy": strategy}) if strategy else request
    try:
        return body, request, snapshot, decide(request, snapshot, seed)
    except InvalidRequest as refused:
        raise Wrong(refused.code, refused.extra["errors"]) from None
    except StrategyUnavailable as missing:
        raise Wrong(missing.code, [{"field": "config.PLACEMENT_STRATEGY", "message": missing.detail}]) from None


def _remedies(decision: Decision, request: PlacementRequest, snapshot: Snapshot) -> dict[str, Any]:
    """Return what would have helped after a refusal."""
    if not decision.refused:
        return {}
    return {"remedies": [one.as_dict() for one in remedies(request, snapshot, decision.seed, decision)]}


def _read(path: str) -> Any:
    try:
        value = read_json(Path(path).read_text(encoding="utf-8-sig"))
        # Half a character, written as an escape, can be read and never be told again.
        json.dumps(value, ensure_ascii=False).encode()
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except UnicodeError:
        message = "is not UTF-8, or holds half a character"
    except (ValueError, RecursionError) as error:
        message = f"is not JSON: {error}"
    else:
        return value
    raise InvalidRequest(message, errors=[{"field": "", "message": message}])


def _in_file(path: str, refused: InvalidRequest) -> list[dict[str, str]]:
    """Return the problems with the file they are in."""
    return [{"file": path, **problem} for problem in refused.extra["errors"]]
