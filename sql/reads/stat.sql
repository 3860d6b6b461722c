-- Reads entries by place. The fast path of mantle.stat scans the primary key (extension/src/reads/stat.rs); the first
-- function here is its fallback.

--- What the fast path of mantle.stat leaves; one namespace, or one for each element
-- One primary-key lookup per element, in the calling statement's snapshot.
CREATE FUNCTION mantle.stat_fallback(p_ns bigint[], p_pid bigint[], p_name text[])
RETURNS TABLE (ord int, code text, name text, {entry.declared})
LANGUAGE plpgsql STABLE {as_caller} SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_ns bigint;
    v_pid bigint;
    v_name text;
BEGIN
    FOR i IN 1..greatest(cardinality(p_pid), cardinality(p_name)) LOOP
        -- Citus plans ahead only for plain variables.
        v_ns := p_ns[CASE cardinality(p_ns) WHEN 1 THEN 1 ELSE i END];
        v_pid := p_pid[i];
        v_name := p_name[i];
        SELECT {entry.columns_of_e} INTO {entry.columns} FROM mantle.meta e
         WHERE e.pid = v_pid AND e.name = v_name AND e.ts = 0 AND e.ns = v_ns AND e.id IS NOT NULL;
        ord := i; name := v_name; code := CASE WHEN id IS NULL THEN '{not_found}' END;
        RETURN NEXT;
    END LOOP;
END $$;

--- gateway: Entries by place: a name with a slash is a directory (the root: pid 0). {not_found} if there is none
CREATE FUNCTION mantle.stat(p_ns bigint, p_pid bigint[], p_name text[])
RETURNS TABLE (ord int, code text, name text, {entry.declared})
LANGUAGE c STABLE {as_owner} AS 'MODULE_PATHNAME', 'mantle_stat';

--- gateway: Entries by place that are on this node, for elements of several namespaces (one for each element, or one for all).
--- Of each element what mantle.stat answers of it, as a row of the binary COPY format; {wrong_node} if it is on another node, or
--- its shard is locked; neither if it should be read alone. p_inline: whether the row has a column more where the entry's bytes
--- are inside PostgreSQL: these bytes (P62)
CREATE FUNCTION mantle.stat_local(p_ns bigint[], p_pid bigint[], p_name text[], p_inline boolean[] DEFAULT NULL)
RETURNS TABLE (ord int, code text, entry bytea)
LANGUAGE c STABLE {as_owner} AS 'MODULE_PATHNAME', 'mantle_stat_local';
