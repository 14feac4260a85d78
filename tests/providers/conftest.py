"""What tests of providers share."""

import pytest


@pytest.fixture(scope="package", autouse=True)
def _no_certificates():
    """Every client of an SDK would read all certificates that it trusts, 30 ms of CPU; here they call loopback alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("SSL_CERT_FILE", raising=False)
        patched.setenv("SSL_CERT_DIR", "/nowhere")
        yield
