--- Directories at or below one that can be removed at once because no key is in them; NULL if the directory holds a key
-- All of them if they are at most p_max, parents before children; otherwise some of the deepest level.
CREATE FUNCTION mantle.prunable_directories(p_id bigint, p_max int) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_all bigint[] := ARRAY[p_id];
    v_level bigint[] := ARRAY[p_id];
    v_below bigint[];
BEGIN
    LOOP
        -- Selects a column, because Citus keeps no result of a subquery without columns.
        IF EXISTS (SELECT m.pid FROM mantle.meta m
                    WHERE m.pid = ANY (v_level) AND m.name < '/' AND m.explicit IS DISTINCT FROM false)
           OR EXISTS (SELECT m.pid FROM mantle.meta m
                       WHERE m.pid = ANY (v_level) AND m.name >= '0' AND m.explicit IS DISTINCT FROM false) THEN
            RETURN NULL;
        END IF;
        v_below := ARRAY(
            SELECT m.id FROM mantle.meta m WHERE m.pid = ANY (v_level) AND m.explicit IS NOT NULL LIMIT p_max + 1);
        EXIT WHEN cardinality(v_below) = 0;
        v_level := v_below;
        v_all := v_all || v_level;
    END LOOP;
    RETURN CASE WHEN cardinality(v_all) <= p_max THEN v_all ELSE v_level[:p_max] END;
END $$;
