# SPDX-License-Identifier: Apache-2.0
"""The applications, pipelines and pipeds of the project of the pictures, as tables."""

from dataclasses import dataclass

from pipecd.model.deployment import ManualOperation

MINUTE, HOUR, DAY = 60, 3600, 86400


@dataclass(frozen=True)
class PicturedPiped:
    """A piped; `seen_ago` is None if it was never started."""

    name: str
    description: str
    version: str = ""
    plugins: tuple[tuple[str, tuple[str, ...]], ...] = ()
    providers: tuple[tuple[str, str], ...] = ()
    registered_ago: int = 200 * DAY
    started_ago: int = 9 * DAY
    seen_ago: int | None = 20
    is_disabled: bool = False


# The version of the control plane stands for an empty one.
CURRENT = "current"
PIPEDS = (
    PicturedPiped(
        "tokyo",
        "Production clusters in Tokyo and Osaka",
        CURRENT,
        (("kubernetes", ("tokyo", "osaka")), ("waitapproval", ()), ("analysis", ())),
    ),
    PicturedPiped(
        "staging",
        "The staging cluster; also the preview environments",
        CURRENT,
        (("kubernetes", ("staging",)), ("scriptrun", ()), ("wait", ())),
        started_ago=26 * HOUR,
    ),
    PicturedPiped(
        "aws",
        "Functions and containers of the AWS account 4471",
        "v0.55.1",
        providers=(("ECS", "ecs-main"), ("LAMBDA", "lambda-main")),
        started_ago=41 * DAY,
    ),
    PicturedPiped(
        "infra",
        "Networks, buckets and databases",
        CURRENT,
        (("terraform", ("network", "data")),),
        started_ago=3 * DAY,
        seen_ago=33 * MINUTE,
    ),
    PicturedPiped(
        "gcp",
        "Cloud Run in europe-west1",
        CURRENT,
        providers=(("CLOUDRUN", "cloudrun-eu"),),
        started_ago=17 * DAY,
    ),
    PicturedPiped("singapore", "", registered_ago=2 * HOUR, seen_ago=None),
    PicturedPiped(
        "old-cluster",
        "Replaced by tokyo in spring",
        "v0.48.9",
        providers=(("KUBERNETES", "kubernetes-default"),),
        registered_ago=700 * DAY,
        started_ago=230 * DAY,
        seen_ago=88 * DAY,
        is_disabled=True,
    ),
)


@dataclass(frozen=True)
class PicturedStage:
    """A stage of a pipeline and how long it usually takes."""

    name: str
    seconds: int
    description: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    operation: ManualOperation = ManualOperation.NONE
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """The stages of a pipeline sync, and the stage that rolls back."""

    stages: tuple[PicturedStage, ...]
    rollback: str
    summary: str


_APPROVAL = PicturedStage(
    "WAIT_APPROVAL",
    11 * MINUTE,
    operation=ManualOperation.APPROVE,
    operators=("ann", "kenji", "maria"),
)
CANARY = Pipeline(
    (
        PicturedStage(
            "K8S_CANARY_ROLLOUT", 38, "Start 10 % as canary", (("canary-percentage", "10"),)
        ),
        PicturedStage("ANALYSIS", 10 * MINUTE, operation=ManualOperation.SKIP),
        _APPROVAL,
        PicturedStage("K8S_PRIMARY_ROLLOUT", 94),
        PicturedStage("K8S_CANARY_CLEAN", 12),
    ),
    "K8S_ROLLBACK",
    "Sync progressively because the pod template was changed",
)
SYNC = Pipeline((PicturedStage("K8S_SYNC", 47),), "K8S_ROLLBACK", "Quick sync by scaling workloads")
TERRAFORM = Pipeline(
    (
        PicturedStage("TERRAFORM_PLAN", 34),
        _APPROVAL,
        PicturedStage("TERRAFORM_APPLY", 4 * MINUTE + 10),
    ),
    "TERRAFORM_ROLLBACK",
    "Sync with the pipeline of its configuration",
)
ECS = Pipeline(
    (
        PicturedStage("ECS_CANARY_ROLLOUT", 151),
        PicturedStage(
            "ECS_TRAFFIC_ROUTING",
            9,
            "Route 20 % to the canary",
            (("primary-percentage", "80"), ("canary-percentage", "20")),
        ),
        PicturedStage("WAIT", 5 * MINUTE, operation=ManualOperation.SKIP),
        PicturedStage("ECS_PRIMARY_ROLLOUT", 172),
        PicturedStage("ECS_CANARY_CLEAN", 31),
    ),
    "ECS_ROLLBACK",
    "Sync progressively because the task definition was changed",
)
LAMBDA = Pipeline(
    (
        PicturedStage("LAMBDA_CANARY_ROLLOUT", 7),
        PicturedStage("LAMBDA_PROMOTE", 4, metadata=(("promote-percentage", "10"),)),
        PicturedStage("WAIT", 2 * MINUTE, operation=ManualOperation.SKIP),
        PicturedStage("LAMBDA_PROMOTE", 4, metadata=(("promote-percentage", "100"),)),
    ),
    "LAMBDA_ROLLBACK",
    "Sync progressively because the image was changed",
)
CLOUDRUN = Pipeline((PicturedStage("CLOUDRUN_SYNC", 26),), "CLOUDRUN_ROLLBACK", "Quick sync")


