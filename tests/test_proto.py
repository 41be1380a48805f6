"""The committed bindings are those of the committed contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BINDINGS = ("federation_pb2.py", "federation_pb2.pyi", "federation_pb2_grpc.py", "federation_pb2_grpc.pyi")


def test_bindings_are_up_to_date(tmp_path: Path) -> None:
    """Runs what `make proto` runs, into another folder."""
    tools = Path(sys.executable).parent
    protoc = [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto")),
        *(f"--plugin=protoc-gen-{name}={tools / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")),
    ]
    both = [f"fedpvr/v1/{name}.proto" for name in ("federation", "tensor")]
    subprocess.run([*protoc, f"--python_out={tmp_path}", f"--mypy_out=quiet:{tmp_path}", *both], check=True)
    services = [f"--grpc_python_out={tmp_path}", f"--mypy_grpc_out=quiet:{tmp_path}"]
    subprocess.run([*protoc, *services, both[0]], check=True)
    for name in (*BINDINGS, "tensor_pb2.py", "tensor_pb2.pyi"):
        committed = (ROOT / "proto" / "fedpvr" / "v1" / name).read_text()
        assert (tmp_path / "fedpvr" / "v1" / name).read_text() == committed, f"{name}: run make proto"


def test_every_message_field_and_call_is_documented_where_it_is_defined() -> None:
    from fedpvr.v1 import federation_pb2_grpc as bindings

    for method in ("Join", "PullRound", "PushUpdate", "Status"):
        documented = getattr(bindings.FederationServicer, method).__doc__
        assert documented
        assert "Missing associated documentation" not in documented
