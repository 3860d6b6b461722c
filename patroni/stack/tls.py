"""The settings of services that speak TLS: sections that name the files of `certificates.files`."""


def index(files: dict[str, str]) -> str:
    """The section about the connections between Mantle's processes."""
    return f"""[tls]
ca_file = "{files["authority"]}"
certificate_file = "{files["certificate"]}"
key_file = "{files["key"]}"
phase = "strict"
"""


def postgres(files: dict[str, str], *, with_certificate: bool = False, server_name: str | None = None) -> str:
    """The section about connections to PostgreSQL. `server_name`: that of all servers behind a proxy."""
    own = f'certificate_file = "{files["certificate"]}"\nkey_file = "{files["key"]}"\n' if with_certificate else ""
    name = f'server_name = "{server_name}"\n' if server_name else ""
    return f"""[postgres.tls]
ca_file = "{files["authority"]}"
{own}{name}"""


def https(files: dict[str, str]) -> str:
    """The section about a gateway's users."""
    return f"""[https]
certificate_file = "{files["certificate"]}"
key_file = "{files["key"]}"
"""


def pgbouncer(files: dict[str, str]) -> str:
    """The lines about both sides of a PgBouncer."""
    return f"""client_tls_sslmode = require
client_tls_cert_file = {files["certificate"]}
client_tls_key_file = {files["key"]}
server_tls_sslmode = verify-full
server_tls_ca_file = {files["authority"]}
"""
