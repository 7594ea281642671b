"""What each backend of a port has to keep; the assertions in these modules explain themselves."""

import pytest

pytest.register_assert_rewrite("tests.contract.ledger")
