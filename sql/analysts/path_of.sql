--- analyst: Path of a directory or object by its id; a directory's ends in a slash (empty: the root); NULL if none
-- Directories are found by their id (PostgreSQL index meta_directory_id). An object's id has no index, so searching
-- for an object reads its namespace.
CREATE FUNCTION mantle.path_of(ns text, id bigint) RETURNS text LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    v_ns bigint := (SELECT n.ns FROM mantle.namespaces n WHERE n.name = path_of.ns);
    v_id bigint := path_of.id;
    v_entry record;
    v_path text := '';
BEGIN
    -- At most as many levels as a path may have, so that a cycle, which check() reports, cannot hang this.
    FOR i IN 0..128 LOOP
        IF v_id = v_ns THEN
            RETURN v_path;
        END IF;
        SELECT m.pid, m.name INTO v_entry
          FROM mantle.meta m WHERE m.id = v_id AND m.ns = v_ns AND m.explicit IS NOT NULL LIMIT 1;
        IF NOT FOUND AND i = 0 THEN
            SELECT m.pid, m.name INTO v_entry
              FROM mantle.meta m WHERE m.ns = v_ns AND m.id = v_id AND m.ts = 0 LIMIT 1;
        END IF;
        EXIT WHEN NOT FOUND;
        v_path := v_entry.name || v_path;
        v_id := v_entry.pid;
    END LOOP;
    RETURN NULL;
END $$;
