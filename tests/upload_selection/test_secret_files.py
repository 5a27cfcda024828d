"""W8: Secrets are known by their names and by their forms."""

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from skymount.keyring import Keyring
from skymount.portal.ledger.ledger import Ledger
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.upload_selection.secret_files import HEAD_LIMIT, reason_of_form, reason_of_name
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.skykey import Kind

BODY = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg\n"


@pytest.mark.parametrize(
    "path",
    [
        *(".env", ".ENV.local", ".envrc", ".ssh", ".Ssh", ".gnupg", "me.P12", "me.pfx", "me.ppk"),
        *(".netrc", "_netrc", ".pgpass", ".git-credentials", ".aws", ".AWS", ".kube", ".my.cnf"),
        *("x/.docker/config.json", ".DOCKER/Config.json", ".config/gh", ".cargo/credentials.toml"),
        *(".git", "a/.hg", "CVS", ".notes.swp", "notes~", "#notes#", ".#notes", ".DS_Store"),
        *(".bash_history", "pw.kdbx", ".config/skymount", "a/.local/share/skymount"),
    ],
)
def test_names(path: str) -> None:
    assert reason_of_name(f"/home/ann/{path}")


@pytest.mark.parametrize(
    "path",
    [
        *("environment.txt", "git/x", "a.envoy", "notes.swpx", "~notes", ".gitignore", "cvs"),
        *("config.json", "docker/config.json", "aws", "skymount", "share/skymount", ".npmrc"),
    ],
)
def test_names_of_other_things(path: str) -> None:
    assert reason_of_name(f"/home/ann/{path}") == ""


