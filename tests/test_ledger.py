import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhub.ledger import Ledger, LedgerError

operations = st.lists(
    st.tuples(st.sampled_from(["issue", "finish", "use", "drop", "drop_buffered"]), st.integers(0, 5))
)


@given(operations)
def test_it_balances_after_any_sequence_and_refuses_what_would_not(plan) -> None:
    ledger = Ledger()
    for name, count in plan:
        held = {"finish": ledger.in_flight, "drop": ledger.in_flight}.get(name, ledger.buffered)
        act = {
            "issue": lambda n: ledger.issue(n),
            "finish": lambda n: ledger.finish(n),
            "use": lambda n: ledger.use(n),
            "drop": lambda n: ledger.drop("why", n),
            "drop_buffered": lambda n: ledger.drop("why", n, buffered=True),
        }[name]
        if name != "issue" and count > held:
            before = ledger.to_dict()
            with pytest.raises(LedgerError):
                act(count)
            assert ledger.to_dict() == before
        else:
            act(count)
        assert ledger.issued == ledger.used + ledger.dropped.total() + ledger.in_flight + ledger.buffered
    assert Ledger.from_dict(ledger.to_dict()) == ledger


def test_one_that_does_not_balance_is_refused_on_reading() -> None:
    with pytest.raises(LedgerError):
        Ledger.from_dict({**Ledger().to_dict(), "issued": 3})


def test_it_says_where_everything_went() -> None:
    ledger = Ledger()
    ledger.issue(4)
    ledger.drop("deadline")
    ledger.finish(2)
    ledger.use()
    assert str(ledger) == "issued 4 = used 1 + dropped 1 (deadline 1) + in flight 1 + buffered 1"


def test_dropping_none_leaves_no_reason() -> None:
    ledger = Ledger()
    ledger.issue(1)
    ledger.drop("nothing", 0)
    assert ledger.to_dict()["dropped"] == {}