@dataclass(frozen=True)
class PicturedApplication:
    """An application; it is deployed about every `every` days, and every `fails`th one fails."""

    name: str
    piped: str
    pipeline: Pipeline
    labels: tuple[tuple[str, str], ...]
    version: tuple[int, int] = (1, 4)
    plugin: str = "kubernetes"
    targets: tuple[str, ...] = ("tokyo",)
    provider: str = ""
    every: float = 2.0
    fails: int = 9
    description: str = ""
    subjects: tuple[str, ...] = ()


def _labels(team: str, env: str = "prod", tier: str = "back") -> tuple[tuple[str, str], ...]:
    return (("env", env), ("team", team), ("tier", tier))


APPLICATIONS = (
    PicturedApplication(
        "cart",
        "tokyo",
        CANARY,
        _labels("checkout"),
        (2, 31),
        every=1.2,
        description="Keeps what a customer has chosen. On call: **checkout team**, see the "
        "[runbook](https://wiki.example/cart).",
        subjects=(
            "Keep the cart of a signed-out visitor for 30 days",
            "Raise the memory limit to 512 MiB",
            "Do not lose the voucher when a line is removed",
            "Read prices in one query",
        ),
    ),
    PicturedApplication(
        "checkout",
        "tokyo",
        CANARY,
        _labels("checkout"),
        (5, 12),
        every=1.5,
        targets=("tokyo", "osaka"),
        description="Takes the order and the payment. On call: **checkout team**, see the "
        "[runbook](https://wiki.example/checkout).",
        subjects=(
            "Retry card tokens once",
            "Ask for the second factor only above 30 €",
            "Show the delivery date before the payment",
        ),
    ),
    PicturedApplication(
        "payments",
        "tokyo",
        CANARY,
        _labels("payments"),
        (3, 8),
        every=2.6,
        fails=7,
        subjects=("Sign settlement files with the new key", "Time out calls to the bank after 8 s"),
    ),
    PicturedApplication(
        "search",
        "tokyo",
        CANARY,
        _labels("discovery"),
        (1, 47),
        every=1.4,
        fails=4,
        subjects=(
            "Rank exact matches of the brand first",
            "Load the synonyms at start",
            "Index in batches of 500",
        ),
    ),
    PicturedApplication(
        "storefront",
        "tokyo",
        SYNC,
        _labels("web", tier="front"),
        (7, 2),
        every=0.9,
        targets=("tokyo", "osaka"),
        description="The shop that customers see.",
        subjects=(
            "Lazy-load the pictures below the fold",
            "New footer",
            "Fix the sort order of sizes",
            "Translate the returns page",
        ),
    ),
    PicturedApplication(
        "recommendations-batch-scorer-nightly",
        "tokyo",
        SYNC,
        _labels("discovery"),
        (0, 9),
        every=6,
        subjects=("Score 50,000 items in parallel", "Skip items that are sold out"),
    ),
    PicturedApplication(
        "storefront-staging",
        "staging",
        SYNC,
        _labels("web", "staging", "front"),
        (7, 3),
        targets=("staging",),
        every=0.8,
        fails=5,
        subjects=("Try the new basket icon", "Lazy-load the pictures below the fold"),
    ),
    PicturedApplication(
        "checkout-staging",
        "staging",
        SYNC,
        _labels("checkout", "staging"),
        (5, 13),
        targets=("staging",),
        every=1.1,
        subjects=("Retry card tokens once", "Log the reason of a declined card"),
    ),
    PicturedApplication(
        "mailer",
        "staging",
        SYNC,
        _labels("crm", "staging"),
        (1, 0),
        targets=("staging",),
        every=5,
        subjects=("Send receipts as plain text, too",),
    ),
    PicturedApplication(
        "invoices",
        "aws",
        ECS,
        _labels("payments"),
        (4, 4),
        provider="ecs-main",
        plugin="ECS",
        every=3.1,
        subjects=("Number invoices per country", "Render PDFs with two workers"),
    ),
    PicturedApplication(
        "thumbnailer",
        "aws",
        LAMBDA,
        _labels("web", tier="front"),
        (1, 18),
        provider="lambda-main",
        plugin="LAMBDA",
        every=4.2,
        subjects=("Emit WebP", "Give it 1,024 MB"),
    ),
    PicturedApplication(
        "network",
        "infra",
        TERRAFORM,
        _labels("platform"),
        (0, 6),
        plugin="terraform",
        targets=("network",),
        every=7,
        subjects=("Open 5432 for the reports", "Second NAT gateway"),
    ),
    PicturedApplication(
        "orders-db",
        "infra",
        TERRAFORM,
        _labels("platform"),
        (0, 3),
        plugin="terraform",
        targets=("data",),
        every=11,
        subjects=("Grow the volume to 500 GiB",),
    ),
    PicturedApplication(
        "reports",
        "gcp",
        CLOUDRUN,
        _labels("finance"),
        (2, 2),
        provider="cloudrun-eu",
        plugin="CLOUDRUN",
        every=3.7,
        subjects=("Export the VAT report as CSV", "Cache the exchange rates"),
    ),
    PicturedApplication(
        "fraud-rules",
        "tokyo",
        CANARY,
        _labels("payments"),
        (0, 1),
        every=0,
        description="Registered this morning; the first deployment is being reviewed.",
    ),
    PicturedApplication(
        "newsletter",
        "tokyo",
        SYNC,
        _labels("crm"),
        (1, 1),
        every=20,
        subjects=("Stop the summer campaign",),
    ),
)
AUTHORS = ("Ann Fischer", "kenji", "Maria Souza", "deploy-bot", "Oluwaseun Adeyemi", "li.wei")