def openssl(where: Path, *command: str) -> None:
    subprocess.run(["openssl", *command], cwd=where, check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys as programs write them; those whose names begin with `public` are none."""
    for program in ("openssl", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    where = tmp_path_factory.mktemp("keys")
    lines = """
        genrsa -out rsa.pem 2048
        rsa -in rsa.pem -traditional -out rsa-pkcs1.pem
        rsa -in rsa.pem -traditional -outform DER -out rsa-pkcs1.der
        pkcs8 -topk8 -nocrypt -in rsa.pem -outform DER -out rsa-pkcs8.der
        pkcs8 -topk8 -passout pass:x -in rsa.pem -outform DER -out encrypted.der
        pkcs8 -topk8 -passout pass:x -v1 PBE-SHA1-3DES -in rsa.pem -outform DER -out encrypted1.der
        ecparam -name prime256v1 -genkey -noout -outform DER -out ec.der
        genpkey -algorithm ed25519 -outform DER -out ed25519.der
        req -x509 -key rsa.pem -subj /CN=x -days 9 -out public.pem
        req -new -key rsa.pem -subj /CN=x -outform DER -out public-request.der
        x509 -in public.pem -outform DER -out public.der
        rsa -in rsa.pem -pubout -outform DER -out public-spki.der
        rsa -in rsa.pem -RSAPublicKey_out -outform DER -out public-pkcs1.der
        pkcs12 -export -inkey rsa.pem -in public.pem -passout pass:x -out store
        pkcs12 -in store -passin pass:x -nodes -out bag
        crl2pkcs7 -nocrl -certfile public.pem -outform DER -out public.p7b
    """
    for line in lines.strip().splitlines():
        openssl(where, *line.split())
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", where / "ssh"], check=True)
    (where / "ssh.pub").rename(where / "public-ssh")
    pem = (where / "rsa.pem").read_text()
    (where / "both").write_text((where / "public.pem").read_text() + pem)
    (where / "account.json").write_text(json.dumps({"type": "x", "private_key": pem}))
    (where / "utf-16").write_text(pem, encoding="utf-16")
    (where / "bom").write_text(pem, encoding="utf-8-sig")
    (where / "crlf").write_text(pem, newline="\r\n")
    (where / "text.py").write_text(f'KEY = """{pem}"""\n')
    (where / "lines.py").write_text('KEY = (\n    b"' + pem.replace("\n", '\\n"\n    b"') + '")\n')
    (where / "secret.yaml").write_text("tls: |\n  " + pem.replace("\n", "\n  "))
    return where


def test_keys_as_programs_write_them(made: Path) -> None:
    """Whatever their names are. Certificates and public keys are none."""
    reasons = {}
    for path in made.iterdir():
        raw = path.read_bytes()
        reasons[path.name] = reason_of_form(raw[:HEAD_LIMIT], len(raw))
    taken = {name for name, reason in reasons.items() if not reason}
    assert taken == {name for name in reasons if name.startswith("public")}


def der(tag: int, *parts: bytes) -> bytes:
    """Return a short element of DER."""
    body = b"".join(parts)
    return bytes([tag, len(body)]) + body


@pytest.mark.parametrize(
    ("version", "name", "third", "is_key"),
    [
        (0, 0x06, 0x04, True),  # as PKCS #8 has it
        (3, 0x06, 0x30, True),  # a store of PKCS #12
        (0, 0x02, 0x04, False),
        (3, 0x02, 0x30, False),
        (0, 0x06, 0x30, False),
        (2, 0x06, 0x04, False),
    ],
)
def test_forms_near_a_key(version: int, name: int, third: int, is_key: bool) -> None:
    """A number and a sequence begin keys and other things: what they hold tells."""
    parts = der(0x02, bytes([version])), der(0x30, der(name, b"\x2b\x65\x70")), der(third, b"x")
    raw = der(0x30, *parts)
    assert reason_of_form(raw, len(raw)) == ("a private key" if is_key else "")


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN PRIVATE KEY-----\nAAAA\n",
        "\n-----BEGIN ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQdGBGV\n",
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\n",
        "PuTTY-User-Key-File-3: ssh-ed25519\n",
        "AGE-SECRET-KEY-1QQ\n",
        "# created: 2026-01-01\n# public key: age1q\nAGE-SECRET-KEY-1" + "Q" * 58 + "\n",
        "untrusted comment: minisign encrypted secret key\nRWRT\n",
        "[Interface]\nPrivateKey = " + "a" * 43 + "=\n",
        "-----BEGIN RSA PRIVATE KEY-----\n" + BODY * 2000,
        "Created: 20261126T023916\nKey: (private-key (rsa (n #00DE3F#)\n",
        "(21:protected-private-key(3:ecc(5:curve7:Ed25519)",
        '{"x": ["skykey:' + "A" * 76 + '?name=x"]}',
    ],
)
def test_keys_as_text(text: str) -> None:
    raw = text.encode()
    assert reason_of_form(raw[:HEAD_LIMIT], len(raw))


@pytest.mark.parametrize(
    "text",
    [
        "It begins with -----BEGIN PRIVATE KEY----- and goes on in base64.\n",
        "```\n-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n```\n",
        'if line == "-----BEGIN PRIVATE KEY-----":\n    return AGE-SECRET-KEY-1\n',
        "-----BEGIN CERTIFICATE-----\n" + BODY,
        "-----BEGIN PUBLIC KEY-----\n" + BODY,
        'api_key = os.environ["API_KEY"]\n',
        '[project]\nname = "x"\nportals = 3\n',
        "portals = ['a', 'b']\n",
        "a" * 127 + "\n",
        "skykey:name\n",
        "(private-key (see below))\n",
        "skykey:" + "A" * 76 + " is how a skykey looks.\n" + "It goes on.\n" * 400,
        "",
    ],
)
def test_texts_about_keys(text: str) -> None:
    assert reason_of_form(text.encode(), len(text)) == ""


@pytest.mark.parametrize(
    ("name", "text", "is_secret"),
    [
        (".npmrc", "//registry.example/:_authToken=npm_abc\n", True),
        (".NPMRC", "registry=https://registry.example\n_password = abc\n", True),
        (".npmrc", "//registry.example/:_authToken=${TOKEN}\n; _auth=x\n", False),
        (".npmrc", "registry=https://registry.example\n", False),
        (".pypirc", "[pypi]\nusername = __token__\npassword = pypi-abc\n", True),
        (".pypirc", "[distutils]\nindex-servers = pypi\n", False),
        (".yarnrc.yml", 'npmAuthToken: "abc"\n', True),
        (".yarnrc.yml", "nodeLinker: node-modules\n", False),
    ],
)
def test_settings_with_a_token(name: str, text: str, is_secret: bool) -> None:
    assert bool(reason_of_form(text.encode(), len(text), [name])) == is_secret


@pytest.mark.parametrize(
    "text",
    [
        'portals = ["https://portal.example"]\n',
        '\ufeff# mine\n\napi_key = "abc"\n',
        '[mounts.home]\nmountpoint = "~/sky"\napi_key = "abc"\n',
        '[[portals]]\nurl = "https://portal.example"\napi_key = "abc"\n',
        'headers = { Cookie = "a=b" }\n',
        'api_key = "abc"\n' + "# more\n" * 5000 + "x = [\n",
    ],
)
def test_a_configuration(text: str) -> None:
    raw = text.encode()
    assert reason_of_form(raw[:HEAD_LIMIT], len(raw)) == "a configuration of skymount"


async def test_what_skymount_keeps(tmp_path: Path) -> None:
    """As skymount itself writes it."""
    pair = SigningKeyPair.from_seed("x")
    Keyring(tmp_path / "keys").add("home", pair)
    store = SkykeyStore.open(tmp_path)
    skykey = await store.create("name", Kind.PRIVATE)
    Ledger.open(tmp_path / "ledger.sqlite3").close()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("portal.json"))
    written = {
        "a private key of skymount": (tmp_path / "keys/home").read_bytes(),
        "a skykey": (tmp_path / "skykeys.json").read_bytes(),
        "a ledger of skymount": (tmp_path / "ledger.sqlite3").read_bytes(),
        "an archive of a portal, which may hold skykeys": archive.getvalue(),
        "128 hex digits, as a private key or a seed of skymount has": pair.private_hex.encode(),
    }
    assert reason_of_form(skykey.text.encode(), 100) == "a skykey"
    assert {reason: reason_of_form(raw, len(raw)) for reason, raw in written.items()} == {
        reason: reason for reason in written
    }
