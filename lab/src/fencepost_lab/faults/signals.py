"""Stopping, waking and killing processes, clients and servers alike, with all their children."""

from fencepost_lab.faults.record import Faults
from fencepost_lab.servers.processes import Pausable, freeze_all, kill_all, thaw_all


class Victim(Pausable):
    """A process of ours that gets signals. Each is recorded once the kernel shows what it did.

    A server's own ``kill`` and ``restart`` still work afterwards: ``Victim(server.pid, "r1", faults)``.
    """

    def __init__(self, pid: int, who: str, faults: Faults) -> None:
        self.pid = pid
        self.who = who
        self._faults = faults

    def pause(self) -> None:
        """SIGSTOP; returns when nothing of it runs any more."""
        freeze_all(self.pid)
        self._faults.note("pause", self.who, signal="SIGSTOP", pid=self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        thaw_all(self.pid)
        self._faults.note("resume", self.who, signal="SIGCONT", pid=self.pid)

    def kill(self) -> None:
        """SIGKILL; returns when nothing of it is left but, perhaps, its exit status."""
        kill_all(self.pid)
        self._faults.note("kill", self.who, signal="SIGKILL", pid=self.pid)
