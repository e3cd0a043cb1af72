"""Branches and workers of a cortex as tables: they start when ordered, and report while they have work."""

from __future__ import annotations

from cortex.scheduler.protocol import Command, Event, MemberReported, MemberStarted, NodesChanged, StartMember
from cortex.scheduler.reports import ProgressReport, RouteSignals
from tests.support.fake_job_channels import ROUTE, Town, settings


class House(Town):
    """``Town`` whose branches are started when ordered, and report while they have work, unless they are mute."""

    def __init__(self, limit: int = 10, nodes: tuple[str, ...] = ("n0",), **knobs) -> None:
        self.done: dict[str, int] = {}
        self.life: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.where: dict[str, str] = {}
        self.mute: set[str] = set()
        self.still: set[str] = set()
        """Names of members that do not start."""
        self.overdue_s: dict[str, float] = {}
        self.nodes = nodes
        super().__init__(settings(limit, **knobs))
        self.after(1.0)
        self.tell(NodesChanged(self.at_s, nodes))

    def tell(self, event: Event) -> list[Command]:
        commands = super().tell(event)
        for command in list(commands):
            if isinstance(command, StartMember) and command.name not in self.still:
                node = next(node for node in self.nodes if node not in command.avoid)
                self.life[command.name] = self.life.get(command.name, 0) + 1
                self.where[command.name] = node
                incarnation = f"{command.name} {self.life[command.name]}"
                commands += self.tell(MemberStarted(self.at_s, command.name, node, incarnation))
        return commands

    def say(self, name: str, calls: int | None = None, done: int = 1):
        self.calls[name] = self.calls.get(name, 0) if calls is None else calls
        self.done[name] = self.done.get(name, 0) + done
        self.number += 1
        n = self.calls[name]
        report = ProgressReport(
            name,
            f"{name} {self.life[name]}",
            self.where[name],
            self.number,
            "calling" if n else "idle",
            n,
            overdue_s=self.overdue_s.get(name, 0.0),
            done=self.done[name],
            routes=(RouteSignals(ROUTE, ROUTE, in_flight=n),) if n else (),
        )
        return self.tell(MemberReported(self.at_s, report))

    def live(self, seconds: float) -> list:
        """Let time pass: branches with work report each second and channels renew, unless they are mute."""
        found: list = []
        for _ in range(int(seconds)):
            found += self.after(1.0)
            for name in [name for name, n in self.calls.items() if n and name in self.state.members]:
                if name not in self.mute:
                    found += self.say(name, done=1)
            for name in self.jobs:
                if name not in self.mute:
                    self.join(name)
        self.deliver_all()
        return found

    def state_of(self, name: str) -> str:
        return self.state.members[name].state


def of(kind, commands) -> list:
    return [command for command in commands if isinstance(command, kind)]
