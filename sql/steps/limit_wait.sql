-- A batch waits for its latches no longer than this: one element behind a latch that is held for long must not keep its
-- neighbours waiting. Its caller sends them singly then (PROTOCOLS 12), and a single one waits as long as it takes.
-- No fault, so NULL.
CREATE FUNCTION mantle.limit_wait(p_elements int) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_elements > 1 THEN
        PERFORM set_config('lock_timeout', '2s', true);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION mantle.limit_wait(int) IS 'Limits how long a batch of more than one element waits for latches: 55P03 after that';
REVOKE ALL ON FUNCTION mantle.limit_wait(int) FROM PUBLIC;
