"""What every ledger promises, in the order of a task's life. A subclass says only where one is."""

from __future__ import annotations

from tests.contract.ledger.audit import AuditContract
from tests.contract.ledger.bands import BandsContract
from tests.contract.ledger.certificates import CertificatesContract
from tests.contract.ledger.charges import ChargesContract
from tests.contract.ledger.claim import ClaimContract
from tests.contract.ledger.dead import DeadContract
from tests.contract.ledger.delivering import DeliveringContract
from tests.contract.ledger.destination_lines import DestinationLinesContract
from tests.contract.ledger.destinations import DestinationsContract
from tests.contract.ledger.due_tasks import DueTasksContract
from tests.contract.ledger.endpoints import EndpointsContract
from tests.contract.ledger.expiry import ExpiryContract
from tests.contract.ledger.floor import FloorContract
from tests.contract.ledger.hints import HintsContract
from tests.contract.ledger.holding import HoldingContract
from tests.contract.ledger.intakes import IntakesContract
from tests.contract.ledger.jobs import JobsContract
from tests.contract.ledger.keys import KeysContract
from tests.contract.ledger.limits import LimitsContract
from tests.contract.ledger.messages import MessagesContract
from tests.contract.ledger.nesting import NestingContract
from tests.contract.ledger.notices import NoticesContract
from tests.contract.ledger.order import OrderContract
from tests.contract.ledger.partitions import PartitionsContract
from tests.contract.ledger.pauses import PausesContract
from tests.contract.ledger.people import PeopleContract
from tests.contract.ledger.plan import PlanContract
from tests.contract.ledger.pruning import PruningContract
from tests.contract.ledger.questions import QuestionsContract
from tests.contract.ledger.reap import ReapContract
from tests.contract.ledger.rebuild import RebuildContract
from tests.contract.ledger.record import RecordContract
from tests.contract.ledger.recovery import RecoveryContract
from tests.contract.ledger.restoring import RestoringContract
from tests.contract.ledger.rules import RulesContract
from tests.contract.ledger.schedules import SchedulesContract
from tests.contract.ledger.sending import SendingContract
from tests.contract.ledger.settle import SettleContract
from tests.contract.ledger.start import StartContract
from tests.contract.ledger.sweep import SweepContract
from tests.contract.ledger.telling import TellingContract
from tests.contract.ledger.text import TextContract
from tests.contract.ledger.transaction import TransactionContract
from tests.contract.ledger.unhandled import UnhandledContract
from tests.contract.ledger.waiting import WaitingContract
from tests.contract.ledger.webhook_order import WebhookOrderContract
from tests.contract.ledger.withdraw import WithdrawContract
from tests.contract.ledger.workers import WorkersContract


class LedgerContract(
    RecordContract,
    KeysContract,
    HintsContract,
    ClaimContract,
    DueTasksContract,
    SettleContract,
    UnhandledContract,
    PartitionsContract,
    TransactionContract,
    WorkersContract,
    ReapContract,
    ChargesContract,
    RecoveryContract,
    CertificatesContract,
    StartContract,
    SweepContract,
    ExpiryContract,
    FloorContract,
    PlanContract,
    RebuildContract,
    AuditContract,
    BandsContract,
    PausesContract,
    SchedulesContract,
    OrderContract,
    LimitsContract,
    JobsContract,
    WaitingContract,
    NestingContract,
    PeopleContract,
    WithdrawContract,
    DeadContract,
    QuestionsContract,
    EndpointsContract,
    SendingContract,
    DeliveringContract,
    HoldingContract,
    NoticesContract,
    WebhookOrderContract,
    PruningContract,
    TextContract,
    TellingContract,
    RulesContract,
    MessagesContract,
    RestoringContract,
    DestinationsContract,
    DestinationLinesContract,
    IntakesContract,
):
    """What every ledger promises."""
