"""The generated code of tests/harness/proto is what the .proto file says today.

`python -m tests.test_proto --write` writes it anew.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

SOURCE = Path(__file__).parent.parent
PROTO = "tests/harness/proto/etcd.proto"

MODULE = '''"""Generated from {proto}; do not edit.

protoc's own Python output would ask for a runtime at least as new as itself; the bare descriptor does not. The pool is
our own, so that no other client of etcd in the process can be in the way.
"""

from google.protobuf import descriptor_pool, message_factory

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(
{lines}
)
globals().update(
    {{
        name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{package}.{{name}}"))
        for name in {names!r}.split()
    }}
)
'''


def generate() -> dict[str, str]:
    """The generated files, by their path."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-I{SOURCE}", f"--descriptor_set_out={folder}/set", f"--pyi_out={folder}", f"{SOURCE / PROTO}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], check=True)
        described = descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "set").read_bytes()).file[0]
        stub = PROTO.replace(".proto", "_pb2.pyi")
        data = described.SerializeToString(deterministic=True)
        module = MODULE.format(
            proto=PROTO,
            package=described.package,
            names=" ".join(message.name for message in described.message_type),
            lines="\n".join(f"    {data[place : place + 64]!r}" for place in range(0, len(data), 64)),
        )
        return {stub: Path(folder, stub).read_text(), stub.removesuffix("i"): module}


def test_the_generated_code_is_current() -> None:
    for path, text in generate().items():
        assert (SOURCE / path).read_text() == text, "run `python -m tests.test_proto --write`"


if __name__ == "__main__":
    for path, text in generate().items():
        if "--write" in sys.argv:
            (SOURCE / path).write_text(text)
        print(path)
