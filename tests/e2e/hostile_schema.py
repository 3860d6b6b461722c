"""A schema whose functions, operators, types and tables have the same names as those that statements use. If a
statement uses one of them, it writes a line into the server's log.
"""

NAME = "hostile"
# A name, its arguments, and what it returns.
_FUNCTIONS = (
    ("pg_current_wal_flush_lsn", "", "pg_lsn", "'0/0'"),
    ("pg_current_wal_insert_lsn", "", "pg_lsn", "'0/0'"),
    ("clock_timestamp", "", "timestamptz", "'epoch'"),
    ("now", "", "timestamptz", "'epoch'"),
    ("current_setting", "text", "text", "'1'"),
    ("current_database", "", "name", "'x'"),
    ("cardinality", "text[]", "int", "0"),
    ("string_to_array", "text, text", "text[]", "'{}'"),
    ("unnest", "text[]", "text", "''"),
    ("starts_with", "text, text", "boolean", "false"),
    ("acldefault", '"char", oid', "aclitem[]", "'{}'"),
    ("to_regprocedure", "text", "regprocedure", "NULL"),
    ("to_regclass", "text", "regclass", "NULL"),
    ("pg_terminate_backend", "int, bigint", "boolean", "false"),
    ("format", "text, text", "text", "''"),
    ("length", "text", "int", "0"),
)
_OPERANDS = ("bigint", "int", "text", "name", "oid", "boolean", "uuid", "timestamptz", "numeric", "pg_lsn")
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_ARITHMETIC = ("+", "-", "*")
_TABLES = (
    "pg_proc",
    "pg_prepared_xacts",
    "pg_replication_slots",
    "pg_class",
    "pg_roles",
    "pg_extension",
    "pg_namespace",
)
_TYPES = ("text", "name", "int8", "int4", "bool")


def _catalog(types: str) -> str:
    """The types themselves, wherever a schema has others of their names."""
    return ", ".join(
        one if one.startswith('"') else f"pg_catalog.{_INTERNAL.get(one, one)}" for one in types.split(", ") if one
    )


_INTERNAL = {"bigint": "int8", "int": "int4", "boolean": "bool"}


def script() -> str:
    """Makes the schema, for everybody."""
    lines = [
        f"CREATE SCHEMA {NAME};",
        f"CREATE FUNCTION {NAME}.told(pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE WARNING 'hostile: % was used', $1; RETURN true; END $$;",
    ]
    for name, arguments, returns, value in _FUNCTIONS:
        lines.append(
            f"CREATE FUNCTION {NAME}.{name}({_catalog(arguments)}) RETURNS {_catalog(returns)} LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM {NAME}.told('{name}'); RETURN {value}; END $$;"
        )
    for number, of in enumerate(_OPERANDS):
        for place, operator in enumerate(_COMPARISONS):
            lines.append(_operator(f"c{number}_{place}", operator, of, "pg_catalog.bool", "true"))
    for number, of in enumerate(("bigint", "int", "numeric")):
        for place, operator in enumerate(_ARITHMETIC):
            lines.append(_operator(f"a{number}_{place}", operator, of, _catalog(of), "1"))
    lines += [f"CREATE VIEW {NAME}.{table} AS SELECT {NAME}.told('{table}') AS oid;" for table in _TABLES]
    check = f"AS pg_catalog.varchar CHECK ({NAME}.told"
    lines += [f"CREATE DOMAIN {NAME}.{name} {check}('{name}'));" for name in _TYPES]
    lines += [f"GRANT USAGE ON SCHEMA {NAME} TO PUBLIC;", f"GRANT SELECT ON ALL TABLES IN SCHEMA {NAME} TO PUBLIC;"]
    return "\n".join(lines)


def _operator(function: str, operator: str, of: str, returns: str, value: str) -> str:
    operand = _catalog(of)
    return (
        f"CREATE FUNCTION {NAME}.{function}({operand}, {operand}) RETURNS {returns} LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM {NAME}.told('{operator} of {of}'); RETURN {value}; END $$;"
        f"CREATE OPERATOR {NAME}.{operator} (LEFTARG = {operand}, RIGHTARG = {operand}, FUNCTION = {NAME}.{function});"
    )
