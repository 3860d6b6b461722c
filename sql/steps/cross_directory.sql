-- Parts of a change that spans directories. Each function does its part in one directory, `p_pid`. On Citus it runs on
-- the node of that directory, all parts in one transaction (two-phase commit if there are several nodes). Callers
-- write `SELECT … FROM f(…)` with plain variables, in functions without generic plans: Citus sends only such calls to
-- another node. Rows travel as text, because Citus passes no parameters of our own types.
-- `citus.allow_nested_distributed_execution`: if a shard moves away during a part, the part then writes where the
-- shard is, and the check at the end finds it (`wrong_node`). Otherwise Citus would raise an error that does not say
-- that a retry may succeed.
-- Each part latches before the next one reads (P7), emits the message of the rows it writes (P1), and checks that they
-- are still on its node. Only the session that sends the parts knows on which node they were latched and read, so
-- after the last part it checks whether any shard has moved since the first (P14).

--- Latches a directory and names in it, and an index group's epoch if one is given
CREATE FUNCTION mantle.latch_delegated(p_pid bigint, p_names text[], p_exclusive boolean, p_index_group int)
RETURNS void LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    IF p_index_group IS NOT NULL THEN
        PERFORM mantle.raise_fault(mantle.latch_epoch(p_index_group, false));
    END IF;
    PERFORM mantle.raise_fault(mantle.latch_entries(
                array_fill(p_pid, ARRAY[cardinality(p_names)]), p_names, CASE WHEN p_exclusive THEN ARRAY[p_pid] END));
END $$;

--- Tries to latch a place, or without a name to latch a directory exclusively
-- Without waiting: the worker removes only what is not in use. Latches taken are held until the commit.
CREATE FUNCTION mantle.try_latch_delegated(p_pid bigint, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    RETURN CASE WHEN p_name IS NULL THEN mantle.try_latch_exclusive(p_pid)
                ELSE mantle.try_latch_shared(p_pid) AND mantle.try_latch_name(p_pid, p_name) END;
END $$;

--- Waits until no move of an object is under way on the node of p_pid, and keeps new ones away (P51)
-- Not for long: a move that is left prepared after a crash may last a minute.
CREATE FUNCTION mantle.latch_moves_delegated(p_pid bigint) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} SET lock_timeout = '100ms' AS $$
BEGIN
    PERFORM mantle.latch_moves(true);
END $$;

--- What a change that spans directories reads of a place
CREATE FUNCTION mantle.read_place_delegated(p_pid bigint, p_name text, p_ns bigint, p_index_group int)
RETURNS mantle.place_state LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE
    s mantle.place_state;
    v_entry mantle.meta;
BEGIN
    SELECT * INTO v_entry FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 FOR UPDATE;
    s.entry := v_entry;
    PERFORM FROM mantle.meta m
      WHERE m.pid = p_pid AND m.ts = 0
        AND m.name = CASE WHEN right(p_name, 1) = '/' THEN left(p_name, -1) ELSE p_name || '/' END;
    s.opposite := FOUND;
    -- Not by mantle.permission_of, which keeps the shard here until the commit, like a change.
    SELECT coalesce(m.removed, false), mantle.permission_text(m.owner, m.grp, m.mode) INTO s.removed, s.permission
      FROM mantle.meta m WHERE m.pid = p_pid AND m.name = '/_ATTR' AND m.ts = 0;
    s.removed := coalesce(s.removed, false);
    IF p_pid = 0 THEN
        s.permission := mantle.permission_of(p_pid, NULL);
    END IF;
    -- Only the epoch of the group that serves the namespace fences this change.
    s.epoch := (SELECT g.epoch FROM mantle.index_groups g JOIN mantle.namespaces n ON n.index_group = g.index_group
                 WHERE g.index_group = p_index_group AND n.ns = p_ns);
    RETURN s;
END $$;

