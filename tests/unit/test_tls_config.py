"""What is said of TLS in a configuration: read, checked before anything starts, and told with what to do about it."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mpspool.cli import main
from mpspool.core import client_tls, settings, tls
from mpspool.core.certificates import CertificateError, read_certificates
from mpspool.core.errors import StartError
from mpspool.core.settings import RouterSettings, TlsSettings
from mpspool.supervisor.config.schema import PoolConfig
from mpspool.supervisor.planning.tls import look
from tests.certificates import Authority, Pair, openssl, ssl_config
from tests.configuration import load_config


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(ca: Authority) -> Pair:
    return ca.issue("the server", ("localhost", "*.example.com", "10.0.0.1"))


def config(tls: dict[str, Any], **pool: Any) -> PoolConfig:
    return PoolConfig.model_validate({"models": [{"name": "m", "base_path": "/m"}], "tls": tls, **pool})


def problem(tls: dict[str, Any]) -> str:
    """The only one that looking finds."""
    found = look(config(tls))
    assert found.settings is None
    (one,) = found.problems
    return str(one)


def refused(tmp_path: Path, text: str) -> str:
    """What reading the pool file says."""
    file = tmp_path / "pool.yaml"
    file.write_text(f"models: {{m: {{base_path: /m}}}}\ntls: {text}\n")
    with pytest.raises(StartError) as caught:
        load_config(file, {}, {})
    return "\n".join(map(str, caught.value.problems))


# -- what is read -----------------------------------------------------------------------------------


def test_without_the_section_there_is_no_tls() -> None:
    """Clear text stays the default."""
    assert look(config({})) == look(config({}, grpc_port=0))
    assert look(config({})).settings is None


def test_files_are_named_and_not_copied(ca: Authority, server: Pair) -> None:
    """The router gets paths and a digest; no text of a key is in its settings."""
    found = look(config({**server.files(), "client_ca": str(ca.cert)}))
    assert found.problems == ()
    assert found.settings is not None
    assert found.settings.verify_client  # where a CA of clients is named
    assert found.settings.key == str(server.key)
    router = RouterSettings(run_dir="", host="", grpc_port=1, rest_port=0, tls=found.settings)
    text = settings.encode(router)
    assert b"PRIVATE" not in text
    assert all(line not in text for line in server.key.read_bytes().split(b"\n")[1:-2])
    assert settings.decode(text, RouterSettings) == router
    assert found.fact == (
        "TLS on the gRPC port for localhost, *.example.com, 10.0.0.1 until "
        f"{read_certificates(server.cert.read_bytes())[0].ends:%Y-%m-%d %H:%M} UTC; clients need a certificate"
    )


def test_tensorflow_servings_file(ca: Authority, server: Pair, tmp_path: Path) -> None:
    """PEM texts within a text proto: the same key, certificate and CA; clients are verified as client_verify says."""
    file = tmp_path / "ssl.cfg"
    file.write_text(ssl_config(server, ca.pem(), verify=True))
    found = look(config({"file": str(file)}))
    assert found.problems == () == found.warnings
    assert found.settings is not None
    material = tls.read(found.settings)
    assert (material.key, material.cert) == server.pem()
    assert material.client_ca == ca.pem()
    assert material.verify_client
    assert found.settings.verify_client
    assert "PRIVATE" not in repr(material)
    file.write_text(ssl_config(server, ca.pem()))
    found = look(config({"file": str(file)}))
    assert found.settings is not None
    assert not tls.read(found.settings).verify_client
    assert not found.settings.verify_client
    assert any("custom_ca" in text and "client_verify: true" in text for text in found.warnings)


def test_paths_are_taken_from_the_files_folder_and_flags_from_here(tmp_path: Path, server: Pair) -> None:
    """As with every other path of a configuration; --ssl-config-file is TensorFlow Serving's flag."""
    file = tmp_path / "pool.yaml"
    file.write_text("models: {m: {base_path: /m}}\ntls: {key: k.pem, cert: sub/c.pem, client_ca: ca.pem}\n")
    found = load_config(file, {}, {}).tls
    assert found.key == str(tmp_path / "k.pem")
    assert found.cert == str(tmp_path / "sub" / "c.pem")
    assert found.client_ca == str(tmp_path / "ca.pem")
    file.write_text("models: {m: {base_path: /m}}\n")
    found = load_config(file, {"ssl_config_file": "ssl.cfg"}, {}).tls
    assert found.file == str(Path.cwd() / "ssl.cfg")
    found = load_config(file, {}, {"MPSPOOL_TLS_FILE": "/x/ssl.cfg"}).tls
    assert found.file == "/x/ssl.cfg"


