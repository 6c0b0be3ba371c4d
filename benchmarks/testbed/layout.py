"""What a testbed looks like, and the commands that build it. Nothing here touches the machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

MIN_NODES, MAX_NODES = 2, 4
INTERFACE = "eth0"
PORT = 29_500
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# A burst covers what is due between two timer ticks, and two of the large packets that TCP hands over: cut up here,
# they would cost the ranks ten times the CPU, where a network card cuts them up by itself. The queue takes what TCP
# has in flight, so that nothing drops.
_BURST_S, _QUEUE_MS, _MIN_BURST_BYTES = 0.001, 50, 131_072


@dataclass(frozen=True)
class Rate:
    """How fast a node may send, in bits per second."""

    bits_per_s: int

    def __post_init__(self) -> None:
        if self.bits_per_s <= 0:
            raise ValueError("a rate is positive; write 'unlimited' for a link without a limit")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """`500mbit`, `1.5gbit`, `800kbit`; None for `unlimited`. Raises ValueError for anything else."""
        if text == "unlimited":
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
        if match is None:
            raise ValueError(f"rate: {text!r} is not a rate; write for example 500mbit, 1.5gbit or unlimited")
        return cls(round(float(match[1]) * _UNITS[match[2]]))

    @property
    def bytes_per_ms(self) -> float:
        return self.bits_per_s / 8e3

    def __str__(self) -> str:
        unit = next(unit for unit in reversed(_UNITS) if self.bits_per_s >= _UNITS[unit] or unit == "kbit")
        return f"{self.bits_per_s / _UNITS[unit]:g}{unit}"


@dataclass(frozen=True)
class Layout:
    """Nodes around one switch. `rate` limits what each node sends; None leaves the links as fast as the machine.

    Raises ValueError for a number of nodes outside 2 to 4.
    """

    nodes: int = 2
    rate: Rate | None = None

    def __post_init__(self) -> None:
        if not MIN_NODES <= self.nodes <= MAX_NODES:
            raise ValueError(f"nodes: {self.nodes} is not possible; use {MIN_NODES} to {MAX_NODES}")

    def address(self, node: int) -> str:
        """The address of a node. Every testbed has the same ones: their switches are not connected."""
        return f"10.77.0.{node + 1}"

    def environment(self, node: int) -> dict[str, str]:
        """What `torch.distributed` reads: every node holds one rank."""
        return {
            "RANK": str(node),
            "WORLD_SIZE": str(self.nodes),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }

    def build_commands(self, prefix: str) -> list[list[str]]:
        """The `ip` and `tc` commands that build the testbed, in order.

        The switch has a namespace of its own, so that deleting the namespaces deletes every interface with them.
        """
        switch = switch_name(prefix)
        commands = [
            ["ip", "netns", "add", switch],
            ["ip", "-n", switch, "link", "add", "switch", "type", "bridge"],
            ["ip", "-n", switch, "link", "set", "switch", "up"],
        ]
        for node in range(self.nodes):
            commands += self._node_commands(prefix, node)
        return commands

    def _node_commands(self, prefix: str, node: int) -> list[list[str]]:
        switch, name, port = switch_name(prefix), node_name(prefix, node), f"port{node}"
        commands = [
            ["ip", "netns", "add", name],
            [
                *("ip", "-n", switch, "link", "add", port, "type", "veth"),
                *("peer", "name", INTERFACE, "netns", name),
            ],
            ["ip", "-n", switch, "link", "set", port, "master", "switch", "up"],
            # Without IPv6 addresses a rank has just one address, and the link is silent while nobody sends.
            ["ip", "-n", name, "link", "set", INTERFACE, "addrgenmode", "none"],
            ["ip", "-n", name, "address", "add", f"{self.address(node)}/24", "dev", INTERFACE],
            ["ip", "-n", name, "link", "set", "lo", "up"],
            ["ip", "-n", name, "link", "set", INTERFACE, "up"],
        ]
        if self.rate is not None:
            burst = max(_MIN_BURST_BYTES, round(self.rate.bits_per_s / 8 * _BURST_S))
            commands.append(
                [
                    *("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", "tbf"),
                    *("rate", f"{self.rate.bits_per_s}bit", "burst", str(burst), "latency", f"{_QUEUE_MS}ms"),
                ]
            )
        return commands


def switch_name(prefix: str) -> str:
    """The namespace of the switch."""
    return f"{prefix}-switch"


def node_name(prefix: str, node: int) -> str:
    """The namespace of a node."""
    return f"{prefix}-node{node}"


def cores(nodes: int, available: Sequence[int]) -> list[int | None]:
    """One core for each node, in the order of the nodes; None for all where there are fewer cores than nodes."""
    return list(available[:nodes]) if len(available) >= nodes else [None] * nodes


def rank_command(prefix: str, node: int, core: int | None, command: Sequence[str]) -> list[str]:
    """`command` inside a node's namespace, on its core; it is killed when the process that starts it dies."""
    pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
    return ["ip", "netns", "exec", node_name(prefix, node), "setpriv", "--pdeathsig", "KILL", *pinned, *command]
