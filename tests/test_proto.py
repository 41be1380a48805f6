"""The committed bindings are those of the committed contract."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from common.algorithms.features import FEATURES
from common.wire.calls import CALLS
from fedpvr.v1 import capture_pb2, federation_pb2, federation_pb2_grpc, tensor_pb2

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


def test_every_call_is_documented_where_it_is_defined() -> None:
    for name in CALLS:
        documented = getattr(federation_pb2_grpc.FederationServicer, name).__doc__
        assert documented, name
        assert "Missing associated documentation" not in documented, name


def test_contract_and_document_name_every_feature() -> None:
    contract = (ROOT / "proto" / "fedpvr" / "v1" / "federation.proto").read_text().replace("\n  //", "")
    (named,) = re.findall(r"compute what is meant: ([^.]+)\.", contract)
    assert tuple(named.split(", ")) == FEATURES
    (sentence,) = re.findall(r"The names are (`[^;]+);", (ROOT / "docs" / "wire.md").read_text())
    assert tuple(re.findall(r"`([a-z-]+)`", sentence)) == FEATURES


def test_the_contract_reads_from_top_to_bottom() -> None:
    """Lines have an end, and the fields of a message are in the order of their numbers."""
    for path in sorted((ROOT / "proto" / "fedpvr" / "v1").glob("*.proto")):
        assert max(map(len, path.read_text().splitlines())) <= 120, path.name
    for file in (tensor_pb2, federation_pb2, capture_pb2):
        for message in file.DESCRIPTOR.message_types_by_name.values():
            numbers = [field.number for field in message.fields]
            assert numbers == sorted(numbers), message.name