def test_a_renewed_certificate_is_another_digest(ca: Authority, server: Pair, tmp_path: Path) -> None:
    """By it a reload knows that files with the same names hold something else."""
    key, cert = tmp_path / "key", tmp_path / "cert"
    digests = set()
    for pair in (server, ca.issue("the server"), server):
        key.write_bytes(pair.key.read_bytes())
        cert.write_bytes(pair.cert.read_bytes())
        found = look(config({"key": str(key), "cert": str(cert)})).settings
        assert found is not None
        digests.add(found.digest)
    assert len(digests) == 2


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{key: k}", "there is no cert; a server needs key and cert, or give file"),
        ("{cert: c}", "there is no key; a server needs key and cert, or give file"),
        ("{client_ca: c}", "there is no key"),
        ("{file: f, cert: c}", "file says all of it; give it alone"),
        ("{file: f, verify_client: true}", "file says all of it"),
        ("{key: k, cert: c, verify_client: true}", "verify_client needs client_ca"),
        ("{key: k, cert: c, ca: x}", "client_ca"),
        ("yes", "tls"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, text: str, said: str) -> None:
    """Found as the file is read, and told with what is missing."""
    assert said in refused(tmp_path, text)


def test_files_that_cannot_be_used(ca: Authority, server: Pair, tmp_path: Path) -> None:
    """Each with its name, what is wrong, and what to do."""
    other = ca.issue("another")
    files = server.files()
    missing = str(tmp_path / "missing.pem")
    assert problem({**files, "key": missing}) == (
        f"tls.key: {missing} cannot be read: No such file or directory; name a file that can be read, in PEM form"
    )
    assert f"tls.cert: {tmp_path} cannot be read: Is a directory;" in problem(
        {**files, "cert": str(tmp_path)}
    )
    assert problem({**files, "key": str(other.key)}) == (
        f"tls.key: {other.key} is not the key of the certificate in {server.cert}; name the two that belong together, "
        f"in {server.cert} the server's own certificate first"
    )
    swapped = problem({"key": str(server.cert), "cert": str(server.key)})
    assert swapped == (f"tls.key: {server.cert} has no -----BEGIN PRIVATE KEY-----; give the key in PEM form")
    broken = tmp_path / "broken.pem"
    broken.write_bytes(server.cert.read_bytes().replace(b"MII", b"XII", 1))
    assert problem({**files, "cert": str(broken)}).startswith(f"tls.cert: {broken} cannot be used: ")
    broken.write_bytes(server.key.read_bytes()[:60] + b"!" * 40 + server.key.read_bytes()[100:])
    assert problem({**files, "key": str(broken)}).startswith(f"tls.key: {broken} cannot be used: ")
    broken.write_text("no certificates")
    found = problem({**files, "client_ca": str(broken)})
    assert found.startswith(f"tls.client_ca: {broken} has no certificates that can be used: ")
    assert "give those of the CAs, in PEM form" in found
    broken.write_bytes(bytes(2**20 + 1))
    assert "has more than 1048576 bytes" in problem({**files, "key": str(broken)})


def test_an_encrypted_key_asks_nobody(server: Pair, tmp_path: Path) -> None:
    """A server that starts by itself has no terminal to be asked at."""
    encrypted = tmp_path / "encrypted.key"
    openssl("pkey", "-in", server.key, "-aes256", "-passout", "pass:secret", "-out", encrypted)
    assert problem({**server.files(), "key": str(encrypted)}) == (
        f"tls.key: {encrypted} is encrypted, and nobody is there to ask for its password; "
        "decrypt it, as with `openssl pkey -in FILE`"
    )


def test_an_ssl_config_file_that_cannot_be_used(ca: Authority, server: Pair, tmp_path: Path) -> None:
    """With the line and column, and none of its words, among which the key is."""
    file = tmp_path / "ssl.cfg"
    whole = ssl_config(server, verify=True)
    file.write_text(whole)
    assert problem({"file": str(file)}).startswith(
        f"tls.file: clients are to be verified, and custom_ca of {file} is empty: no client's certificate would do; "
    )
    file.write_text(ssl_config(server, ca.pem()).replace("server_cert", "server_crt"))
    found = problem({"file": str(file)})
    assert (
        f"tls.file: {file} cannot be read at line 2, column 1; it is TensorFlow Serving's SSLConfig" in found
    )
    file.write_text(whole.replace('"-----BEGIN', "'-----BEGIN", 1))
    found = problem({"file": str(file)})
    assert f"{file} cannot be read at line 1, column " in found
    assert server.key.read_text().splitlines()[1][:20] not in found
    file.write_text("client_verify: false\n")
    assert f"tls.file: {file} has no server_key;" in problem({"file": str(file)})
    file.write_bytes(b'server_key: "\xff"')
    assert f"tls.file: {file} is no text: " in problem({"file": str(file)})
    file.write_text(ssl_config(Pair(server.cert, ca.issue("another").key)))
    assert f"tls.file: server_key of {file} is not the key of the certificate in server_cert of" in problem(
        {"file": str(file)}
    )


