# SPDX-License-Identifier: Apache-2.0
"""The traffic of load balancers: weights of our rules change, everything else stays."""

from typing import Any

import pytest

from pipecd.sdk import DISPLAY_KEY, StageStatus
from plugins.ecs.testbed import Application, Balancer
from servers.amazon import Amazon

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
NOT_FOUND = {"Type": "fixed-response", "FixedResponseConfig": {"StatusCode": "404"}}


async def test_the_weights_of_all_listeners_and_rules(
    application: Application, balancer: Balancer
) -> None:
    first, second = balancer.listener(80), balancer.listener(81, NOT_FOUND)
    ours = balancer.rule(second, 1, balancer.split)
    bench = application.commit("web:1")
    routed = await bench.run("ECS_TRAFFIC_ROUTING", {"canary": 30})
    assert (routed.status, routed.message) == (
        SUCCESS,
        "Traffic is routed: primary 70%, canary 30%",
    )
    assert balancer.weights(first) == {"primary": 70, "canary": 30}
    assert balancer.rule_weights(ours) == {"primary": 70, "canary": 30}
    stored = application.host.plugin_metadata
    assert stored["canary-target-group-arn"] == balancer.canary
    assert stored["current-listeners"].split(",") == [first, second]
    assert (stored["primary-percentage"], stored["canary-percentage"]) == ("70", "30")
    assert application.host.stage_metadata[DISPLAY_KEY] == "primary 70%, canary 30%"
    assert (await bench.run("ECS_TRAFFIC_ROUTING", {"primary": 100})).status is SUCCESS
    assert balancer.weights(first) == {"primary": 100, "canary": 0}


async def test_rules_of_others_are_not_touched(
    application: Application, balancer: Balancer, amazon: Amazon
) -> None:
    listener, other = balancer.listener(80), balancer.target_group("other")
    rules = [
        balancer.rule(listener, 1, balancer.forward((other, 1))),
        balancer.rule(listener, 2, balancer.forward((balancer.primary, 1))),
        balancer.rule(listener, 3, balancer.forward((balancer.primary, 3), (other, 1))),
        balancer.rule(
            listener, 4, balancer.forward((balancer.primary, 1), (balancer.canary, 1), (other, 1))
        ),
        balancer.rule(listener, 5, NOT_FOUND),
    ]
    elb = amazon.client("elbv2")
    before = elb.describe_rules(RuleArns=rules)["Rules"]
    amazon.calls.clear()
    bench = application.commit("web:1")
    assert (await bench.run("ECS_TRAFFIC_ROUTING", {"canary": 30})).status is SUCCESS
    # Only the default rule is sent to AWS.
    assert amazon.operations("ModifyListener", "ModifyRule") == ["ModifyListener"]
    assert elb.describe_rules(RuleArns=rules)["Rules"] == before
    amazon.calls.clear()
    assert (await bench.run("ECS_TRAFFIC_ROUTING", {"canary": 30})).status is SUCCESS
    assert amazon.operations("ModifyListener", "ModifyRule") == []


async def test_stickiness_and_other_actions_of_a_rule_stay(
    application: Application, balancer: Balancer, amazon: Amazon
) -> None:
    listener = balancer.listener(80, NOT_FOUND)
    oidc = {
        "Type": "authenticate-oidc",
        "Order": 1,
        "AuthenticateOidcConfig": {
            "Issuer": "https://i",
            "AuthorizationEndpoint": "https://a",
            "TokenEndpoint": "https://t",
            "UserInfoEndpoint": "https://u",
            "ClientId": "id",
            "ClientSecret": "secret",
        },
    }
    sticky = {"TargetGroupStickinessConfig": {"Enabled": True, "DurationSeconds": 60}}
    forward = balancer.forward((balancer.primary, 1), (balancer.canary, 1), **sticky)
    rule = balancer.rule(listener, 1, oidc, {**forward, "Order": 2})
    bench = application.commit("web:1")
    assert (await bench.run("ECS_TRAFFIC_ROUTING", {"canary": 20})).status is SUCCESS
    [call] = [call for call in amazon.calls if call.operation == "ModifyRule"]
    sent: list[dict[str, Any]] = call.parameters["Actions"]
    assert sent[1]["ForwardConfig"]["TargetGroupStickinessConfig"] == {
        "Enabled": True,
        "DurationSeconds": 60,
    }
    assert [action["Order"] for action in sent] == [1, 2]
    assert balancer.rule_weights(rule) == {"primary": 80, "canary": 20}


