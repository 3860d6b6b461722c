--- Directory renames that were committed or aborted; no row: neither yet
-- An attempt is the Raft log index of its prepare; above 2^40 it also counts the moves
-- of the namespace between groups, whose logs have other indexes. The unique key decides between a commit and the
-- leader's abort: the first insert wins.
CREATE TABLE mantle.rename_attempts (
    ns         bigint NOT NULL,
    principal  int NOT NULL,
    request_id uuid NOT NULL,
    attempt    bigint NOT NULL,
    state      text NOT NULL CHECK (state IN ('committed', 'aborted')),
    created    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (ns, principal, request_id, attempt)
);
--- By age, for the purge
CREATE INDEX rename_attempts_created ON mantle.rename_attempts (created);
SELECT pg_catalog.pg_extension_config_dump('mantle.rename_attempts', '');
COMMENT ON INDEX mantle.rename_attempts_pkey IS 'Decides between a rename''s commit and its abort';
