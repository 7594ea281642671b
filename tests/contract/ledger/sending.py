"""Sending: a webhook is recorded once for everybody who wants it, with the caller's transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tests.contract.given import at_once, let_lock_what_has_changed
from tests.contract.ledger.webhook_steps import ALL, BODY, WebhookSteps, webhook
from workq.errors import ConfigError, KeyConflict, NotFound
from workq.ledger.sql import Ledger
from workq.values.task import State
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import (
    Cause,
    DeliveryState,
    SentTo,
)


class SendingContract(WebhookSteps):
    def test_everybody_of_the_topic_who_wants_the_type_gets_it(self, ledger: Ledger) -> None:
        self.endpoint(ledger, "all")
        self.endpoint(ledger, "exact", types=("user.added", "invoice.paid"))
        self.endpoint(ledger, "prefix", types=("invoice.*",))
        self.endpoint(ledger, "longer", types=("invoice.paid.late", "invoice", "invoices.*"))
        self.endpoint(ledger, "other", topic="other")

        sent_to, hints = ledger.part(WebhookLedger).sent.send(webhook())

        assert [one.endpoint_id for one in sent_to] == ["all", "exact", "prefix"]
        tasks = [self.task(ledger, hint.task_id) for hint in hints]
        assert {(task.name, task.queue, task.state) for task in tasks} == {("workq.webhook", "webhooks", State.READY)}
        rows = ledger.part(WebhookLedger).deliveries.all(ALL)
        assert {row.task_id for row in rows} == {task.id for task in tasks}
        assert {(row.state, row.cause, row.attempts, row.type) for row in rows} == {
            (DeliveryState.PENDING, Cause.SCHEDULED, 0, "invoice.paid")
        }

    def test_a_transaction_that_began_before_gets_the_deliveries_that_stand(
        self, ledger: Ledger, theirs: Engine
    ) -> None:
        self.endpoint(ledger, "a")
        with Session(theirs) as session:
            let_lock_what_has_changed(session)
            session.execute(select(webhook_tables(ledger.database).webhook.c.id)).all()
            [first] = self.send(ledger, id="paid-17")

            again, _ = ledger.part(WebhookLedger).sent.send(webhook(id="paid-17"), connection=session)
            session.commit()

        assert again == [SentTo(first.delivery_id, "a", created=False)]

    def test_one_endpoint_gets_what_is_sent_to_it_whatever_it_wants(self, ledger: Ledger) -> None:
        self.endpoint(ledger, "a", types=("user.*",))
        self.endpoint(ledger, "b")

        assert [one.endpoint_id for one in self.send(ledger, topic=None, endpoint_id="a")] == ["a"]
        with pytest.raises(NotFound, match="no endpoint 'c'"):
            self.send(ledger, topic=None, endpoint_id="c")
        assert len(ledger.part(WebhookLedger).deliveries.all(ALL)) == 1

    def test_who_sends_the_same_again_gets_the_deliveries_that_stand_and_a_new_endpoint_its_own(
        self, ledger: Ledger
    ) -> None:
        self.endpoint(ledger, "a")
        [first] = self.send(ledger, id="paid-17")
        self.endpoint(ledger, "b")

        again, hints = ledger.part(WebhookLedger).sent.send(webhook(id="paid-17", body=BODY.replace("12:00", "13:00")))

        assert again[0] == SentTo(first.delivery_id, "a", created=False)
        assert (again[1].endpoint_id, again[1].created) == ("b", True)
        assert len(hints) == 1
        assert ledger.part(WebhookLedger).deliveries.webhook_body("paid-17") == BODY
        for other in (webhook("invoice.late", id="paid-17"), webhook(id="paid-17", data_hash="1" * 64)):
            with pytest.raises(KeyConflict, match="was sent before"):
                ledger.part(WebhookLedger).sent.send(other)

    def test_of_many_who_send_the_same_at_once_one_delivery_is_made(self, ledger: Ledger) -> None:
        self.endpoint(ledger)

        answers = at_once(6, lambda _: self.send(ledger, id="paid-17"))

        assert len({one.delivery_id for [one] in answers}) == 1
        assert [one.created for [one] in answers].count(True) == 1
        assert len(ledger.questions.tasks()) == len(ledger.part(WebhookLedger).deliveries.all(ALL)) == 1

    def test_it_is_sent_with_the_callers_transaction_or_not_at_all(self, ledger: Ledger, theirs: Engine) -> None:
        self.endpoint(ledger)
        with Session(theirs) as session:
            ledger.part(WebhookLedger).sent.send(webhook(id="dropped"), connection=session)
            session.rollback()
            [kept], _ = ledger.part(WebhookLedger).sent.send(webhook(id="kept"), connection=session)
            before = ledger.part(WebhookLedger).deliveries.delivery(kept.delivery_id)
            session.commit()

        assert before is None
        assert [row.webhook_id for row in ledger.part(WebhookLedger).deliveries.all(ALL)] == ["kept"]
        assert (len(ledger.questions.tasks()), ledger.part(WebhookLedger).deliveries.webhook_body("dropped")) == (
            1,
            None,
        )

    def test_the_callers_transaction_goes_on_after_an_error(self, ledger: Ledger, theirs: Engine) -> None:
        self.endpoint(ledger)
        self.send(ledger, id="paid-17")
        with theirs.begin() as connection:
            with pytest.raises(KeyConflict):
                ledger.part(WebhookLedger).sent.send(webhook("other", id="paid-17"), connection=connection)
            with pytest.raises(NotFound):
                ledger.part(WebhookLedger).sent.send(webhook(topic=None, endpoint_id="nobody"), connection=connection)
            [again], _ = ledger.part(WebhookLedger).sent.send(webhook(id="paid-17"), connection=connection)
            ledger.part(WebhookLedger).sent.send(webhook(id="kept"), connection=connection)

        assert not again.created
        assert {row.webhook_id for row in ledger.part(WebhookLedger).deliveries.all(ALL)} == {"paid-17", "kept"}
        assert ledger.part(WebhookLedger).deliveries.webhook_body("kept") == BODY
        with pytest.raises(ConfigError, match="need an SQLAlchemy Connection"):
            ledger.part(WebhookLedger).sent.send(webhook(), connection=object())
