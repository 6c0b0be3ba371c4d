"""What a testbed is made of, without touching the machine."""

import os
import subprocess
import sys

import pytest

from benchmarks.testbed import Layout, Rate, __main__
from benchmarks.testbed.layout import cores, rank_command
from benchmarks.testbed.namespaces import TestbedUnavailable, prefix_of_this_process, refuse_if_unavailable

LIMITED = Layout(nodes=3, rate=Rate.parse("500mbit"))


@pytest.mark.parametrize(
    ("text", "bits"), [("500mbit", 500_000_000), ("1.5gbit", 1_500_000_000), ("800kbit", 800_000), ("unlimited", None)]
)
def test_rate_is_parsed(text: str, bits: int | None) -> None:
    rate = Rate.parse(text)
    assert (rate and rate.bits_per_s) == bits


@pytest.mark.parametrize("text", ["", "500", "mbit", "-1mbit", "0mbit", "500mbit; reboot", "500 mbit", "1e3mbit"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        Rate.parse(text)


@pytest.mark.parametrize("text", ["500mbit", "1.5gbit", "800kbit"])
def test_a_rate_reads_as_it_was_written(text: str) -> None:
    assert str(Rate.parse(text)) == text


def test_bytes_per_ms() -> None:
    assert Rate(500_000_000).bytes_per_ms == 62_500


@pytest.mark.parametrize("nodes", [0, 1, 5])
def test_other_numbers_of_nodes_are_refused(nodes: int) -> None:
    with pytest.raises(ValueError, match="use 2 to 4"):
        Layout(nodes=nodes)


def test_every_node_has_a_namespace_an_address_and_a_limit() -> None:
    commands = LIMITED.build_commands("bed")
    for node in range(3):
        assert ["ip", "netns", "add", f"bed-node{node}"] in commands
        assert any(f"10.77.0.{node + 1}/24" in command for command in commands)
        limits = [command for command in commands if command[:3] == ["tc", "-n", f"bed-node{node}"]]
        assert [limit[limit.index("rate") + 1] for limit in limits] == ["500000000bit"]


def test_all_interfaces_live_in_namespaces_of_the_testbed() -> None:
    for command in LIMITED.build_commands("bed"):
        assert command[1] == "netns" or (command[1] == "-n" and command[2].startswith("bed-"))


def test_an_unlimited_link_has_no_limit() -> None:
    assert not [command for command in Layout(nodes=2).build_commands("bed") if command[0] == "tc"]


def test_a_burst_covers_a_millisecond() -> None:
    fast = next(command for command in Layout(2, Rate.parse("4gbit")).build_commands("bed") if command[0] == "tc")
    assert fast[fast.index("burst") + 1] == "500000"


@pytest.mark.parametrize("rate", ["10mbit", "500mbit"])
def test_a_burst_holds_two_large_packets(rate: str) -> None:
    limit = next(command for command in Layout(2, Rate.parse(rate)).build_commands("bed") if command[0] == "tc")
    assert int(limit[limit.index("burst") + 1]) >= 2 * 65_536


def test_each_node_is_one_rank() -> None:
    environments = [LIMITED.environment(node) for node in range(3)]
    assert [each["RANK"] for each in environments] == ["0", "1", "2"]
    assert {each["WORLD_SIZE"] for each in environments} == {"3"}
    assert {each["MASTER_ADDR"] for each in environments} == {"10.77.0.1"}


def test_a_core_for_each_rank_where_there_are_enough() -> None:
    assert cores(2, [4, 6, 7]) == [4, 6]
    assert cores(3, [0, 1]) == [None, None, None]


def test_a_rank_runs_in_its_namespace_on_its_core() -> None:
    command = rank_command("bed", 1, 5, ["python", "train.py"])
    assert command[:4] == ["ip", "netns", "exec", "bed-node1"]
    assert command[-5:] == ["taskset", "--cpu-list", "5", "python", "train.py"]
    assert "taskset" not in rank_command("bed", 1, None, ["python"])


def test_names_carry_the_owner() -> None:
    prefix = prefix_of_this_process(3)
    assert prefix.split("-")[1] == str(os.getpid())
    assert prefix.split("-")[3] == "3"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no command"),
        (["--rate", "fast", "--", "true"], "500mbit"),
        (["--nodes", "9", "--", "true"], "--nodes"),
    ],
)
def test_bad_usage(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.testbed", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_help() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.testbed", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--rate" in done.stdout


def test_without_root_it_says_so_and_stops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(__main__.signal, "signal", lambda *_: None)
    assert __main__.main(["--", "true"]) == 125
    assert "need root" in capsys.readouterr().err


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TestbedUnavailable, match="ip, tc, taskset, setpriv not found"):
        refuse_if_unavailable()
