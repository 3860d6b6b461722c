--- Raises a fault: one of our SQLSTATEs, or PostgreSQL's of a read-only transaction; does nothing for NULL
CREATE FUNCTION mantle.raise_fault(p_code text) RETURNS void LANGUAGE plpgsql VOLATILE STRICT AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = coalesce(
        mantle.error_meaning(p_code), 'cannot execute a mutation of mantle in a read-only transaction');
END $$;
