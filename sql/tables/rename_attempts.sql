-- Attempts of directory renames, by the Raft index of their prepare, and above that (2^40) the moves of the namespace from group
-- to group, whose logs have other indexes. The unique key decides between a commit and the
-- leader's abort: whoever inserts first.
CREATE TABLE mantle.rename_attempts (
    ns         bigint NOT NULL,
    principal  int NOT NULL,
    request_id uuid NOT NULL,
    attempt    bigint NOT NULL,
    state      text NOT NULL CHECK (state IN ('committed', 'aborted')),
    created    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (ns, principal, request_id, attempt)
);
CREATE INDEX rename_attempts_created ON mantle.rename_attempts (created);
SELECT pg_catalog.pg_extension_config_dump('mantle.rename_attempts', '');
COMMENT ON TABLE mantle.rename_attempts IS 'Directory renames that committed or were aborted; no row: neither';
COMMENT ON INDEX mantle.rename_attempts_pkey IS 'Decides between a rename''s commit and its abort';
COMMENT ON INDEX mantle.rename_attempts_created IS 'By age: what is to be purged';
