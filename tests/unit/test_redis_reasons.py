"""What a refusal of Redis becomes, in the words of each version."""

from __future__ import annotations

import pytest
import redis

from workq.inflight.redis.pool import reason_of


@pytest.mark.parametrize(
    "told",
    [
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "The user executing the script can't run this command or subcommand script: 9b64aace, on @user_script:22.",
        "ACL failure in script: User narrow has no permissions to run the 'time' command script: 9b64aace",
    ],
)
def test_a_missing_right_is_told_with_the_grant(told: str) -> None:
    reason = reason_of(
        redis.ResponseError(told), "redis://there/0", socket_s=2.0, grant="ACL SETUSER", is_cluster=False
    )

    assert reason.startswith("Redis at redis://there/0 does not allow this user what workq needs (")
    assert reason.endswith("Grant it: ACL SETUSER")
