"""Our .proto files against the gateway's published ones: every RPC, field number and wire type we state must be the same there."""
import importlib
import pathlib
import subprocess

import pytest
from google.protobuf import descriptor_pb2

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
FIELD = descriptor_pb2.FieldDescriptorProto
# proto3 `optional` changes presence, not the wire: smg-grpc-proto 0.4.28 gave it to fields that had none in 0.4.14.


def ours(tmp_path) -> descriptor_pb2.FileDescriptorSet:
    out = tmp_path / "ours.pb"
    subprocess.run(["protoc", "-I", REPO, f"--descriptor_set_out={out}", *sorted((REPO / "proto" / "compat").glob("*.proto"))],
                   check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def published(name: str) -> descriptor_pb2.FileDescriptorProto:
    module = importlib.import_module(f"smg_grpc_proto.generated.{name}_pb2")
    result = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(result)
    return result


def fields(messages, prefix: str = "") -> dict:
    """{message.field: (number, label, type, type name)} of messages and those nested in them."""
    result = {}
    for message in messages:
        name = f"{prefix}{message.name}"
        for field in message.field:
            result[f"{name}.{field.name}"] = (field.number, field.label == FIELD.LABEL_REPEATED, field.type, field.type_name)
        result.update(fields(message.nested_type, f"{name}."))
    return result


@pytest.mark.parametrize("file, name", [("sglang_scheduler.proto", "sglang_scheduler"), ("smg_common.proto", "common")])
def test_published_descriptor_only_adds_to_ours(tmp_path, file, name):
    mine = next(f for f in ours(tmp_path).file if f.name.endswith(file))
    theirs = published(name)
    assert mine.package == theirs.package
    their_fields = fields(theirs.message_type)
    for field, facts in fields(mine.message_type).items():
        assert their_fields.get(field) == facts, field


def test_every_method_is_the_published_one(tmp_path):
    def methods(file):
        return {method.name: (method.input_type, method.output_type, method.client_streaming, method.server_streaming)
                for method in file.service[0].method}
    mine = methods(next(f for f in ours(tmp_path).file if f.name.endswith("sglang_scheduler.proto")))
    theirs = methods(published("sglang_scheduler"))
    assert mine == {name: theirs[name] for name in mine}
