"""Every input of the table: what the Dag sees, sent through Airflow's classes and a real PostgreSQL."""

from __future__ import annotations

import jmespath
import pytest

from airflow_provider_sharedstream.messages import Message, messages
from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.payload import MessagesEvent, event_payload
from airflow_provider_sharedstream.messages.pipeline import MessagePipeline
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.receipts import Receipt
from tests.messages.airflow_path import Store, as_a_task_sees
from tests.messages.shapes import DOCUMENT, SHAPES, Shape, document


async def seen_by_a_dag(shape: Shape, store: Store) -> tuple[list[Message], Receipt, Delivery]:
    delivery = Delivery(id="m", body=shape.body, headers=shape.headers)
    receipt = Receipt(Batch([delivery]), "watcher")
    pipeline = MessagePipeline(Decoder(shape.decode, shape.unwrap), Matcher(None))
    found = await pipeline.messages_for([delivery], receipt)
    if not found:
        return [], receipt, delivery
    event = MessagesEvent(payload=event_payload("test", "shapes", found))
    return messages(as_a_task_sees(event, store)), receipt, delivery


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.came} {shape.arguments}".strip())
async def test_the_dag_sees(shape: Shape, store: Store) -> None:
    seen, receipt, delivery = await seen_by_a_dag(shape, store)
    if shape.rejected is not None:
        assert receipt.rejected == {delivery: shape.rejected}
        assert not receipt.matched_all
        assert seen == []
        return
    assert receipt.rejected == {}
    assert receipt.failed == set()
    assert [message.body for message in seen] == (shape.sees if shape.several else [shape.sees])
    assert receipt.matched_all is bool(seen)
    assert len({message.id for message in seen}) == len(seen)
    for path, value in shape.has.items():
        assert jmespath.search(path, seen[0].as_dict()) == value


def test_the_table_in_the_documentation_is_this_one() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert document(text) == text, "run: python -m tests.messages.shapes"
    assert len(SHAPES) >= 40
