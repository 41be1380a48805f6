"""Health is true: not serving before clients can join and after the end, while the process lives."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.wire.calls import SERVICE
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub
from tests.processes import Federation
from tests.test_cli import invoke

Response = health_pb2.HealthCheckResponse
SLOW = """
import time
from pathlib import Path
from problem import network as quick

def network(num_classes):
    while not Path("go").exists():
        time.sleep(0.01)
    return quick(num_classes)
"""
FLAGS = "--model slow:network --dataset problem:data --rounds 1 --local-steps 1"


@pytest.fixture
def preparing(federation: Federation) -> Federation:
    """A folder with a model that is built once there is a file called go."""
    (federation.folder / "slow.py").write_text(SLOW)
    return federation


def states(channel: grpc.Channel) -> Iterator[str]:
    """What the service's health is, and whatever it becomes."""
    stub = health_pb2_grpc.HealthStub(channel)
    for response in stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=60):
        yield Response.ServingStatus.Name(response.status)


def process_lives(channel: grpc.Channel) -> bool:
    """Under the empty name."""
    response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return bool(response.status == Response.SERVING)


def test_a_server_serves_from_when_clients_can_join_until_it_stops(preparing: Federation) -> None:
    preparing.server(*FLAGS.split(), "--num-clients", "2")
    asking = ("fedserver", "health", "--server", preparing.address)
    with grpc.insecure_channel(preparing.address) as channel:
        found = states(channel)
        assert next(found) == "NOT_SERVING"
        assert process_lives(channel)
        told = invoke(*asking)
        assert told.exit_code == 1
        assert told.output.startswith(f"Error: the server at {preparing.address} does not serve: NOT_SERVING")
        (preparing.folder / "go").touch()
        assert next(found) == "SERVING"
        assert (invoke(*asking).exit_code, invoke(*asking).output) == (0, "serving\n")
        with pytest.raises(grpc.RpcError, match="a client name has"):
            FederationStub(channel).Join(pb.JoinRequest(protocol_version=1, client="/"), timeout=10)
        preparing.processes["server"].send_signal(signal.SIGTERM)
        assert next(found) == "NOT_SERVING"
    assert preparing.exit_code("server") == 0


def test_a_server_that_gathers_clients_serves_before_there_is_a_model(preparing: Federation) -> None:
    """Otherwise clients that are started once it is healthy, and the server, would wait for each other."""
    preparing.server(*FLAGS.split(), "--num-clients", "1", "--gather", "0.2")
    with grpc.insecure_channel(preparing.address) as channel:
        assert next(state for state in states(channel) if state == "SERVING")
    preparing.client("a")
    preparing.wait_for("server", "nobody else has joined")
    (preparing.folder / "go").touch()
    preparing.finish()


def test_a_finished_run_that_waits_for_its_clients_still_serves_them(preparing: Federation) -> None:
    (preparing.folder / "go").touch()
    preparing.server(*FLAGS.split(), "--num-clients", "1")
    preparing.client("a")
    preparing.finish()
    preparing.server(*FLAGS.split(), "--num-clients", "1", name="again")
    with grpc.insecure_channel(preparing.address) as channel:
        assert next(state for state in states(channel) if state == "SERVING")
    preparing.client("a")
    preparing.finish()
