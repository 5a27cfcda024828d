"""Host names and addresses, without looking anything up."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether a host name or address always means the machine that looks it up (RFC 6761)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
