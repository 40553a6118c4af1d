"""Secrets stay out of what people read: reprs of all dataclasses, and the tracebacks of ``%xmode Verbose``."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pickle
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.ultratb import VerboseTB

import tfos_magic
from tfos_magic.cluster.agents import Agents
from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.cluster.workers import ClusterSpec, Worker
from tfos_magic.feed.driver.spooled_feeds import FeedStore
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.identity import Authority
from tfos_magic.transport.messages import Message, Register
from tfos_magic.transport.secret import Secret, SecretBytes

pytestmark = pytest.mark.slow

SECRETIVE = re.compile(r"secret|token|password|credential")
NO_SECRETS = {"Job.key", "Entries.key", "SparkGrouping.keys", "GroupTask.keys"}  # names of columns and of files
MARK = "5ecret"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _dataclasses() -> Iterator[type]:
    for module in pkgutil.walk_packages(tfos_magic.__path__, "tfos_magic."):
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.name:
                yield kind


def _is_secret(kind: type, field: dataclasses.Field[Any]) -> bool:
    if SECRETIVE.search(field.name):
        return True
    return bool(re.search(r"(^|_)keys?$", field.name)) and f"{kind.__name__}.{field.name}" not in NO_SECRETS


@pytest.mark.timeout(600)  # all of the package is imported, TensorFlow and Spark too
def test_no_dataclass_shows_a_secret_that_it_holds() -> None:
    shown, seen = [], set()
    for kind in _dataclasses():
        fields: Any = dataclasses.fields(kind)  # type: ignore[arg-type]
        held = [field.name for field in fields if _is_secret(kind, field)]
        if not held:
            continue
        seen.add(kind.__name__)
        made = object.__new__(kind)
        for field in fields:
            object.__setattr__(made, field.name, MARK if field.name in held else "")
        if MARK in repr(made):
            shown.append(kind.__name__)
    assert not shown
    assert seen >= {
        "AgentConfig",
        "AgentKeys",
        "StartTrainer",
        "StreamHandle",
        "FeedAccess",
        "Identity",
        "GroupInvitation",
        "Started",
    }


def test_a_secret_is_used_as_any_other_text_and_shows_nothing() -> None:
    text, data = Secret(MARK), SecretBytes(MARK.encode())
    assert (repr(text), repr(data)) == ("Secret(…)", "SecretBytes(…)")
    assert (f"Bearer {text}", json.dumps(text), text.encode(), bytes(data)) == (
        f"Bearer {MARK}",
        f'"{MARK}"',
        MARK.encode(),
        MARK.encode(),
    )
    for each in (text, data):
        back = pickle.loads(pickle.dumps(each))
        assert back == each
        assert type(back) is type(each)


class Unreachable(WorkerGroup):
    """A cluster with a worker that nothing can be told."""

    def tell(self, rank: int, message: Message) -> None:
        raise OSError("no way")


@pytest.fixture
def control() -> Iterator[ControlServer]:
    made = ControlServer("127.0.0.1", 0, lambda peer, message: None)
    yield made
    made.close()


@pytest.fixture
def cluster() -> Unreachable:
    made = Unreachable(object(), workers=1)
    made.membership.members = [Worker(0, b"peer", Register(0, "alpha", 1, 2, "grpc://alpha:1"))]
    return made


def _verbose(fail: Callable[[], Any]) -> str:
    """What ``%xmode Verbose`` writes of an error."""
    try:
        fail()
    except Exception:
        kind, error, trace = sys.exc_info()
        return COLOUR.sub("", "\n".join(VerboseTB().structured_traceback(kind, error, trace)))
    raise AssertionError("nothing failed")


def test_a_verbose_traceback_of_a_failed_start_shows_no_key_and_no_token(
    control: ControlServer, cluster: Unreachable
) -> None:
    agents = Agents(None, Membership(1), ClusterSpec(workers=1), cluster._token, Authority())  # type: ignore[arg-type]
    text = _verbose(lambda: agents._launch(range(1), control, time.monotonic() + 1))
    assert "keys.secret" in text
    assert "Secret(…)" in text
    for secret in (control._secret, cluster._token):
        assert str(secret, "ascii") not in text if isinstance(secret, bytes) else secret not in text


def test_a_verbose_traceback_of_trainers_that_cannot_be_started_shows_no_secret(cluster: Unreachable) -> None:
    text = _verbose(cluster.spawn_trainers)
    assert "no way" in text
    assert "StartTrainer(" in text
    assert cluster._secret not in text


def test_a_verbose_traceback_of_a_failed_feed_shows_no_token(cluster: Unreachable) -> None:
    text = _verbose(lambda: FeedStore(None, None, cluster._token, cluster.tell))  # type: ignore[arg-type]
    assert "token" in text
    assert cluster._token not in text