def test_dates(ca: Authority, tmp_path: Path) -> None:
    """Expired, and not yet valid, is refused; from 30 days before the end there is a warning."""
    expired = ca.issue("old", begins_days=-20, ends_days=-10)
    early = ca.issue("young", begins_days=2, ends_days=200)
    soon = ca.issue("soon", ends_days=29.5)
    assert f"tls.cert: the certificate of old in {expired.cert} has expired on " in problem(expired.files())
    assert problem(expired.files()).endswith("; renew it")
    assert "is valid from " in problem(early.files())
    assert problem(early.files()).endswith("is this machine's clock right?")
    found = look(config(soon.files()))
    assert found.settings is not None
    until = f"{read_certificates(soon.cert.read_bytes())[0].ends:%Y-%m-%d %H:%M} UTC"
    (warning,) = found.warnings
    assert warning == (
        f"tls: the certificate of soon expires on {until}, in 29 days; renew it, then `mpspool reload`"
    )
    later = datetime.now(UTC) + timedelta(days=31)
    assert "has expired" in str(look(config(soon.files()), later).problems[0])
    chain = tmp_path / "chain.pem"
    chain.write_bytes(soon.cert.read_bytes() + expired.cert.read_bytes())
    assert "the certificate of old" in problem({"key": str(soon.key), "cert": str(chain)})


def test_a_ca_that_has_expired(ca: Authority, server: Pair) -> None:
    """No client's certificate would do any more."""
    later = datetime.now(UTC) + timedelta(days=360)
    assert not look(config({**server.files(), "client_ca": str(ca.cert)}), later).problems
    found = look(config({**server.files(), "client_ca": str(ca.cert)}), later + timedelta(days=100))
    assert {one.path for one in found.problems} == {"tls.cert", "tls.client_ca"}


def test_what_is_hardly_meant(ca: Authority, server: Pair) -> None:
    """A CA that nobody asks for, and TLS on a port that is off."""
    found = look(config({**server.files(), "client_ca": str(ca.cert), "verify_client": False}, grpc_port=0))
    assert found.settings is not None
    assert not found.settings.verify_client
    assert any(
        "is not used, for clients are not verified; set verify_client: true" in text
        for text in found.warnings
    )
    assert any("grpc_port: 0" in text for text in found.warnings)


def test_a_key_that_nobody_may_read(server: Pair, tmp_path: Path) -> None:
    """Permission is among what is looked at."""
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    key = tmp_path / "key"
    key.write_bytes(server.key.read_bytes())
    key.chmod(0)
    assert "cannot be read: Permission denied" in problem({**server.files(), "key": str(key)})


# -- certificates -----------------------------------------------------------------------------------


def test_names_of_a_certificate(ca: Authority, server: Pair) -> None:
    """Host names and addresses; the common name where there are none."""
    (found,) = read_certificates(server.cert.read_bytes())
    assert found.names == ("localhost", "*.example.com", "10.0.0.1")
    (found,) = read_certificates(ca.issue("only a common name", ()).cert.read_bytes())
    assert found.names == ("only a common name",)
    assert [one.common_name for one in read_certificates(ca.pem() + server.cert.read_bytes())] == [
        "a test's CA",
        "the server",
    ]


@given(st.data())
def test_a_damaged_certificate_is_one_error(server: Pair, data: st.DataObject) -> None:
    """Whatever bytes stand there, they are read or refused."""
    pem = server.cert.read_bytes()
    at = data.draw(st.integers(30, len(pem) - 1))
    pem = pem[:at] + data.draw(st.binary(max_size=8)) + pem[data.draw(st.integers(at, len(pem))) :]
    with contextlib.suppress(CertificateError):
        read_certificates(pem)


# -- clients ----------------------------------------------------------------------------------------


def test_a_clients_files(ca: Authority, server: Pair, tmp_path: Path) -> None:
    """What cannot be used is told before anybody is asked."""
    for given_, key, said in (
        ((str(tmp_path / "x"), "", ""), "ca", "cannot be read"),
        (("", str(server.cert), ""), "key", "goes with its key; give both, or neither"),
        (("", "", str(server.key)), "cert", "goes with its key; give both, or neither"),
        (("", str(server.cert), str(ca.issue("other").key)), "key", "is not the key of the certificate"),
    ):
        with pytest.raises(tls.TlsError, match=said) as caught:
            client_tls.read(*given_, "")
        assert caught.value.key == key
    done = CliRunner().invoke(main, ["predict", "m", "--input", "1", "--ca", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert done.output == (
        f"--ca: {tmp_path / 'x'} cannot be read: No such file or directory; name a file that can be read, "
        "in PEM form\n"
    )


def test_the_pool_here_is_known_by_its_certificate(ca: Authority, server: Pair) -> None:
    """That alone is trusted, by a name that it is for; where it verifies clients, one has to have a certificate."""
    chained = ca.issue("w", ("*.example.com",))
    found = client_tls.pinned(TlsSettings(**chained.files()))
    assert found.ca.strip() == chained.cert.read_bytes().strip()
    assert found.name == "any.example.com"
    verifying = TlsSettings(**server.files(), client_ca=str(ca.cert), verify_client=True)
    with pytest.raises(tls.TlsError, match="give --cert and --key") as caught:
        client_tls.pinned(verifying)
    assert caught.value.key == "cert"
    assert client_tls.pinned(verifying, str(server.cert), str(server.key)).pair() == server.pem()[::-1]