async def test_a_canary_behind_a_network_load_balancer_and_its_rollback(
    application: Application, amazon: Amazon
) -> None:
    balancer = Balancer(amazon, "nlb").create(kind="network")
    application.input = balancer.input
    listener = balancer.listener(80)
    one = application.commit("web:1")
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    two = application.commit("web:2", running=one)
    for index, (stage, options) in enumerate(
        [("ECS_CANARY_ROLLOUT", {"scale": 50}), ("ECS_TRAFFIC_ROUTING", {"canary": 30})]
    ):
        application.next_stage()
        assert (await two.run(stage, options, index=index)).status is SUCCESS
    assert balancer.weights(listener) == {"primary": 70, "canary": 30}
    application.next_stage()
    assert (await two.run("ECS_ROLLBACK", is_rollback=True)).status is SUCCESS
    assert balancer.weights(listener) == {"primary": 100, "canary": 0}
    assert application.task_sets == [("web:1", "PRIMARY", 100)]


async def test_a_rule_that_somebody_else_edited(
    application: Application, balancer: Balancer, amazon: Amazon
) -> None:
    listener = balancer.listener(80, NOT_FOUND)
    rule, second = (balancer.rule(listener, n, balancer.split) for n in (1, 2))
    bench = application.commit("web:1")
    assert (await bench.run("ECS_TRAFFIC_ROUTING", {"canary": 30})).status is SUCCESS
    elb = amazon.client("elbv2")
    elb.modify_rule(RuleArn=rule, Actions=[balancer.forward((balancer.primary, 1))])
    failed = await bench.run("ECS_TRAFFIC_ROUTING", {"canary": 60})
    assert failed.status is FAILURE
    assert failed.message.startswith(
        f"somebody else has edited the rule {rule}: forwards to lb-primary/"
    )
    assert failed.message.endswith("; let it forward to both target groups again, and deploy again")
    assert balancer.rule_weights(second) == {"primary": 70, "canary": 30}


async def test_no_rule_splits_the_traffic(application: Application, balancer: Balancer) -> None:
    balancer.listener(80, balancer.forward((balancer.primary, 1)))
    failed = await application.commit("web:1").run("ECS_TRAFFIC_ROUTING", {"canary": 30})
    assert failed.status is FAILURE
    assert "no listener rule forwards to exactly the target groups of primary and" in failed.message
    assert "the default rule of arn:aws:elasticloadbalancing" in failed.message


async def test_a_target_group_without_a_listener(
    application: Application, balancer: Balancer
) -> None:
    failed = await application.commit("web:1").run("ECS_TRAFFIC_ROUTING", {"canary": 30})
    assert failed.message.startswith("no listener of a load balancer uses the target group")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {"accessType": "SERVICE_DISCOVERY"},
            "the stage ECS_TRAFFIC_ROUTING needs a load balancer",
            id="service discovery",
        ),
        pytest.param({}, "needs the target group of primary", id="no target groups"),
        pytest.param(
            {"targetGroups": {"primary": {"targetGroupArn": "arn"}}},
            "needs the target group of canary",
            id="no target group of canary",
        ),
        pytest.param(
            {
                "targetGroups": {
                    "primary": {"targetGroupArn": "arn:p"},
                    "canary": {"targetGroupArn": "arn:c"},
                }
            },
            "the target group arn:p does not exist in region eu-west-1; correct targetGroups",
            id="a target group that does not exist",
        ),
    ],
)
async def test_an_input_without_traffic(
    application: Application, given: dict[str, Any], message: str
) -> None:
    application.input = given
    failed = await application.commit("web:1").run("ECS_TRAFFIC_ROUTING", {"canary": 30})
    assert failed.status is FAILURE
    assert message in failed.message
