"""What the registry's client brings along; in a process of its own, because other tests import authlib, too."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import RegistrySettings
SchemaRegistry(RegistrySettings()).close()
print(sorted({"authlib", "joserfc", "cryptography"} & {name.partition(".")[0] for name in sys.modules}))
from authlib.integrations.httpx_client import OAuth2Client
print(OAuth2Client.__module__)
"""


def test_the_registry_s_client_comes_without_authlib_which_others_can_still_import() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "authlib.integrations.httpx_client.oauth2_client"]
