# SPDX-License-Identifier: Apache-2.0
"""A secret is encrypted in a form that its piped decrypts, as the piped's reports tell."""

from pathlib import Path

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped_mask import reported_config
from pipecd.config.read import read_piped
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding
from pipecd.secrets.encrypter import encrypt_for_piped

VECTORS = Path(__file__).parent.parent / "spec" / "vectors"
PRIVATE = (VECTORS / "secret_private.pem").read_bytes()
PUBLIC = (VECTORS / "secret_public.pem").read_text()
CART = Binding("shop", "site", "cart/app.pipecd.yaml")
FILE = """\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyData: a2V5
  apiAddress: localhost:9080
  secretManagement:
    type: KEY_PAIR
    config: {privateKeyFile: /private, publicKeyFile: /public}
"""


def piped(config: str) -> Piped:
    encryption = Piped.SecretEncryption(type="KEY_PAIR", public_key=PUBLIC)
    return Piped(name="p", config=config, secret_encryption=encryption)


def reported(file: str) -> str:
    return reported_config(read_piped(file, file="p.yaml", catalog=load_catalog()).spec)


@pytest.mark.parametrize(
    ("config", "is_bound"),
    [
        pytest.param(reported(FILE), True, id="a piped with the default settings"),
        pytest.param(reported(f"{FILE}    forms: [bound]\n"), True, id="only bound secrets"),
        pytest.param(reported(f"{FILE}    forms: [unbound]\n"), False, id="no bound secrets"),
        pytest.param("secretManagement: {type: KEY_PAIR, config: {}}", False, id="an older piped"),
        pytest.param("secretManagement:\n  type: KEY_PAIR\n", False, id="a piped of upstream"),
        pytest.param("", False, id="a piped that reported nothing"),
        pytest.param("- bound", False, id="another document"),
        pytest.param("secretManagement: {forms: {bound: 1}}", False, id="no list of forms"),
        pytest.param("a: [", False, id="invalid YAML"),
    ],
)
def test_a_secret_is_bound_if_the_piped_reports_that_it_decrypts_bound_ones(
    config: str, is_bound: bool
) -> None:
    encrypted = encrypt_for_piped(piped(config), "hunter22", binding=CART)
    assert encrypted.binding == (CART if is_bound else None)
    assert encrypted.text.startswith("bound.v1.") is is_bound
    assert hybrid.decrypt(PRIVATE, encrypted.text, binding=CART) == "hunter22"


@pytest.mark.parametrize(
    ("path", "filename", "bound_to"),
    [
        pytest.param("cart", "app.pipecd.yaml", "cart/app.pipecd.yaml", id="a directory"),
        pytest.param("./a/../cart/", "x.yaml", "cart/x.yaml", id="a path with dots"),
        pytest.param(".", "app.pipecd.yaml", "app.pipecd.yaml", id="the root of a repository"),
        pytest.param("cart", "", "cart/.pipe.yaml", id="registered without a file name"),
    ],
)
def test_a_secret_of_an_application_is_bound_to_its_file(
    path: str, filename: str, bound_to: str
) -> None:
    repository = ApplicationGitRepository(id="site")
    git_path = ApplicationGitPath(repo=repository, path=path, config_filename=filename)
    application = Application(id="a", project_id="shop", git_path=git_path)
    assert Binding.of_application(application) == Binding("shop", "site", bound_to)
