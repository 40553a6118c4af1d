"""The messages between kernel, agents and trainers, and their only wire format.

A message is a frozen dataclass, and on the wire two frames: a JSON header with its type and fields, and the raw bytes
of its ``payload``, which only the authenticated peer it is meant for unpickles, where it holds a pickle. *Agent*
messages go from an agent to the kernel, *command* messages to an agent, which hands on those for its trainer, *event*
messages from a trainer through its agent to the kernel.
"""

from __future__ import annotations

from tfos_magic.transport.messages.agent_reports import (
    AgentEnded,
    AgentFailed,
    Heartbeat,
    Reconnected,
    Register,
    TrainerExited,
)
from tfos_magic.transport.messages.commands import (
    Heard,
    NotebookState,
    OutputTaken,
    RunCell,
    Shutdown,
    StartTrainer,
    StopRun,
)
from tfos_magic.transport.messages.events import (
    Alive,
    CellLeft,
    CheckpointPart,
    Display,
    EpochEnd,
    EventFilePart,
    Notice,
    Output,
    OutputPart,
    Progress,
    RunFinished,
    RunStarted,
    TrainerReady,
)
from tfos_magic.transport.messages.feeds import (
    CommitFeed,
    ConfirmStream,
    EndStream,
    FeedAttached,
    FeedDropped,
    FeedEndpoint,
    FeedOpened,
    FeedRecomputed,
    FeedUse,
    FeedWanted,
    NeedRoom,
    OpenFeed,
    OpenStream,
    RefuseFeed,
    ReleaseFeed,
    RowsHandle,
    SpoolHandle,
    StreamHandle,
)
from tfos_magic.transport.messages.fitting import encode_fitting, failed, refusal
from tfos_magic.transport.messages.message import MAX_HEADER_BYTES, Message, decode, encode
from tfos_magic.transport.messages.questions import Answer, Question, Questions
from tfos_magic.transport.messages.strategy_options import APART, AS_WRITTEN, STRATEGIES, TOGETHER, StrategyOptions

__all__ = [
    "APART",
    "AS_WRITTEN",
    "MAX_HEADER_BYTES",
    "STRATEGIES",
    "TOGETHER",
    "AgentEnded",
    "AgentFailed",
    "Alive",
    "Answer",
    "CellLeft",
    "CheckpointPart",
    "CommitFeed",
    "ConfirmStream",
    "Display",
    "EndStream",
    "EpochEnd",
    "EventFilePart",
    "FeedAttached",
    "FeedDropped",
    "FeedEndpoint",
    "FeedOpened",
    "FeedRecomputed",
    "FeedUse",
    "FeedWanted",
    "Heard",
    "Heartbeat",
    "Message",
    "NeedRoom",
    "NotebookState",
    "Notice",
    "OpenFeed",
    "OpenStream",
    "Output",
    "OutputPart",
    "OutputTaken",
    "Progress",
    "Question",
    "Questions",
    "Reconnected",
    "RefuseFeed",
    "Register",
    "ReleaseFeed",
    "RowsHandle",
    "RunCell",
    "RunFinished",
    "RunStarted",
    "Shutdown",
    "SpoolHandle",
    "StartTrainer",
    "StopRun",
    "StrategyOptions",
    "StreamHandle",
    "TrainerExited",
    "TrainerReady",
    "decode",
    "encode",
    "encode_fitting",
    "failed",
    "refusal",
]
