"""An Ansible connection to a machine that is entered by a command: chroot into a root, nsenter into a container.

The command stands in `ansible_enter`; what Ansible wants done is given to it as `/bin/sh -c …`. Nothing else is
assumed: files travel through standard input and output, so the machine needs a shell and Python only.
"""

import shlex
import subprocess
from pathlib import Path

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: enter
short_description: Enter a machine by a command
description: Runs everything behind a command such as chroot or nsenter.
options:
  command:
    description: The command, to which `/bin/sh -c …` is appended.
    type: string
    required: true
    vars:
      - name: ansible_enter
"""


class Connection(ConnectionBase):  # type: ignore[misc]  # Ansible ships no types
    """Runs commands and moves files through `ansible_enter`."""

    transport = "enter"
    has_pipelining = True

    def _connect(self) -> "Connection":
        self._connected = True
        return self

    def _enter(self, script: str, stdin: bytes | None) -> tuple[int, bytes, bytes]:
        command = [*shlex.split(str(self.get_option("command"))), "/bin/sh", "-c", script]
        done = subprocess.run(command, input=stdin or b"", capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return self._enter(cmd, in_data)

    def put_file(self, in_path: str, out_path: str) -> None:
        super().put_file(in_path, out_path)
        code, _, errors = self._enter(f"cat > {shlex.quote(out_path)}", Path(in_path).read_bytes())
        assert code == 0, errors

    def fetch_file(self, in_path: str, out_path: str) -> None:
        super().fetch_file(in_path, out_path)
        code, content, errors = self._enter(f"cat {shlex.quote(in_path)}", None)
        assert code == 0, errors
        Path(out_path).write_bytes(content)

    def close(self) -> None:
        self._connected = False
