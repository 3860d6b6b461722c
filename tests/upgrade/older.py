"""An artificial older version: the current install script with a few changes undone, and the hand-written upgrade from
it.

It exercises every kind of change that an upgrade makes, whether or not a released version is frozen.
"""

VERSION = "0.0.1"

# Objects that the older version lacks, as statements of the install script name them outside of a function's body.
MISSING = (
    "mantle.usage(",
    "mantle.usage ",
    "mantle.namespace_grants",
    "mantle.small_objects",
    "mantle.inline",
    "mantle.check_inline",
    "prune_queue_queued",
    "mantle.index_groups.changes",
    "POLICY analyst ON mantle.namespaces",
)

# What it has in another form.
CHANGED = (
    ("VALUES (1, mantle.new_slot_name(1))", "VALUES (1, 'mantle_index_1')"),
    (",\n    changes           bigint NOT NULL DEFAULT 0\n)", "\n)"),
    (
        "CREATE FUNCTION mantle.queue_pruning(",
        "CREATE FUNCTION mantle.gone() RETURNS int LANGUAGE sql AS 'SELECT 1';\nCREATE FUNCTION mantle.queue_pruning(",
    ),
    ("ORDER BY n.name\n$$", "ORDER BY n.name DESC\n$$"),
    ("COMMENT ON TABLE mantle.meta IS '", "COMMENT ON TABLE mantle.meta IS 'Older: "),
)

# What it grants, and no later version does.
WITHDRAWN = "GRANT EXECUTE ON FUNCTION mantle.list_namespaces() TO mantle_analyst;\n"

WAY = """
-- Gone, withdrawn.
DROP FUNCTION mantle.gone();
REVOKE EXECUTE ON FUNCTION mantle.list_namespaces() FROM mantle_analyst;
-- New in a table, new tables and PostgreSQL indexes.
ALTER TABLE mantle.index_groups ADD COLUMN changes bigint NOT NULL DEFAULT 0;
--@ CREATE TABLE mantle.namespace_grants
--@ SELECT pg_catalog.pg_extension_config_dump('mantle.namespace_grants'
--@ CREATE INDEX prune_queue_queued
--@ CREATE TABLE mantle.inline
--@ ALTER TABLE mantle.inline
--@ SELECT pg_catalog.pg_extension_config_dump('mantle.inline'
--@ repeatable
-- Policies name a function, so they come after it.
--@ CREATE POLICY analyst ON mantle.namespaces
--@ COMMENT ON POLICY analyst ON mantle.namespaces
"""


def install_script(statements: list[str]) -> str:
    """The older version's install script, from the current one's statements."""
    kept = [
        f"{statement};\n" for statement in statements if not any(name in statement.split("$")[0] for name in MISSING)
    ]
    script = "".join(kept) + WITHDRAWN
    for current, older in CHANGED:
        assert current in script, f"the install script no longer has {current!r}"
        script = script.replace(current, older)
    return script
