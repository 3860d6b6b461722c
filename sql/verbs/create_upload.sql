--- gateway: Begins a multipart upload under a new id
CREATE FUNCTION mantle.create_upload_delegated(
    p_id bigint, p_ns bigint, p_key text, p_principal int, p_grp int, p_content_type text, p_user_metadata jsonb,
    p_checksum_algorithm text, p_checksum_type text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE v_code text;
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    v_code := coalesce(
        mantle.namespace_fault(p_ns),
        CASE WHEN (octet_length(p_key) BETWEEN 1 AND {KEY_BYTES_MAX} AND p_principal >= 0 AND p_grp >= 0
                   AND p_checksum_type IN ('FULL_OBJECT', 'COMPOSITE'))
                  IS NOT TRUE THEN '{invalid_argument}' END,
        mantle.id_fault(p_id));
    IF v_code IS NULL THEN
        INSERT INTO mantle.uploads (id, ns, key, principal, grp, content_type, user_metadata, checksum_algorithm,
                                    checksum_type)
        VALUES (p_id, p_ns, p_key, p_principal, p_grp, p_content_type, p_user_metadata, p_checksum_algorithm,
                p_checksum_type)
        -- The statement may be sent again after its connection broke.
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_id]));
    RETURN v_code;
END $$;