--- mantle.is_empty, as a part of a change that spans directories
CREATE FUNCTION mantle.is_empty_delegated(p_pid bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    RETURN mantle.is_empty(p_pid);
END $$;

--- mantle.write_tombstone, as a part of a change that spans directories
CREATE FUNCTION mantle.write_tombstone_delegated(p_pid bigint, p_ns bigint) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    PERFORM mantle.write_tombstone(p_ns, p_pid);
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;

--- Replays the first answer to a request if there is one; else answers its fault if there is one; else records its
--- answer and returns NULLs
CREATE FUNCTION mantle.record_request_delegated(
    p_pid bigint, p_principal int, p_ns bigint, p_request uuid, p_hash bigint, p_verb text, p_fault text, p_id bigint,
    p_version bigint) RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE o mantle.outcome := mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
BEGIN
    IF o IS NULL THEN
        o.code := p_fault;
        IF p_fault IS NULL AND NOT mantle.record_request(p_principal, p_ns, p_request, p_hash, p_verb, p_pid, p_id,
            p_version) THEN
            o := mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
        END IF;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
    RETURN o;
END $$;

--- mantle.record_request_delegated for an attempt that the index has prepared; p_pid is the namespace
-- The answer is recorded with the namespace's root, where all requests and attempts of one key meet, wherever they were
-- resolved. Order: attempt, replay, fault. To check the attempt we must insert its row; the row stays only if the
-- transaction carries the attempt out. Until then an abort of this attempt waits on the unique key.
CREATE FUNCTION mantle.record_attempt_delegated(
    p_pid bigint, p_principal int, p_request uuid, p_hash bigint, p_attempt bigint, p_verb text, p_fault text,
    p_id bigint, p_version bigint) RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE o mantle.outcome;
BEGIN
    INSERT INTO mantle.rename_attempts (ns, principal, request_id, attempt, state)
    VALUES (p_pid, p_principal, p_request, p_attempt, 'committed') ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        -- Aborted; or committed by this attempt, whose answer was lost.
        o := mantle.recorded_outcome(p_principal, p_pid, p_request, p_hash, p_pid);
        IF o IS NULL THEN
            o.code := '{attempt_superseded}';
        END IF;
        RETURN o;
    END IF;
    IF EXISTS (SELECT FROM mantle.rename_attempts a WHERE a.ns = p_pid AND a.principal = p_principal
                                                      AND a.request_id = p_request AND a.attempt > p_attempt) THEN
        o.code := '{attempt_superseded}';
    ELSE
        o := mantle.record_request_delegated(p_pid, p_principal, p_pid, p_request, p_hash, p_verb, p_fault, p_id,
            p_version);
    END IF;
    IF NOT o IS NULL THEN
        DELETE FROM mantle.rename_attempts a
         WHERE a.ns = p_pid AND a.principal = p_principal AND a.request_id = p_request AND a.attempt = p_attempt;
    END IF;
    RETURN o;
END $$;

--- Removes an entry from its directory
-- The trash (pid 1) has no counts: no reader needs them, and every removal would update them. The super-root (pid 0)
-- is in no namespace; requests that change it are recorded under namespace 0. `p_stays`: it gets another name in the same
-- directory, which is not empty afterwards and needs no look by the pruner (P17).
CREATE FUNCTION mantle.remove_entry_delegated(
    p_pid bigint, p_row text, p_changes text, p_attempt bigint, p_stays boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE
    v_entry mantle.meta := p_row::mantle.meta;
    v_directory int := (v_entry.explicit IS NOT NULL)::int;
BEGIN
    DELETE FROM mantle.meta m WHERE m.pid = p_pid AND m.name = v_entry.name AND m.ts = 0;
    IF p_pid >= {ID_MIN} AND NOT p_stays THEN
        PERFORM mantle.queue_pruning(p_pid, p_pid);
    END IF;
    IF p_pid <> 1 THEN
        PERFORM mantle.add_counts(CASE WHEN p_pid = 0 THEN 0 ELSE v_entry.ns END, p_pid, -1, -v_directory,
            -coalesce(v_entry.size, 0));
    END IF;
    PERFORM mantle.emit(CASE WHEN p_pid = 0 THEN 0 END, p_attempt, p_changes::mantle.directory_change[]);
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;

--- Inserts an entry into a directory, and replaces another one if given
CREATE FUNCTION mantle.insert_entry_delegated(
    p_pid bigint, p_row text, p_replaced_row text, p_changes text, p_attempt bigint, p_inline bytea DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE
    v_entry mantle.meta := p_row::mantle.meta;
    v_replaced mantle.meta := p_replaced_row::mantle.meta;
    v_directory int := (v_entry.explicit IS NOT NULL)::int;
BEGIN
    IF v_entry.locator IS NOT NULL THEN
        PERFORM mantle.latch_moves(false);
    END IF;
    IF v_replaced.id IS NOT NULL THEN
        DELETE FROM mantle.meta m WHERE m.pid = p_pid AND m.name = v_replaced.name AND m.ts = 0;
        -- An object that is copied onto itself keeps its bytes.
        IF v_replaced.locator {is_inline} THEN
            IF v_replaced.locator IS DISTINCT FROM v_entry.locator THEN
                PERFORM mantle.drop_inline(p_pid, ARRAY[v_replaced.locator]);
            END IF;
        ELSIF v_replaced.locator {in_volume}
              AND mantle.are_of_one_write(v_replaced.locator, v_entry.locator) IS NOT TRUE THEN
            PERFORM mantle.free_bytes(ARRAY[v_replaced.locator], v_replaced.shared IS TRUE);
        END IF;
    END IF;
    INSERT INTO mantle.meta (pid, name, ts, ns, shared, {entry.columns})
    VALUES (p_pid, v_entry.name, 0, v_entry.ns, v_entry.shared, {entry.columns_of_v_entry});
    IF p_inline IS NOT NULL THEN
        PERFORM mantle.add_inline(p_pid, v_entry.locator, p_inline);
    END IF;
    -- Also when neither count changes, because the directory was modified.
    IF p_pid <> 1 THEN
        PERFORM mantle.add_counts(
            CASE WHEN p_pid = 0 THEN 0 ELSE v_entry.ns END, p_pid, (v_replaced.id IS NULL)::int,
            CASE WHEN v_replaced.id IS NULL THEN v_directory ELSE 0 END,
            coalesce(v_entry.size, 0) - coalesce(v_replaced.size, 0));
    END IF;
    PERFORM mantle.emit(CASE WHEN p_pid = 0 THEN 0 END, p_attempt, p_changes::mantle.directory_change[]);
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;

--- Keeps a copy of a directory's changed permission where the changes of its entries are latched (P56)
-- The caller holds the exclusive latch of the directory, so no other change adds to the record.
CREATE FUNCTION mantle.record_permission_delegated(p_pid bigint, p_ns bigint, p_owner int, p_grp int, p_mode int)
RETURNS void LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    INSERT INTO mantle.meta AS m (pid, name, ts, ns, owner, grp, mode, entries, subdirectories, bytes, removed)
    VALUES (p_pid, '/_ATTR', 0, p_ns, p_owner, p_grp, p_mode, 0, 0, 0, false)
    ON CONFLICT (pid, name, ts) DO UPDATE SET owner = excluded.owner, grp = excluded.grp, mode = excluded.mode;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;

--- Marks an object's bytes as shared, which changes neither its version nor its times
CREATE FUNCTION mantle.share_object_delegated(p_pid bigint, p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    UPDATE mantle.meta m SET shared = true WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;

--- The locator of bytes that a change leaves without an object. NULL if other rows may use them (the sweeper finds
--- out), and NULL if they are in a volume or inside PostgreSQL (the change frees or removes them itself)
CREATE FUNCTION mantle.left_locator(p_locator text, p_shared boolean) RETURNS text
LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN p_shared IS NOT TRUE AND NOT p_locator {in_volume} AND NOT p_locator {is_inline} THEN p_locator END;

--- Moves an entry from one directory to another, which may be the same. p_inline: its bytes, if they are inside PostgreSQL and
--- were taken out of the other directory
-- The directory with the smaller pid comes first: with mantle.delta_records = never each part waits for its directory's
-- counts, and two opposite moves would deadlock. A message belongs to its own part, so the order of the two has no
-- meaning (P1, P2).
CREATE FUNCTION mantle.move_entry(
    p_src_pid bigint, p_src_row text, p_src_changes text, p_dst_pid bigint, p_dst_row text, p_replaced_row text,
    p_dst_changes text, p_attempt bigint, p_inline bytea DEFAULT NULL) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_src_pid <= p_dst_pid THEN
        PERFORM FROM mantle.remove_entry_delegated(
            p_src_pid, p_src_row, p_src_changes, p_attempt, p_src_pid = p_dst_pid);
        PERFORM FROM mantle.insert_entry_delegated(
            p_dst_pid, p_dst_row, p_replaced_row, p_dst_changes, p_attempt, p_inline);
    ELSE
        PERFORM FROM mantle.insert_entry_delegated(
            p_dst_pid, p_dst_row, p_replaced_row, p_dst_changes, p_attempt, p_inline);
        PERFORM FROM mantle.remove_entry_delegated(p_src_pid, p_src_row, p_src_changes, p_attempt);
    END IF;
END $$;

--- Latches places and, exclusively, directories, on any node
-- On one node all at once, otherwise one directory after the other in their order, so that two changes do not deadlock.
-- A change calls this once, before it writes: a write takes the lock that keeps its shard in place until the commit. If a
-- change that holds that lock waited for a latch, whose holder waits for the same lock behind a move, the three would
-- deadlock, and the move might be the victim (P12).
CREATE FUNCTION mantle.latch_across_nodes(p_pids bigint[], p_names text[], p_exclusive bigint[], p_index_group int)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE d record;
BEGIN
    -- Citus does not pass to another node that this transaction is read-only.
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    IF mantle.is_local(p_pids || p_exclusive) THEN
        IF p_index_group IS NOT NULL THEN
            PERFORM mantle.raise_fault(mantle.latch_epoch(p_index_group, false));
        END IF;
        PERFORM mantle.raise_fault(mantle.latch_entries(p_pids, p_names, p_exclusive));
        RETURN;
    END IF;
    FOR d
        -- any order
        IN SELECT u.pid, array_remove(array_agg(u.name), NULL) AS names, bool_or(u.exclusive) AS exclusive
          FROM (SELECT n.pid, n.name, false FROM unnest(p_pids, p_names) AS n(pid, name)
                 UNION ALL SELECT e.pid, NULL, true FROM unnest(p_exclusive) AS e(pid)) AS u(pid, name, exclusive)
         WHERE u.pid IS NOT NULL GROUP BY u.pid ORDER BY u.pid
    LOOP
        PERFORM FROM mantle.latch_delegated(d.pid, d.names, d.exclusive, p_index_group);
    END LOOP;
END $$;
