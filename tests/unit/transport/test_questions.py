"""What a cell asks of the notebook."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tfos_magic.errors import ClusterError, UsageError
from tfos_magic.transport.messages import Answer, Message, Notice, Question, Questions, decode, encode, questions


def asked_by(answer: Callable[[Question], Answer | None]) -> tuple[Questions, list[Message]]:
    sent: list[Message] = []

    def send(message: Message) -> None:
        sent.append(decode(encode(message)))
        if isinstance(message, Question) and (told := answer(message)) is not None:
            made.take(told)

    made = Questions("r", 1, send)
    return made, sent


def test_an_answer_goes_to_its_question_and_others_are_passed_over() -> None:
    def answer(question: Question) -> Answer:
        made.take(Answer("another run", question.number, {"value": 1}))
        made.take(Answer("r", question.number - 1, {"value": 2}))  # late: that question was given up
        return Answer("r", question.number, {"value": question.about["low"]})

    made, sent = asked_by(answer)
    assert [made.ask("suggestion", {"low": low}) for low in (7, None, "x")] == [7, None, "x"]
    assert sent[0] == Question("r", 1, 1, "suggestion", {"low": 7})


def test_an_answer_that_is_an_error_is_raised() -> None:
    made, _ = asked_by(lambda question: Answer("r", question.number, {"error": "there is no such grid"}))
    with pytest.raises(UsageError, match="there is no such grid"):
        made.ask("suggestion", {})


def test_an_answer_that_does_not_come_is_said_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(questions, "PATIENCE_SECONDS", 0.02)
    made, sent = asked_by(lambda question: None)
    with pytest.raises(ClusterError, match=r"gave no answer \(outputs\)"):
        made.ask("outputs", {})
    assert [type(message) for message in sent[:2]] == [Question, Notice]


def test_threads_ask_one_after_another() -> None:
    made, sent = asked_by(lambda question: Answer("r", question.number, {"value": question.number}))
    threads = [threading.Thread(target=made.ask, args=("suggestion", {})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(message.number for message in sent if isinstance(message, Question)) == list(range(1, 9))
