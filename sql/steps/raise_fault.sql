--- Raises one of our SQLSTATEs; does nothing for NULL
CREATE FUNCTION mantle.raise_fault(p_code text) RETURNS void LANGUAGE plpgsql VOLATILE STRICT AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = mantle.error_meaning(p_code);
END $$;
