--- gateway: One background operation of the principal that started it (0: of any principal), or no row
CREATE FUNCTION mantle.operation(p_principal int, p_id uuid)
RETURNS TABLE (
    id uuid, ns bigint, kind text, state text, directory_id bigint, objects bigint, directories bigint, bytes bigint,
    created timestamptz, finished timestamptz) LANGUAGE plpgsql STABLE {as_owner} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT o.id, o.ns, o.kind, o.state, o.directory_id, o.objects, o.directories, o.bytes, o.created, o.finished
      FROM mantle.operations o WHERE o.pid = 1 AND o.id = p_id AND (o.principal = p_principal OR p_principal = 0);
END $$;
