"""A kill loses nothing that was written; a power loss loses the end of the file."""

import pytest
import redis

from fencepost.errors import ConfigError
from fencepost_lab.faults.disk import aof, lose_tail
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import HOST, Redis

pytestmark = pytest.mark.redis


def test_what_was_written_after_a_point_is_gone_and_the_rest_is_there() -> None:
    faults = Faults()
    with Redis(args=["--appendonly", "yes", "--appendfsync", "always"]) as server:
        with redis.Redis(HOST, server.port, decode_responses=True) as client:
            client.set("kept", "1")
            size = aof(server).stat().st_size
            client.set("lost", "1")
        with pytest.raises(ConfigError, match="kill the server first"):
            lose_tail(server, keep=size, who="r1", faults=faults)
        server.kill()
        server.restart()
        with redis.Redis(HOST, server.port, decode_responses=True) as client:
            assert client.exists("kept", "lost") == 2, "SIGKILL loses nothing"
        server.kill()
        lost = lose_tail(server, keep=size, who="r1", faults=faults)
        assert lost > 0
        server.restart()
        with redis.Redis(HOST, server.port, decode_responses=True) as client:
            assert client.get("kept") == "1"
            assert client.get("lost") is None
    assert [(fault["do"], fault["who"], fault["lost"]) for fault in faults] == [("truncate", "r1", lost)]


def test_a_server_without_such_a_file_says_so() -> None:
    with Redis() as server:
        server.kill()
        with pytest.raises(ConfigError, match="--appendonly yes"):
            lose_tail(server, keep=0, who="r1", faults=Faults())
