"""Host names and addresses, without looking anything up."""

from ipaddress import ip_address

from skymount.errors import MalformedError


def is_loopback(host: str) -> bool:
    """Whether a host name or address always means the machine that looks it up (RFC 6761)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def parse_loopback(address: str) -> tuple[str, int]:
    """Parse HOST:PORT of this machine, an IPv6 host in brackets; 0 picks a free port."""
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536
    if not colon or not is_port or (":" in host) != host.startswith("["):
        raise MalformedError(f"not an address like 127.0.0.1:9464: {address[:80]!r}")
    if not is_loopback(host):
        raise MalformedError(f"not an address of this machine alone, as 127.0.0.1: {host[:80]!r}")
    return host.strip("[]"), int(port)
