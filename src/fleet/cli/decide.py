"""`fleet decide`: a decision from file to file. Pure: no service is asked, and the same files give the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fleet.model.errors import InvalidRequest
from fleet.model.request import parse_placement_request
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot


def decide_files(
    snapshot_path: str, request_path: str, seed: int = 0, strategy: str = ""
) -> tuple[dict[str, Any], int]:
    """Return the decision as JSON with the exit code: 0 ranked, 1 refused or invalid.

    `strategy` (when not empty) beats the request's, which beats the configuration's. Problems of both files are told
    together, each with its path.
    """
    problems: list[dict[str, str]] = []
    code = InvalidRequest.code
    try:
        snapshot = Snapshot.from_json(_read(snapshot_path))
    except InvalidRequest as refused:
        problems += _in_file(snapshot_path, refused)
    try:
        request = parse_placement_request(_read(request_path))
    except InvalidRequest as refused:
        problems += _in_file(request_path, refused)
    if not problems:
        request = request.model_copy(update={"strategy": strategy}) if strategy else request
        try:
            decision = decide(request, snapshot, seed)
        except InvalidRequest as refused:
            code = refused.code
            problems += refused.extra["errors"]
        else:
            return decision.as_dict(), int(decision.refused)
    return {"code": code, "errors": problems}, 1


def _read(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        message = f"is not JSON: {error}"
    raise InvalidRequest(message, errors=[{"field": "", "message": message}])


def _in_file(path: str, refused: InvalidRequest) -> list[dict[str, str]]:
    """Return the problems with the file they are in."""
    return [{"file": path, **problem} for problem in refused.extra["errors"]]
