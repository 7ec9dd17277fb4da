"""What `sf-worker` takes on its command line."""

from __future__ import annotations

import pytest

from daemons import worker


@pytest.mark.parametrize("seconds", ["0", "0.99", "-1", "nan", "inf", "3601", "x", ""])
def test_a_lease_of_no_sensible_length_is_refused(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        worker.main([f"--lease-seconds={seconds}", "--check"])

    assert ended.value.code == 2
    assert "--lease-seconds" in capsys.readouterr().err
