"""How often a message has come, where the broker doesn't count."""

from __future__ import annotations

from airflow_provider_sharedstream.stream.redelivery import MOST_REMEMBERED, RedeliveryLedger
from tests.machine.fakes import delivery


def counted(ledger: RedeliveryLedger, id: str) -> int:
    one = delivery(id)
    ledger.count(one)
    return one.delivery_count


def test_it_counts_what_is_expected_again_and_nothing_else() -> None:
    ledger = RedeliveryLedger()
    for expected in (1, 2, 3):
        one = delivery("m")
        ledger.count(one)
        assert one.delivery_count == expected
        ledger.expect(one)
    assert counted(ledger, "other") == 1
    assert counted(ledger, "other") == 1, "it wasn't expected"
    ledger.forget(delivery("m"))
    assert counted(ledger, "m") == 1


def test_it_is_bounded_and_forgets_the_oldest() -> None:
    ledger = RedeliveryLedger()
    for number in range(3 * MOST_REMEMBERED):
        one = delivery(f"m{number}")
        ledger.count(one)
        ledger.expect(one)
        first = delivery("m0")
        ledger.count(first)
        if number < MOST_REMEMBERED - 1:
            assert first.delivery_count == 2
    assert len(ledger._counts) == MOST_REMEMBERED
    assert counted(ledger, f"m{3 * MOST_REMEMBERED - 1}") == 2
    assert counted(ledger, "m0") == 1


def test_what_comes_again_and_again_is_not_the_oldest() -> None:
    ledger = RedeliveryLedger()
    poison = delivery("poison")
    for number in range(2 * MOST_REMEMBERED):
        if number % 1000 == 0:
            poison = delivery("poison")
            ledger.count(poison)
            ledger.expect(poison)
        one = delivery(f"m{number}")
        ledger.count(one)
        ledger.expect(one)
    assert poison.delivery_count == 20
