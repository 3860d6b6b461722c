-- Create an index group before its processes host it (`groups` in their settings), and drop it after no process hosts
-- it any more.

--- Makes the keys of index groups that have none, and answers how many; PostgreSQL then does only what they have signed
-- Call it after an upgrade from a version whose index groups signed nothing, and after a restore, which has no keys.
CREATE FUNCTION mantle.make_prepare_keys() RETURNS bigint LANGUAGE plpgsql VOLATILE {as_caller} AS $$
DECLARE
    g record;
    v_made bigint := 0;
BEGIN
    FOR g IN SELECT i.index_group FROM mantle.index_groups i ORDER BY i.index_group LOOP
        INSERT INTO mantle.prepare_keys (index_group, key)
        VALUES (g.index_group, sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))
        ON CONFLICT DO NOTHING;
        v_made := v_made + FOUND::int;
    END LOOP;
    RETURN v_made;
END $$;

--- Makes an index group and answers the name of its slot; repeating the call is harmless. Processes host the group,
--- namespaces choose it
CREATE FUNCTION mantle.create_index_group(p_index_group int) RETURNS text LANGUAGE plpgsql VOLATILE {as_caller} AS $$
BEGIN
    IF (p_index_group >= 1) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'an index group is a number of at least 1';
    END IF;
    INSERT INTO mantle.index_groups (index_group, slot_name) VALUES (p_index_group, mantle.new_slot_name(p_index_group))
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        INSERT INTO mantle.prepare_keys (index_group, key)
        VALUES (p_index_group, sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN (SELECT g.slot_name FROM mantle.index_groups g WHERE g.index_group = p_index_group);
END $$;

--- Gives an index group the slot name of a new one, and answers it: for a copy of a database, whose slot name another
--- database of the server uses. The leader makes the slot and rebuilds the index; a slot of the old name stays
CREATE FUNCTION mantle.rename_index_slot(p_index_group int) RETURNS text LANGUAGE sql VOLATILE {as_caller} AS $$
    UPDATE mantle.index_groups g SET slot_name = mantle.new_slot_name(p_index_group)
     WHERE g.index_group = p_index_group RETURNING g.slot_name
$$;

--- Drops an index group's slot on this node if it exists; an error if it has a reader
CREATE FUNCTION mantle.drop_index_slot(p_slot_name text) RETURNS void LANGUAGE plpgsql VOLATILE {as_caller} AS $$
BEGIN
    PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots s
      WHERE s.slot_name = p_slot_name AND s.database = current_database();
END $$;

--- Removes an index group and its slot; no namespace may be in it and no process may host it
CREATE FUNCTION mantle.drop_index_group(p_index_group int) RETURNS void LANGUAGE plpgsql VOLATILE {as_caller} AS $$
DECLARE
    v_slot text;
    v_bad text;
BEGIN
    IF p_index_group = 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
            MESSAGE = 'index group 1 stays: namespaces are in it by default';
    END IF;
    -- Waits for namespaces that are being created in the group; later ones find it gone.
    PERFORM mantle.latch_epoch_everywhere(p_index_group);
    IF EXISTS (SELECT FROM mantle.namespaces n WHERE p_index_group IN (n.index_group, n.other_group)) THEN
        RAISE EXCEPTION 'namespaces are in index group %', p_index_group USING ERRCODE = 'object_in_use';
    END IF;
    DELETE FROM mantle.index_groups g WHERE g.index_group = p_index_group RETURNING g.slot_name INTO v_slot;
    DELETE FROM mantle.prepare_keys k WHERE k.index_group = p_index_group;
    DELETE FROM mantle.index_replica_reports r WHERE r.index_group = p_index_group;
    IF v_slot IS NULL THEN
        RETURN;
    END IF;
    IF mantle.is_distributed() THEN
        SELECT string_agg(r.result, '; ' ORDER BY r.result) INTO v_bad
          FROM run_command_on_all_nodes(format('SELECT mantle.drop_index_slot(%L)', v_slot)) AS r WHERE NOT r.success;
        IF v_bad IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = v_bad;
        END IF;
    ELSE
        PERFORM mantle.drop_index_slot(v_slot);
    END IF;
END $$;
