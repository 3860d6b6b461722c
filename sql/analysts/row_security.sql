-- Which rows a role sees when it reads the tables itself. The owner, superusers, and functions that run as the owner
-- see all rows. None of those functions is granted to analysts, whose functions and views run as their caller.
-- Policies have no subquery, because Citus refuses one on a distributed table: see extension/src/row_security.rs.
ALTER TABLE mantle.meta ENABLE ROW LEVEL SECURITY;
ALTER TABLE mantle.namespaces ENABLE ROW LEVEL SECURITY;
ALTER TABLE mantle.uploads ENABLE ROW LEVEL SECURITY;
CREATE POLICY analyst ON mantle.meta FOR SELECT TO mantle_analyst USING (mantle.may_read(ns));
CREATE POLICY analyst ON mantle.namespaces FOR SELECT TO mantle_analyst USING (mantle.may_read(ns));
CREATE POLICY analyst ON mantle.uploads FOR SELECT TO mantle_analyst USING (mantle.may_read(ns));

-- The index reads a view as the owner. On Citus it also needs SELECT on the table (granted where the table is
-- distributed), and without this policy it would then silently see no row.
CREATE POLICY index ON mantle.meta FOR SELECT TO mantle_index USING (explicit IS NOT NULL);

COMMENT ON POLICY analyst ON mantle.meta IS 'Entries of the namespaces that are granted to the reading role';
COMMENT ON POLICY analyst ON mantle.namespaces IS 'Namespaces that are granted to the reading role';
COMMENT ON POLICY analyst ON mantle.uploads IS 'Uploads of the namespaces that are granted to the reading role';
COMMENT ON POLICY index ON mantle.meta IS 'Directories, for the index';
