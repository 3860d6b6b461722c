-- Which rows a role sees that reads the tables itself. Owner and superuser see all, and so do the functions that run as the
-- owner: none of those is granted to analysts, whose functions and views run as whoever calls them.
-- No subquery in a policy (Citus refuses one on a distributed table): see extension/src/row_security.rs.
ALTER TABLE mantle.meta ENABLE ROW LEVEL SECURITY;
ALTER TABLE mantle.namespaces ENABLE ROW LEVEL SECURITY;
CREATE POLICY analyst ON mantle.meta FOR SELECT TO mantle_analyst USING (mantle.may_read(ns));
CREATE POLICY analyst ON mantle.namespaces FOR SELECT TO mantle_analyst USING (mantle.may_read(ns));

-- The index reads a view as the owner. On Citus that is not enough, it needs SELECT on the table besides (granted where the table
-- is distributed), and without a policy it would then see nothing, silently.
CREATE POLICY index ON mantle.meta FOR SELECT TO mantle_index USING (explicit IS NOT NULL);

COMMENT ON POLICY analyst ON mantle.meta IS 'Entries of the namespaces that are granted to whoever reads';
COMMENT ON POLICY analyst ON mantle.namespaces IS 'Namespaces that are granted to whoever reads';
COMMENT ON POLICY index ON mantle.meta IS 'Directories, for the index';

COMMENT ON FUNCTION mantle.may_read IS
    'May the current role read a namespace? As granted by grant_namespace, in the statement''s snapshot (0: all of them)';
GRANT EXECUTE ON FUNCTION mantle.may_read TO mantle_analyst;
