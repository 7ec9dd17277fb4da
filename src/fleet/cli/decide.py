"""`fleet decide`: a decision from file to file. Pure: no service is asked, and the same files give the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fleet.model.decision import Decision
from fleet.model.errors import InvalidRequest, StrategyUnavailable
from fleet.model.findings import first_repeated
from fleet.model.request import PlacementRequest, parse_stored_request
from fleet.placement.counterfactuals import remedies
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import strategy_problems


def decide_files(
    snapshot_path: str, request_path: str, seed: int = 0, strategy: str = ""
) -> tuple[dict[str, Any], int]:
    """Return the decision as JSON with the exit code: 0 ranked, 1 refused or invalid.

    `strategy` (when not empty) beats the request's, which beats the configuration's. Whatever a stored decision was
    asked can be asked here, a fork too. Problems of both files are told together, each with its path.
    """
    problems: list[dict[str, str]] = []
    code = InvalidRequest.code
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
    if not problems:
        request = request.model_copy(update={"strategy": strategy}) if strategy else request
        try:
            decision = decide(request, snapshot, seed)
        except InvalidRequest as refused:
            code = refused.code
            problems += refused.extra["errors"]
        except StrategyUnavailable as missing:
            code = missing.code
            problems.append({"field": "config.PLACEMENT_STRATEGY", "message": missing.detail})
        else:
            return _answer(decision, request, snapshot), int(decision.refused)
    return {"code": code, "errors": problems}, 1


def _answer(decision: Decision, request: PlacementRequest, snapshot: Snapshot) -> dict[str, Any]:
    """Return the decision; a refusal with what would have helped."""
    form = decision.as_dict()
    if decision.refused:
        form["remedies"] = [one.as_dict() for one in remedies(request, snapshot, decision.seed, decision)]
    return form


def _read(path: str) -> Any:
    try:
        value = json.loads(Path(path).read_bytes(), object_pairs_hook=_unique)
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a file; of two equal keys nobody could tell which one is meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"{first_repeated(name for name, _ in pairs)!r} stands twice in one object")
    return found


def _in_file(path: str, refused: InvalidRequest) -> list[dict[str, str]]:
    """Return the problems with the file they are in."""
    return [{"file": path, **problem} for problem in refused.extra["errors"]]
