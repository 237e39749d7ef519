"""Processes as the kernel's procfs shows them, made up in a folder."""

from pathlib import Path


class ProcTree:
    """A ``/proc`` in ``folder`` with the host's first two processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.add(1, "systemd")
        self.add(2, "kthreadd")

    def add(
        self,
        pid: int,
        name: str,
        *,
        state: str = "S",
        wchan: str = "0",
        switches: int = 5,
        started: int = 7,
        thread: int | None = None,
        groups: int = 2,
        opened: tuple[str, ...] = (),
    ) -> None:
        """A process, or another ``thread`` of it, or its present state; ``opened``: its files.

        ``groups``: how many supplementary groups it has.
        """
        process = self.folder / str(pid)
        tasks = [process / "task" / str(pid if thread is None else thread)]
        for folder in [process, *tasks] if thread is None else tasks:
            folder.mkdir(parents=True, exist_ok=True)
            zeros = " ".join(["0"] * 17)
            (folder / "stat").write_text(f"{pid} ({name}) {state} 1 {zeros} {started} {zeros}\n")
            (folder / "comm").write_text(f"{name}\n")
            (folder / "wchan").write_text(wchan)
            listed = " ".join(str(1_000_000 + each) for each in range(groups))
            (folder / "status").write_text(
                f"Name:\t{name}\nGroups:\t{listed} \nvoluntary_ctxt_switches:\t{switches}\n"
                "nonvoluntary_ctxt_switches:\t99\n"
            )
        for number, path in enumerate(opened):
            (process / "fd").mkdir(exist_ok=True)
            (process / "fd" / str(number)).symlink_to(path)

    def end(self, pid: int) -> None:
        """The process is gone."""
        process = self.folder / str(pid)
        for path in sorted(process.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
        process.rmdir()

    def listen(self, *addresses: str) -> None:
        """/proc/1/net/tcp of a real kernel (6.8), with a listener at each ("0100007F:1A0A")."""
        head = (
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt"
            "   uid  timeout inode                                                     \n"
        )
        rows = [
            f"{slot:4}: {address} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0"
            f"        0 {20_000 + slot} 1 0000000000000000 100 0 0 10 0                     \n"
            for slot, address in enumerate(addresses)
        ]
        net = self.folder / "1/net"
        net.mkdir(exist_ok=True)
        (net / "tcp").write_text(head + "".join(rows))
